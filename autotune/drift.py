"""Whether the machine itself changed while a study ran: the baseline measured again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.records import OBJECTIVES, Outcome
from autotune.run import Run

SMALLEST = 0.015
"""Relative change that is called drift only if it is also beyond both spreads."""


@dataclass(frozen=True)
class Drift:
    """A later launch of the baseline: ratios to its first launch, by objective."""

    trial: int
    at: str
    ratios: Mapping[str, float]
    moved: tuple[str, ...]

    @property
    def beyond_spread(self) -> bool:
        return bool(self.moved)


def drift_of(run: Run) -> tuple[Drift, ...]:
    """The baseline's later launches in order of time; empty if it was measured once or never."""
    first = run.outcome(run.baseline) if run.baseline is not None else None
    if first is None or not first.values:
        return ()
    again = [
        o
        for o in run.outcomes
        if o.repeats == first.number
        and o.purpose != "host_baseline"
        and o.state == "ok"
        and o.values
    ]
    return tuple(_drift(first, o) for o in sorted(again, key=lambda outcome: outcome.started_at))


def _drift(first: Outcome, again: Outcome) -> Drift:
    before, after = first.values or {}, again.values or {}
    ratios = {n: after[n] / before[n] for n in OBJECTIVES if n in after and before.get(n)}
    moved = tuple(name for name in ratios if _moved(name, first, again))
    return Drift(again.number, again.started_at[:16], ratios, moved)


def _moved(name: str, first: Outcome, again: Outcome) -> bool:
    before, after = (first.values or {})[name], (again.values or {})[name]
    spread = first.spread.get(name, 0.0) + again.spread.get(name, 0.0)
    return abs(after - before) > max(spread, SMALLEST * before)
