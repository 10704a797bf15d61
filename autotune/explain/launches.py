"""How far the launches of one configuration lie apart: what differs by less is not a difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from autotune.explain.finding import step_ms
from autotune.front import Point, is_measured
from autotune.records import Outcome
from autotune.run import Run


@dataclass(frozen=True)
class Step:
    """A configuration's decode step, or draft-and-verify cycle, at one request.

    `apart` is how far its launches lie apart, in milliseconds; 0 if it was launched once.
    """

    ms: float
    apart: float

    def beyond(self, other: Step) -> float:
        """The difference to `other` that their launches do not explain; 0 if they explain it."""
        between = math.hypot(self.apart, other.apart)
        return self.ms - other.ms if abs(self.ms - other.ms) > between else 0.0


def launches_of(run: Run, number: int) -> tuple[Outcome, ...]:
    """Every measured launch of a trial's configuration, the one that made it a finalist too.

    Left out are a host's own baseline, which is scaled, and the launch that looks for drift: if it
    differs, the machine is said to have changed, and no other launch is to be doubted for it.
    """
    first = run.outcome(number).repeats
    first = number if first is None else first
    return tuple(
        outcome
        for outcome in run.outcomes
        if first in (outcome.number, outcome.repeats)
        and outcome.purpose not in ("host_baseline", "drift")
        and is_measured(outcome)
    )


def with_launches(run: Run, point: Point) -> Point:
    """The point with a spread no smaller than what its launches differ by."""
    launches = [outcome.values or {} for outcome in launches_of(run, point.number)]
    spread = {
        name: max(width, _apart([values[name] for values in launches if name in values]))
        for name, width in point.spread.items()
    }
    return replace(point, spread=spread)


def step_of(run: Run, outcome: Outcome) -> Step | None:
    """The step of an outcome's configuration: the median of the launches that count for it."""
    steps = {o.number: ms for o in launches_of(run, outcome.number) if (ms := step_ms(o))}
    point = run.point(outcome.number if outcome.repeats is None else outcome.repeats)
    counted = point.launches if point is not None else (outcome.number,)
    found = [steps[number] for number in counted if number in steps]
    return Step(median(found), _apart([*steps.values()])) if found else None


def _apart(values: Sequence[float]) -> float:
    return max(values) - min(values) if values else 0.0
