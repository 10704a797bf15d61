"""What is launched again before it is believed: the front's members and the baseline."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from autotune.budget import searched
from autotune.experiment import Confirm
from autotune.front import Point, front_of, knee_of, points_of
from autotune.records import Outcome


def baseline_of(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The first conclusive launch of the first known-good configuration."""
    return next((o for o in searched(outcomes) if o.purpose == "baseline"), None)


def to_confirm(confirm: Confirm, outcomes: Sequence[Outcome], seed: int) -> list[Outcome]:
    """The trials to launch again, in mixed order, as often as each still has to be.

    In mixed order because a host that warms up or drifts must not favour the last ones.
    """
    baseline = baseline_of(outcomes)
    numbers = {p.number for p in finalists(front_of(points_of(outcomes)), confirm.finalists)}
    if baseline is not None and baseline.state == "ok":
        numbers.add(baseline.number)
    # One that was interrupted or lost says nothing, and is made good.
    conclusive = [o for o in outcomes if o.state in ("ok", "infeasible")]
    done = Counter(o.repeats for o in conclusive if o.purpose == "finalist")
    missing = [n for n in sorted(numbers) for _ in range(confirm.relaunches - done[n])]
    random.Random(seed).shuffle(missing)
    by_number = {outcome.number: outcome for outcome in outcomes}
    return [by_number[number] for number in missing]


def finalists(front: tuple[Point, ...], most: int) -> list[Point]:
    """At most `most` members, both ends first, then evenly between: what people choose from."""
    if len(front) <= most:
        return list(front)
    if most <= 1:
        return [knee_of(front)] if most else []
    steps = [round(i * (len(front) - 1) / (most - 1)) for i in range(most)]
    return [front[i] for i in steps]
