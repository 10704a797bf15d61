"""What a run found, as one JSON document and as tables for a terminal."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from autotune.front import Point, front_of, knee_of
from autotune.records import OBJECTIVES, PEAK, SINGLE, Outcome, Value
from autotune.rundir import Run

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def show_document(run: Run) -> dict[str, Any]:
    """The run as `autotune show --json` prints it. `front` goes from single stream to peak.

    `values` and `spread` are those of each launch in tokens per second; `seconds` is by phase.
    """
    return {
        "name": run.name,
        "engine_versions": engine_versions(run),
        "machine": dict(run.machine),
        "baseline": run.baseline,
        "front": list(run.front),
        "trials": [_trial_document(outcome) for outcome in run.outcomes]
        + [_unfinished_document(run, number) for number in _without_outcome(run)],
    }


def _trial_document(outcome: Outcome) -> dict[str, Any]:
    failure = outcome.failure
    return {
        "number": outcome.number,
        "state": outcome.state,
        "failure": failure
        and {"kind": failure.kind.value, "phase": failure.phase.value, "cause": failure.cause},
        "params": outcome.params,
        "command": list(outcome.command),
        "env": outcome.env,
        "values": outcome.values,
        "spread": outcome.spread,
        "figures": outcome.figures,
        "seconds": outcome.seconds,
        "warnings": list(outcome.warnings),
    }


def _unfinished_document(run: Run, number: int) -> dict[str, Any]:
    """A trial whose outcome is not written: it runs now, or its driver was killed."""
    return {
        "number": number,
        "state": "running" if run.live else "interrupted",
        "failure": None,
        "params": {},
        "command": [],
        "env": {},
        "values": None,
        "spread": {},
        "figures": {},
        "seconds": {},
        "warnings": [],
    }


def _without_outcome(run: Run) -> list[int]:
    known = {outcome.number for outcome in run.outcomes}
    return [number for number in run.unfinished if number not in known]


def engine_versions(run: Run) -> dict[str, str]:
    """Engine -> version; several versions of one engine are joined, oldest trial first."""
    versions: dict[str, list[str]] = {}
    for outcome in run.outcomes:
        seen = versions.setdefault(outcome.engine, [])
        if outcome.engine_version and outcome.engine_version not in seen:
            seen.append(outcome.engine_version)
    return {engine: ", ".join(seen) for engine, seen in versions.items() if seen}


def differing(params: dict[str, Value], other: dict[str, Value]) -> dict[str, Value]:
    """The parameters of `params` that `other` lacks or has at another value."""
    missing = object()
    return {
        name: value
        for name, value in params.items()
        if (was := other.get(name, missing)) is missing
        or was != value
        or type(was) is not type(value)
    }


def value_text(value: Value) -> str:
    """A value as it stands in an experiment file."""
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def params_text(params: dict[str, Value]) -> str:
    return " ".join(f"{name}={value_text(value)}" for name, value in params.items())


def figure_text(point: Point, name: str) -> str:
    """`81.9 ± 0.4`, with as many digits as the spread leaves meaning to."""
    value, spread = point.values[name], point.spread.get(name, 0.0)
    digits = 1 if value < 1000 else 0
    text = f"{value:,.{digits}f}"
    return f"{text} ± {spread:,.{digits}f}" if spread else text


def gain_text(value: float, reference: float) -> str:
    """`+12.3 %` against a reference."""
    return f"{(value / reference - 1) * 100:+.1f} %"


def failures_by_cause(outcomes: Sequence[Outcome]) -> list[tuple[str, str, str, list[int]]]:
    """(kind, phase, cause, numbers of the trials), the most frequent first."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for outcome in outcomes:
        if outcome.failure is not None:
            failure = outcome.failure
            key = (failure.kind.value, failure.phase.value, failure.cause)
            groups.setdefault(key, []).append(outcome.number)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[1]))
    return [(*key, numbers) for key, numbers in ordered]


# -- tables ---------------------------------------------------------------------------------


def show_tables(run: Run) -> list[RenderableType]:
    """What `autotune show` prints: the front, the failures by cause, every trial."""
    from rich.text import Text

    parts: list[RenderableType] = [Text(summary_line(run), style="bold")]
    parts += [Text(problem, style="yellow") for problem in run.problems]
    if run.points:
        parts.append(_front_table(run))
    if any(outcome.failure for outcome in run.outcomes):
        parts.append(_failure_table(run))
    if run.outcomes:
        parts.append(_trial_table(run))
    return parts


