"""The report as Markdown, for a pull request or an issue."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.notes import escaped, failure_lines, front_lines, table
from autotune.records import OBJECTIVES
from autotune.report.facts import Facts, Finalist
from autotune.verdict import TITLES, number_text


def markdown_page(facts: Facts) -> str:
    """The report without plots and without the table of all trials."""
    return "\n".join(_lines(facts)).strip() + "\n"


def _lines(facts: Facts) -> Iterator[str]:
    yield f"## autotune: {facts.run.name}"
    yield ""
    yield facts.summary.split(": ", 1)[1] + f"; {facts.hours:.1f} hours of trials"
    yield ""
    yield from (f"- {sentence}" for sentence in facts.verdict)
    yield ""
    yield from front_lines(facts.run)
    yield from _why(facts)
    yield from _confirmed(facts)
    yield from _effects(facts)
    if facts.failures:
        yield from ("### Failures by cause", "", *failure_lines(facts.run))
    if facts.overrides:
        yield from ("### Asked for, and not what the server ran", "")
        yield from (f"- {one.text} ({len(one.trials)} trials)" for one in facts.overrides)
        yield ""
    yield from _conditions(facts)


def _why(facts: Facts) -> Iterator[str]:
    if facts.explanations:
        yield from ("### Why", "")
    for title, findings in facts.explanations:
        yield f"**{title}**"
        yield ""
        for finding in findings:
            advice = f" *Try: {escaped(finding.advice)}.*" if finding.advice else ""
            yield f"- {escaped(finding.statement)}{advice}"
        yield ""


def _confirmed(facts: Facts) -> Iterator[str]:
    if facts.finalists:
        yield from ("### Confirmed by fresh launches", "")
        titles = ("trial", "launches", *(f"{TITLES[n]}: claimed → confirmed" for n in OBJECTIVES))
        yield from table(titles, (_finalist_row(finalist) for finalist in facts.finalists))
        yield ""
    moved = [drift for drift in facts.drift if drift.beyond_spread]
    if facts.drift:
        held = "stayed within its spread" if not moved else "moved beyond its spread"
        yield from (f"The baseline, launched again {len(facts.drift)} times, {held}.", "")


def _finalist_row(finalist: Finalist) -> Iterator[str]:
    yield from (f"{finalist.trial}", f"{finalist.launches}")
    for name in OBJECTIVES:
        one = finalist.figures[name]
        yield f"{one.claimed} → {one.confirmed} ({one.change})"


def _effects(facts: Facts) -> Iterator[str]:
    for name in OBJECTIVES:
        if facts.effects[name]:
            yield from (f"### Parameters, {TITLES[name]} (median tok/s, count)", "")
            yield from table(("parameter", "worth (90 %)", "values"), _effect_rows(facts, name))
            yield ""


def _effect_rows(facts: Facts, name: str) -> Iterator[tuple[str, str, str]]:
    for effect in facts.effects[name]:
        levels = (f"{x.label}: {number_text(x.median)} ({x.count})" for x in effect.levels)
        worth = facts.worth[name].get(effect.parameter, "not known")
        yield effect.parameter, worth, ", ".join(levels)


def _conditions(facts: Facts) -> Iterator[str]:
    yield from ("### Conditions", "")
    rows = [("machine", *row) for row in facts.machine]
    rows += [("workload", *row) for row in facts.workload]
    rows += [("version", *row) for row in facts.versions]
    yield from table(("", "name", "value"), rows)
    yield ""
    yield from (f"- {what}: `{command}`" for what, command in facts.reproduce)
