"""The winner's curse: how far the figures of a study's answer are from the truth.

    python -m tests.benchmarks.bench_winner [STUDIES]

Each synthetic study measures 40 configurations with 2 % noise, launches the front's members again
as `study.py` would, and reports what `front.points_of` makes of it. The truth is known. Bar: the
figures of what is taken home are within 1 % of their true values on average.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from autotune.confirmation import most_launches, to_confirm
from autotune.experiment import Confirm
from autotune.front import Point, front_of, knee_of, points_of
from autotune.records import OBJECTIVES, PEAK, SINGLE, Outcome, Purpose
from tests.runs import bare_outcome

NOISE, CONFIGURATIONS = 0.02, 40
Truth = dict[int, dict[str, float]]


def truths(rng: random.Random) -> Truth:
    """Configurations of one study: speed differs by a tenth, and the objectives conflict."""
    drawn = {}
    for number in range(CONFIGURATIONS):
        trade, quality = rng.uniform(-0.3, 0.3), rng.gauss(0.0, 0.1)
        drawn[number] = {
            SINGLE: 80.0 * (1 + trade) * (1 + quality),
            PEAK: 2000.0 * (1 - trade) * (1 + quality),
        }
    return drawn


def measured(
    number: int, truth: dict[str, float], rng: random.Random, of: int | None = None
) -> Outcome:
    """One launch with its noise."""
    purpose: Purpose = "search" if of is None else "finalist"
    return bare_outcome(
        number,
        str(number if of is None else of),
        values={name: truth[name] * rng.gauss(1.0, NOISE) for name in OBJECTIVES},
        spread={name: truth[name] * NOISE for name in OBJECTIVES},
        purpose=purpose,
        repeats=of,
    )


@dataclass(frozen=True)
class Study:
    """Relative errors of the picks' figures, before and after; launches that this took."""

    claimed: list[float]
    confirmed: list[float]
    launches: int


def study(seed: int) -> Study:
    """One study, confirmed."""
    rng = random.Random(seed)
    truth = truths(rng)
    outcomes = [measured(number, truth[number], rng) for number in truth]
    claimed = _errors(points_of(outcomes), truth)
    left = most_launches(confirm := Confirm())
    while due := to_confirm(confirm, outcomes, seed)[:left]:
        for first in due:
            again = measured(len(outcomes), truth[first.number], rng, of=first.number)
            outcomes.append(again)
        left -= len(due)
    return Study(claimed, _errors(points_of(outcomes), truth), len(outcomes) - CONFIGURATIONS)


def _errors(points: Sequence[Point], truth: Truth) -> list[float]:
    """Of what is exported: both ends of the front on their objective, the knee on both."""
    front = front_of(points)
    knee = knee_of(front)
    picks = [(front[0], SINGLE), (front[-1], PEAK), (knee, SINGLE), (knee, PEAK)]
    return [point.values[name] / truth[point.number][name] - 1 for point, name in picks]


def main() -> None:
    """Print mean errors over the studies asked for (default 500)."""
    studies = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    results = [study(seed) for seed in range(studies)]
    claimed = [error for result in results for error in result.claimed]
    confirmed = [error for result in results for error in result.confirmed]
    for label, errors in (("as first claimed", claimed), ("as confirmed", confirmed)):
        size = fmean(map(abs, errors))
        print(f"{label:17} mean error {fmean(errors):+.2%}, mean size of error {size:.2%}")
    launches = sorted(result.launches for result in results)
    print(f"launches: {median(launches):g}, of one study in a hundred {launches[-studies // 100]}")


if __name__ == "__main__":
    main()
