"""The report as one HTML file: everything is in it, nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from autotune.records import OBJECTIVES, Outcome
from autotune.report.facts import Facts
from autotune.report.plots import drift_plot, front_plot, phase_plot
from autotune.run import Run
from autotune.verdict import (
    TITLES,
    FrontRow,
    figure_text,
    gain_text,
    number_text,
    params_text,
    without_outcome,
)

_CHOICES = (("single", "Fastest single stream"), ("knee", "Balanced"), ("peak", "Highest peak"))


@dataclass(frozen=True)
class Choice:
    """One way of choosing on the front, as a card."""

    pick: str
    title: str
    row: FrontRow


@dataclass(frozen=True)
class TrialRow:
    number: int
    state: str
    single: str
    peak: str
    minutes: str
    params: str


def html_page(facts: Facts) -> str:
    """The whole page."""
    environment = Environment(
        loader=PackageLoader("autotune.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    loader = environment.loader
    assert loader is not None
    style, _, _ = loader.get_source(environment, "report.css")
    return environment.get_template("report.html.j2").render(
        facts=facts,
        style=Markup(style),
        plots={name: Markup(svg) for name, svg in _plots(facts)},
        choices=tuple(_choices(facts)),
        rows=tuple(_trial_rows(facts.run)),
        simulated=any(outcome.simulated for outcome in facts.run.outcomes),
        objectives=OBJECTIVES,
        titles=TITLES,
        figure=figure_text,
        gain=gain_text,
        number=number_text,
        explanations=facts.explanations,
        other_causes=facts.other_causes,
    )


def _plots(facts: Facts) -> Iterator[tuple[str, str]]:
    if facts.front:
        yield "front", front_plot(facts.run)
    if facts.drift:
        yield "drift", drift_plot(facts.drift)
    if facts.phases:
        yield "phases", phase_plot(facts.phases)


def _choices(facts: Facts) -> Iterator[Choice]:
    """The three picks; one card with the names of all where they are the same trial."""
    for row in facts.front:
        picks = [choice for choice in _CHOICES if choice[0] in row.mark.split(", ")]
        if picks:
            title = ", ".join([picks[0][1], *(title.lower() for _, title in picks[1:])])
            title = "Best on both" if len(facts.run.front) == 1 else title
            yield Choice(picks[0][0], title, row)


def _trial_rows(run: Run) -> Iterator[TrialRow]:
    for outcome in run.outcomes:
        yield _trial_row(outcome)
    for number in without_outcome(run):
        yield TrialRow(number, "running" if run.live else "interrupted", "", "", "", "")


def _trial_row(outcome: Outcome) -> TrialRow:
    values = outcome.values or {}
    single, peak = (number_text(values[n]) if n in values else "" for n in OBJECTIVES)
    role = "" if outcome.purpose == "search" else f", {outcome.purpose}"
    again = "" if outcome.repeats is None else f" of {outcome.repeats}"
    kind = outcome.failure.kind.value.replace("_", " ") if outcome.failure else outcome.state
    return TrialRow(
        number=outcome.number,
        state=f"{kind}{role}{again}",
        single=single,
        peak=peak,
        minutes=f"{sum(outcome.seconds.values()) / 60:.1f}" if outcome.seconds else "",
        params=params_text(outcome.params),
    )
