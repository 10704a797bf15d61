"""The report's plots as inline SVG, each in a wide and a narrow form for screens and phones."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from autotune.drift import Drift
from autotune.front import Point, front_of
from autotune.records import OBJECTIVES, PEAK, SINGLE
from autotune.report.facts import PhaseCost
from autotune.run import Run
from autotune.verdict import TITLES, baseline_point

INK, MUTED, GRID = "#1f2933", "#667085", "#e7eaee"
FRONT, OTHER, BASELINE, CLAIMED = "#0f766e", "#b8c0cc", "#b45309", "#94a3b8"
SERIES = {SINGLE: "#0f766e", PEAK: "#4f46e5"}

_SIZES = (("wide", 7.4, 1.0), ("narrow", 3.5, 0.85))  # name, inches, share of the height
# Any: matplotlib types the keys one by one, which no plain dict satisfies.
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "autotune",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
}


def both_sizes(
    name: str, label: str, draw: Callable[[Axes, bool], None], height: float = 4.3
) -> str:
    """HTML of a plot in its two sizes; `draw(axes, narrow)` paints one. `label` is read aloud."""
    parts = []
    for size, width, share in _SIZES:
        with matplotlib.rc_context(_STYLE):
            figure = Figure(figsize=(width, height * share), layout="constrained")
            draw(figure.add_subplot(), size == "narrow")
            parts.append(f'<div class="{size}">{_svg(figure, f"{name}-{size}", label)}</div>')
    return "".join(parts)


def _svg(figure: Figure, prefix: str, label: str) -> str:
    """The figure as an SVG element whose ids are unique on a page with several of them."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    svg = re.sub(r'xlink:href="#(?!trial-)', f'xlink:href="#{prefix}-', svg)
    svg = svg.replace("'DejaVu Sans', ", "").replace("'DejaVu Sans'", "system-ui, sans-serif")
    head, rest = svg.split(">", 1)
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    return f'{head} role="img" aria-label="{label}">{rest}'


def front_plot(run: Run) -> str:
    """All measured configurations, the front with its spread, baseline, first claims."""
    front, baseline = front_of(run.points), baseline_point(run)

    def draw(axes: Axes, narrow: bool) -> None:
        others = [p for p in run.points if p not in front and p is not baseline]
        axes.scatter(*_columns(others), s=22, color=OTHER, label="measured", zorder=2)
        _claims(axes, [point for point in front if point.claimed])
        _front_line(axes, front)
        _with_spread(axes, front, FRONT, "front", "o")
        if baseline is not None:
            _with_spread(axes, [baseline], BASELINE, "baseline", "D")
        for point in _apart(front, 0.12 if narrow else 0.05):
            _name(axes, point)
        axes.set_xlabel("one request at a time, tok/s")
        axes.set_ylabel("peak, tok/s")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.margins(0.12, 0.12)
        axes.figure.legend(
            loc="outside upper center",
            ncols=2 if narrow else 4,
            fontsize=9,
            handletextpad=0.3,
            columnspacing=1.2,
        )

    return both_sizes("front", "Pareto front of the measured configurations", draw)


def _columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [point.single for point in points], [point.peak for point in points]


def _claims(axes: Axes, points: Sequence[Point]) -> None:
    """A hollow mark where a finalist was first measured, joined to where it really is."""
    for index, point in enumerate(points):
        claimed = point.claimed or point.values
        x, y = claimed[SINGLE], claimed[PEAK]
        axes.plot([x, point.single], [y, point.peak], color=CLAIMED, lw=0.8, ls=":", zorder=2)
        axes.scatter([x], [y], s=26, facecolor="white", edgecolor=CLAIMED, zorder=3,
                     label="first claim" if index == 0 else None)  # fmt: skip


def _front_line(axes: Axes, front: Sequence[Point]) -> None:
    """What can be had: at least this single stream and this peak."""
    x, y = _columns(front)
    axes.step(x, y, where="pre", color=FRONT, lw=1.2, alpha=0.45, zorder=3)


def _with_spread(axes: Axes, points: Sequence[Point], color: str, label: str, mark: str) -> None:
    x, y = _columns(points)
    axes.errorbar(
        x,
        y,
        xerr=[point.spread.get(SINGLE, 0.0) for point in points],
        yerr=[point.spread.get(PEAK, 0.0) for point in points],
        fmt=mark,
        ms=6.5,
        color=color,
        elinewidth=1,
        label=label,
        zorder=4,
    )


def _name(axes: Axes, point: Point) -> None:
    axes.annotate(
        f"{point.number}",
        (point.single, point.peak),
        xytext=(6, 5),
        textcoords="offset points",
        fontsize=9,
        color=FRONT,
        fontweight="bold",
        url=f"#trial-{point.number}",
    )


def _apart(front: Sequence[Point], gap: float) -> list[Point]:
    """Members whose names do not overlap: both ends first, then what is `gap` of the way off."""
    width = front[0].single - front[-1].single or 1.0
    height = front[-1].peak - front[0].peak or 1.0
    kept: list[Point] = []
    for point in (*front[:1], *front[:0:-1]):
        away = [
            max(abs(point.single - k.single) / width, abs(point.peak - k.peak) / height)
            for k in kept
        ]
        if min(away, default=1.0) > gap:
            kept.append(point)
    return kept


def drift_plot(drift: Sequence[Drift]) -> str:
    """The baseline's later launches against its first, in percent."""

    def draw(axes: Axes, narrow: bool) -> None:
        places = range(len(drift) + 1)
        for name in OBJECTIVES:
            ratios = [1.0, *(one.ratios.get(name, float("nan")) for one in drift)]
            percent = [(ratio - 1) * 100 for ratio in ratios]
            axes.plot(places, percent, marker="o", color=SERIES[name], label=TITLES[name])
        axes.axhline(0, color=MUTED, lw=0.8)
        axes.set_xticks(places, ["first", *(f"trial {one.trial}" for one in drift)], fontsize=9)
        if narrow:
            axes.tick_params(axis="x", rotation=60)
        axes.set_ylabel("baseline against its first launch, %")
        axes.margins(0.1, 0.25)
        axes.legend(loc="best", fontsize=9)

    return both_sizes("drift", "The baseline over the course of the study", draw, height=2.6)


def phase_plot(phases: Sequence[PhaseCost]) -> str:
    """Hours by phase."""

    def draw(axes: Axes, narrow: bool) -> None:
        names = [phase.phase.replace("_", " ") for phase in phases]
        hours = [phase.hours for phase in phases]
        bars = axes.barh(names, hours, color="#7aa7a2", height=0.62)
        labels = [f"{_hours_text(phase.hours)}, {phase.share:.0%}" for phase in phases]
        axes.bar_label(bars, labels, padding=4, fontsize=9, color=INK)
        axes.invert_yaxis()
        axes.set_xlim(0, max(hours) * (1.5 if narrow else 1.2))
        axes.grid(False)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)

    return both_sizes("phases", "Hours spent in each phase", draw, height=0.5 + 0.3 * len(phases))


def _hours_text(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.0f} min"
