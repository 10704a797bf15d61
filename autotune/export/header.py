"""What stands above an exported launch: what it reached, where, when, and what to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune import __version__
from autotune.export.command import ServeCommand
from autotune.front import Point
from autotune.records import PEAK, SINGLE, Outcome
from autotune.run import Run
from autotune.verdict import baseline_point, engine_versions, figure_text, gain_text

_NAMES = {SINGLE: "one request at a time", PEAK: "peak"}


@dataclass(frozen=True)
class Header:
    """`name` of the run, `lines` of plain text without comment signs, and the figures in tokens
    per second with their half-widths: those of fresh launches where there were some."""

    name: str
    lines: tuple[str, ...]
    values: Mapping[str, float]
    spread: Mapping[str, float]


def header_of(run: Run, outcome: Outcome, command: ServeCommand) -> Header:
    """The comment above a launch: figures with spread, date, machine, workload, warnings."""
    version = outcome.engine_version or engine_versions(run).get(outcome.engine, "")
    when = (outcome.finished_at or outcome.started_at)[:10] or "an unknown day"
    lines = [
        f"{run.name}, trial {outcome.number}: {f'{outcome.engine} {version}'.strip()}",
        f"Measured on {when} on machine {outcome.machine or 'unknown'}; "
        f"written by autotune {__version__}.",
        *_figure_lines(run, outcome),
        *_workload_lines(run),
        *(f"WARNING: {warning}" for warning in command.warnings),
    ]
    figures = run.point(outcome.number) or outcome
    return Header(
        run.name,
        tuple(" ".join(line.split()) for line in lines),
        values=figures.values or {},
        spread=figures.spread,
    )


def _figure_lines(run: Run, outcome: Outcome) -> list[str]:
    point = run.point(outcome.number)
    if point is None:
        return []  # which is one of the command's warnings
    lines = [_figure_line(point, name, baseline_point(run)) for name in _NAMES]
    once = "Launched once: these figures carry the luck of that."
    return [*lines, once] if point.launched_once else lines


def _figure_line(point: Point, name: str, baseline: Point | None) -> str:
    line = f"{_NAMES[name]}: {figure_text(point, name)} tok/s"
    if baseline is not None and baseline.number != point.number:
        line += f" ({gain_text(point.values[name] / baseline.values[name])} against the baseline)"
    launches = len(point.launches)
    return line + (f", {launches} fresh launches" if point.claimed and launches > 1 else "")


def _workload_lines(run: Run) -> list[str]:
    workload = run.experiment.get("workload")
    if not isinstance(workload, dict) or not workload:
        return []
    return ["Workload: " + ", ".join(f"{name} {value}" for name, value in workload.items())]
