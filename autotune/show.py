"""What a run found, as one JSON document and as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotune.caveats import caveats
from autotune.records import OBJECTIVES, PEAK, SINGLE, Outcome
from autotune.run import Run
from autotune.verdict import (
    baseline_point,
    changes_of,
    engine_versions,
    failure_groups,
    figure_text,
    front_rows,
    gain_text,
    number_text,
    params_text,
    settings_text,
    summary_line,
    trials_text,
    warning_groups,
    without_outcome,
)

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
        + [_unfinished_document(run, number) for number in without_outcome(run)],
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


# -- tables ---------------------------------------------------------------------------------


def show_tables(run: Run) -> list[RenderableType]:
    """What `autotune show` prints: the front, failures by cause, warnings by kind, every trial."""
    from rich.text import Text

    parts: list[RenderableType] = [Text(summary_line(run), style="bold")]
    parts += [Text(problem, style="yellow") for problem in run.problems]
    if run.points:
        parts += [Text(), _front_table(run)]
    if notes := caveats(run):
        parts += [*(Text(note, style="yellow") for note in notes), Text()]
    if run.points:
        parts += _change_lines(run)
    if any(outcome.failure for outcome in run.outcomes):
        parts.append(_failure_table(run))
    if any(outcome.warnings for outcome in run.outcomes):
        parts += _warning_lines(run)
    if run.outcomes or run.unfinished:
        parts += _trial_lines(run)
    return parts


def _table(title: str, *columns: str, numbers: Sequence[str] = ()) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    for column in columns:
        right = column in numbers
        table.add_column(
            column, justify="right" if right else "left", no_wrap=right, overflow="fold"
        )
    return table


def _front_table(run: Run) -> Table:
    figures = ("single tok/s", "peak tok/s", "single", "peak")
    columns = ("trial", *figures, "")
    table = _table("Front", *columns, numbers=("trial", *figures))
    for row in front_rows(run):
        table.add_row(
            str(row.point.number),
            figure_text(row.point, SINGLE),
            figure_text(row.point, PEAK),
            *(gain_text(row.gains[name]) if row.gains else "" for name in OBJECTIVES),
            row.mark,
        )
    return table


def _change_lines(run: Run) -> list[RenderableType]:
    """What each member changes, in lines of its own: too long for a column of a terminal.

    Without a baseline that was measured, all that it sets.
    """
    from rich.text import Text

    compared = baseline_point(run) is not None
    heading = "against the baseline" if compared else "settings"
    lines: list[RenderableType] = [Text(heading, style="bold")]
    for row in front_rows(run):
        number = row.point.number
        if not compared:
            lines.append(_indented(f"{number} is {_params(run, number)}"))
        elif number == run.baseline:
            lines.append(_indented(f"{number} is the baseline: {_params(run, number)}"))
        else:
            lines.append(_indented(f"{number} sets {settings_text(row.changes)}"))
    return [*lines, Text()]


def _params(run: Run, number: int) -> str:
    return params_text(run.outcome(number).params)


def _indented(text: str, by: int = 2, style: str = "") -> RenderableType:
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(text, style=style), (0, 0, 0, by))


def _failure_table(run: Run) -> Table:
    table = _table("Failures by cause", "trials", "kind", "phase", "cause", numbers=("trials",))
    for group in failure_groups(run.outcomes):
        table.add_row(str(len(group.trials)), group.kind, group.phase, _plain(group.cause))
    return table


def _warning_lines(run: Run) -> list[RenderableType]:
    """Each kind of warning once: a night of trials gives the same one many times."""
    from rich.text import Text

    lines: list[RenderableType] = [Text("Warnings", style="bold")]
    for group in warning_groups(run.outcomes):
        lines.append(_indented(f"{group.text} ({group.trials_text})", style="yellow"))
    return [*lines, Text()]


def _trial_lines(run: Run) -> list[RenderableType]:
    """Each trial's figures in a line, and below it what it changed."""
    from rich.text import Text

    head = _trial_line("trial", "state", "single tok/s", "peak tok/s", "minutes")
    lines: list[RenderableType] = [Text("Trials", style="bold"), Text(head, style="bold")]
    for outcome in run.outcomes:
        values = outcome.values or {}
        single, peak = (_number(values, name) for name in OBJECTIVES)
        minutes = f"{sum(outcome.seconds.values()) / 60:.1f}" if outcome.seconds else ""
        state = outcome.failure.kind.value if outcome.failure else outcome.state
        line = _trial_line(str(outcome.number), state, single, peak, minutes)
        lines.append(Text(f"{line}  {_role(outcome)}".rstrip()))
        if changed := _difference(run, outcome):
            lines.append(_indented(changed, by=9, style="dim"))
    for number in without_outcome(run):
        lines.append(Text(_trial_line(str(number), "running" if run.live else "interrupted")))
    return [*lines, *(_indented(line, style="dim") for line in _without_figures(run))]


def _without_figures(run: Run) -> Iterator[str]:
    """Which launches count for nothing, and why numbers are missing."""
    if lost := [outcome.number for outcome in run.outcomes if outcome.state == "lost"]:
        yield f"lost with their host or worker, and counted for nothing: {trials_text(lost)}"
    launched = {*run.unfinished, *(outcome.number for outcome in run.outcomes)}
    if missing := [n for n in range(max(launched, default=0)) if n not in launched]:
        # A planned one keeps its number while it waits: only the study knows which these are.
        reasons = "planned for later, or proposed and forbidden, known already or taken back"
        yield f"not launched: {trials_text(missing)} ({reasons})"


def _number(values: Mapping[str, float], name: str) -> str:
    return number_text(values[name]) if name in values else ""


def _trial_line(number: str, state: str, single: str = "", peak: str = "", took: str = "") -> str:
    return f"  {number:>5}  {state:<20}{single:>12}  {peak:>10}  {took:>7}".rstrip()


def _difference(run: Run, outcome: Outcome) -> str:
    if outcome.repeats is not None or outcome.number == run.baseline:
        return ""
    if run.baseline is None:
        return params_text(outcome.params)
    return settings_text(changes_of(run, outcome.number))


def _role(outcome: Outcome) -> str:
    """`baseline`, `finalist of 7`; nothing for a trial of the search."""
    if outcome.purpose == "search":
        return ""
    again = f" of {outcome.repeats}" if outcome.repeats is not None else ""
    return f"{outcome.purpose.replace('_', ' ')}{again}"


def _plain(text: str) -> str:
    """Text in which rich finds no markup."""
    return text.replace("[", r"\[")
