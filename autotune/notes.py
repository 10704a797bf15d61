"""Markdown notes: what optuna-dashboard shows beside a trial and above a study."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from autotune.records import OBJECTIVES, PEAK, SINGLE, Outcome
from autotune.run import Run
from autotune.verdict import (
    TITLES,
    failure_groups,
    figure_text,
    front_rows,
    gain_text,
    number_text,
    params_text,
    summary_line,
)


def trial_note(outcome: Outcome) -> str:
    """How one trial ended: figures or cause, warnings, time by phase, and the command."""
    return "\n".join(_trial_lines(outcome)).strip() + "\n"


def _trial_lines(outcome: Outcome) -> Iterator[str]:
    role = outcome.purpose + (f" of {outcome.repeats}" if outcome.repeats is not None else "")
    yield f"**{outcome.state}** ({role}): {params_text(outcome.params)}"
    yield ""
    if outcome.failure is not None:
        failure = outcome.failure
        yield f"**{failure.kind}** during {failure.phase}:"
        yield from fenced([failure.cause, *_others(failure.excerpt, failure.cause)])
    for name in OBJECTIVES:
        if name in (outcome.values or {}):
            yield f"- {TITLES[name]}: **{_value_text(outcome, name)}** tok/s"
    yield from (f"- warning: {warning}" for warning in outcome.warnings)
    yield ""
    if outcome.seconds:
        yield f"Time: {_time_text(outcome)}"
        yield ""
    yield from fenced(_command_lines(outcome))
    if outcome.figures:
        yield from ("", *table(("figure", "value"), _figure_rows(outcome)))


def _value_text(outcome: Outcome, name: str) -> str:
    values, spread = outcome.values or {}, outcome.spread.get(name, 0.0)
    return number_text(values[name]) + (f" ± {spread:,.1f}" if spread else "")


def _others(excerpt: Iterable[str], cause: str) -> Iterator[str]:
    return (line for line in excerpt if line != cause)


def _time_text(outcome: Outcome) -> str:
    phases = ", ".join(f"{phase} {seconds:.0f} s" for phase, seconds in outcome.seconds.items())
    return f"{sum(outcome.seconds.values()) / 60:.1f} min ({phases})"


def _figure_rows(outcome: Outcome) -> Iterator[tuple[str, str]]:
    return ((name, _plain_number(value)) for name, value in sorted(outcome.figures.items()))


def _plain_number(value: float) -> str:
    """Four digits that mean something, never with an exponent above 1: `32,930`, `0.78`."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _command_lines(outcome: Outcome) -> list[str]:
    """The command over several lines of shell: a variable, or a flag with its values, on each."""
    lines = [f"{name}={shlex.quote(value)}" for name, value in outcome.env.items()]
    words: list[str] = []
    for word in outcome.command:
        if word.startswith("--") and words:
            lines.append(" ".join(words))
            words = []
        words.append(shlex.quote(word))
    return [f"{line} \\" for line in lines] + [" ".join(words)]


def study_note(run: Run) -> str:
    """What the study found: one line, the front as a table, failures by cause."""
    lines = [summary_line(run), "", *front_lines(run), *failure_lines(run)]
    return "\n".join(lines).strip() + "\n"


def front_lines(run: Run) -> Iterator[str]:
    """The front as a Markdown table; nothing if nothing was measured."""
    rows = front_rows(run)
    if not rows:
        return
    titles = ("trial", "single tok/s", "peak tok/s", "single", "peak", "", "changes")
    yield from table(
        titles,
        (
            (
                str(row.point.number),
                figure_text(row.point, SINGLE),
                figure_text(row.point, PEAK),
                *(gain_text(row.gains[name]) if row.gains else "" for name in OBJECTIVES),
                row.mark,
                row.changes_text,
            )
            for row in rows
        ),
    )
    yield ""


def failure_lines(run: Run) -> Iterator[str]:
    """The failures by cause as a Markdown table; nothing if nothing failed."""
    groups = failure_groups(run.outcomes)
    if groups:
        yield from table(
            ("failed", "kind", "phase", "cause"),
            ((str(len(g.trials)), g.kind, g.phase, g.cause) for g in groups),
        )
        yield ""


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A Markdown table; what could end a cell or open markup is escaped."""
    titles = list(titles)
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(escaped(text) for text in row)} |"


def escaped(text: str) -> str:
    """Text on one line in which Markdown sees no markup."""
    flat = " ".join(text.split())
    for sign in "\\|`*_<[":
        flat = flat.replace(sign, f"\\{sign}")
    return flat


def fenced(lines: Iterable[str]) -> list[str]:
    """A code block that no line can end."""
    lines = list(lines)
    fence = "```"
    while any(fence in line for line in lines):
        fence += "`"
    return [fence, *lines, fence]