def summary_line(run: Run) -> str:
    """`kimi-k2.5: 40 trials, 33 measured, 7 infeasible; front of 4; sglang 0.5.23`."""
    states = Counter(outcome.state for outcome in run.outcomes)
    states["running" if run.live else "interrupted"] += len(_without_outcome(run))
    counts = [f"{states['ok']} measured"] + [
        f"{count} {state}" for state, count in states.items() if state != "ok" and count
    ]
    trials = sum(states.values())
    versions = " and ".join(f"{name} {text}" for name, text in engine_versions(run).items())
    parts = [
        f"{trials} trial{'' if trials == 1 else 's'}, {', '.join(counts)}",
        f"front of {len(run.front)}",
        versions,
        "simulated" if any(outcome.simulated for outcome in run.outcomes) else "",
    ]
    return f"{run.name}: " + "; ".join(part for part in parts if part)


def _table(title: str, *columns: str, numbers: Sequence[str] = ()) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    for column in columns:
        right = column in numbers
        table.add_column(column, justify="right" if right else "left", no_wrap=right)
    return table


def _front_table(run: Run) -> Table:
    figures = ("single tok/s", "peak tok/s", "single", "peak")
    columns = ("trial", *figures, "changes against the baseline")
    table = _table("Front", *columns, numbers=("trial", *figures))
    baseline = run.point(run.baseline) if run.baseline is not None else None
    front = front_of(run.points)
    marks = {front[0].number: "single", front[-1].number: "peak", knee_of(front).number: "knee"}
    rows = list(front)
    if baseline is not None and baseline not in front:
        rows.append(baseline)
    for point in rows:
        gains = _gains(point, baseline)
        changes = _changes(run, point, baseline)
        mark = marks.get(point.number, "") if point in front else "baseline"
        table.add_row(
            str(point.number),
            figure_text(point, SINGLE),
            figure_text(point, PEAK),
            *gains,
            f"[{mark}] {changes}".replace("[", r"\[") if mark else changes,
        )
    return table


def _gains(point: Point, baseline: Point | None) -> list[str]:
    if baseline is None:
        return ["", ""]
    return [gain_text(point.values[name], baseline.values[name]) for name in OBJECTIVES]


def _changes(run: Run, point: Point, baseline: Point | None) -> str:
    params = run.outcome(point.number).params
    if baseline is None:
        return params_text(params)
    if point.number == baseline.number:
        return params_text(params) or "none"
    return params_text(differing(params, run.outcome(baseline.number).params)) or "none"


def _failure_table(run: Run) -> Table:
    table = _table("Failures by cause", "trials", "kind", "phase", "cause", numbers=("trials",))
    for kind, phase, cause, numbers in failures_by_cause(run.outcomes):
        table.add_row(str(len(numbers)), kind, phase, _plain(cause))
    return table


def _trial_table(run: Run) -> Table:
    figures = ("trial", "single tok/s", "peak tok/s", "minutes")
    columns = ("trial", "state", *figures[1:], "parameters")
    table = _table("Trials", *columns, numbers=figures)
    for outcome in run.outcomes:
        values = outcome.values or {}
        kind = outcome.failure.kind.value if outcome.failure else outcome.state
        purpose = outcome.purpose if outcome.purpose != "search" else ""
        repeats = f" of {outcome.repeats}" if outcome.repeats is not None else ""
        table.add_row(
            str(outcome.number),
            kind,
            *(f"{values[name]:,.1f}" if name in values else "" for name in OBJECTIVES),
            f"{sum(outcome.seconds.values()) / 60:.1f}" if outcome.seconds else "",
            _plain(f"({purpose}{repeats}) " * bool(purpose) + params_text(outcome.params)),
        )
    for number in _without_outcome(run):
        table.add_row(str(number), "running" if run.live else "interrupted", "", "", "", "")
    return table


def _plain(text: str) -> str:
    """Text in which rich finds no markup."""
    return text.replace("[", r"\[")


def command_line(outcome: Outcome) -> str:
    """The command as one line of shell, with its environment in front."""
    words = [f"{name}={shlex.quote(value)}" for name, value in outcome.env.items()]
    return " ".join([*words, *map(shlex.quote, outcome.command)])
