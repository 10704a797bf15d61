"""What an explanation is made of, and what a rule may look at."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from autotune.experiment import SHIPPED
from autotune.export.command import flag_and_values, grouped
from autotune.front import Point, is_measured
from autotune.front_end import front_end_text
from autotune.gauges import believed, decoding_requests
from autotune.records import OBJECTIVES, PEAK, Outcome
from autotune.run import Run

Kind = Literal["cause", "fact", "unknown"]
_ORDER: Mapping[Kind, int] = {"cause": 0, "fact": 1, "unknown": 2}


@dataclass(frozen=True)
class Finding:
    """One statement with the figures it rests on.

    `name` says which rule speaks; a `cause` is what holds the trial back, a `fact` explains, an
    `unknown` says what the data does not tell. `advice` is what to try next, if anything.
    """

    name: str
    kind: Kind
    statement: str
    figures: Mapping[str, float] = field(default_factory=dict)
    advice: str = ""


@dataclass(frozen=True)
class Case:
    """A trial within its run, as rules look at it."""

    run: Run
    trial: Outcome

    @property
    def baseline(self) -> Outcome | None:
        """The baseline, if it was measured."""
        if self.run.baseline is None:
            return None
        outcome = self.run.outcome(self.run.baseline)
        return outcome if is_measured(outcome) else None

    @property
    def pooled(self) -> Point:
        """The pooled figures of its configuration; a repeat has those of the trial it repeats.

        A configuration that failed in a fresh launch has none; the trial's own are taken then.
        """
        trial = self.trial
        pooled = self.run.point(trial.number if trial.repeats is None else trial.repeats)
        spread = {name: trial.spread.get(name, 0.0) for name in OBJECTIVES}
        return pooled or Point(trial.number, trial.values or {}, spread, (trial.number,))

    def figure(self, name: str) -> float | None:
        return self.trial.figures.get(name)

    def gauge(self, name: str) -> float | None:
        """A gauge of running requests, unless the client's figures contradict it."""
        return believed(name, self.trial.figures, self._peak)

    @property
    def decoding(self) -> float | None:
        """Requests that decode at peak on average, by the client's figures alone."""
        return decoding_requests(self.trial.figures, self._peak)

    @property
    def _peak(self) -> float | None:
        return (self.trial.values or {}).get(PEAK)

    @property
    def concurrency(self) -> int | None:
        """Requests that the client kept in flight at peak."""
        value = self.figure("peak_concurrency") or self.workload("peak_concurrency")
        return int(value) if value else None

    @property
    def own_prompts(self) -> bool:
        """Whether the prompts are the user's: `input_tokens` says nothing of them."""
        workload = self.run.experiment.get("workload") or {}
        return bool(workload.get("prompts", SHIPPED) != SHIPPED)

    def workload(self, name: str) -> float | None:
        """A number of the workload, also where the file has it as text."""
        value = (self.run.experiment.get("workload") or {}).get(name)
        return number_of(value) if isinstance(value, int | float | str) else None


def cause(name: str, statement: str, advice: str = "", **figures: float | None) -> Finding:
    """What holds a trial back."""
    return _finding(name, "cause", statement, advice, figures)


def fact(name: str, statement: str, advice: str = "", **figures: float | None) -> Finding:
    """What explains a figure."""
    return _finding(name, "fact", statement, advice, figures)


def unknown(name: str, statement: str, **figures: float | None) -> Finding:
    """What the data does not tell."""
    return _finding(name, "unknown", statement, "", figures)


def _finding(
    name: str, kind: Kind, statement: str, advice: str, figures: Mapping[str, float | None]
) -> Finding:
    known = {figure: value for figure, value in figures.items() if value is not None}
    return Finding(name, kind, statement, known, advice)


Rule = Callable[[Case], Iterable[Finding]]
"""Looks at one trial; yields nothing where it does not apply."""


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Causes, then facts, then what is not known; otherwise as found."""
    return tuple(sorted(findings, key=lambda finding: _ORDER[finding.kind]))


# -- what an outcome says of its launch ----------------------------------------------------------


def speculates(outcome: Outcome) -> bool:
    """Whether the trial was launched with speculative decoding."""
    return any(word.startswith("--speculative") for word in outcome.command)


def speculative_steps(outcome: Outcome) -> int | None:
    """Tokens drafted in a row, from the server's settings or the command."""
    value = setting(outcome, "speculative_num_steps")
    if value is None:
        config = setting(outcome, "speculative_config")
        found = re.search(r"num_speculative_tokens\W+(\d+)", json.dumps(config))
        value = found[1] if found else None
    number = number_of(value)
    return int(number) if number is not None else None


def setting(outcome: Outcome, *names: str) -> object | None:
    """The first of these settings that the server reports, or that the command asks for."""
    for name in names:
        if outcome.effective.get(name) is not None:
            return outcome.effective[name]
    return asked_setting(outcome, *names)


def asked_setting(outcome: Outcome, *names: str) -> object | None:
    """The first of these settings that the command asks for; a bare flag is True."""
    asked = {
        flag.lstrip("-").replace("-", "_"): values[0] if values else True
        for flag, values in map(flag_and_values, grouped(outcome.command))
        if flag
    }
    return next((asked[name] for name in names if name in asked), None)


def number_of(value: object | None) -> float | None:
    """A setting as a number: of a list (capture sizes) the largest; None if it is none."""
    if isinstance(value, list):
        numbers = [number_of(item) for item in value]
        return max((number for number in numbers if number is not None), default=None)
    try:
        return float(str(value))
    except ValueError:
        return None


def step_ms(outcome: Outcome) -> float | None:
    """Milliseconds of one decode step, or of one draft-and-verify cycle, at one request.

    A cycle yields as many tokens as are accepted, so it takes TPOT times the accept length.
    """
    per_token = outcome.figures.get("single_p50_tpot_ms")
    if per_token is None:
        return None
    if not speculates(outcome):
        return per_token
    accepted = outcome.figures.get("single_accept_length")
    return per_token * accepted if accepted else None


def peaks_of_front_ends(one: Outcome, other: Outcome) -> str:
    """What a comparison of two peaks has to add where neither is that of the GPUs; else nothing."""
    if any(front_end_text(outcome.figures) is None for outcome in (one, other)):
        return ""
    return (
        " In both trials the server's front end limits the peak (front_end_limited): how their "
        "peaks compare says nothing about the GPUs."
    )
