"""Which configurations are worth having: pooled figures, the Pareto front, and the knee.

A configuration that was measured once carries the luck of that once: the best of forty noisy
figures is, on average, too high. So a configuration that was launched again as a finalist is
judged by its fresh launches alone; the figure that made it a finalist is kept as `claimed`.
A baseline was not selected by its figure: all its launches count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from autotune.records import OBJECTIVES, PEAK, SINGLE, FailureKind, Outcome


@dataclass(frozen=True)
class Point:
    """One configuration with its pooled figures, in tokens per second.

    `claimed` holds the first launch's values where fresh launches replaced them. `spread` is a
    half-width: at least that of one measurement, and at least half the range of the launches.
    """

    number: int
    values: Mapping[str, float]
    spread: Mapping[str, float]
    launches: tuple[int, ...]
    claimed: Mapping[str, float] | None = None

    @property
    def single(self) -> float:
        return self.values[SINGLE]

    @property
    def peak(self) -> float:
        return self.values[PEAK]

    @property
    def launched_once(self) -> bool:
        """Whether its figures carry the luck of one launch; a finalist's were measured again."""
        return self.claimed is None and len(self.launches) == 1


def is_measured(outcome: Outcome) -> bool:
    """Whether the trial was feasible and has both objectives, more than nothing of each."""
    values = outcome.values or {}
    return outcome.state == "ok" and all(values.get(name, 0.0) > 0 for name in OBJECTIVES)


def baseline_of(outcomes: Iterable[Outcome]) -> Outcome | None:
    """The first conclusive launch of the first known-good configuration: what all is compared
    with."""
    own = (outcome for outcome in outcomes if outcome.purpose == "baseline")
    return next(filter(_counts, own), None)


def telling(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Without the fresh launches that failed through the machine's fault."""
    baseline, nothing = baseline_of(outcomes), set()
    for all_failed, group in groupby(fresh_launches(outcomes), key=failed_to_run):
        streak = list(group)
        if all_failed and is_the_machines(streak, baseline):
            nothing |= {outcome.number for outcome in streak}
    return [outcome for outcome in outcomes if outcome.number not in nothing]


def fresh_launches(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """What was launched again to confirm the result and came to an end, in order."""
    fresh = (outcome for outcome in outcomes if outcome.purpose == "finalist")
    return sorted(filter(_counts, fresh), key=lambda outcome: outcome.number)


def is_the_machines(streak: Sequence[Outcome], baseline: Outcome | None) -> bool:
    """Whether fresh launches that failed one after another are the machine's fault.

    The baseline has been measured before. What fails together with it says nothing about the
    other configurations.
    """
    of = {outcome.repeats for outcome in streak}
    return baseline is not None and baseline.number in of and len(of) > 1


def failed_to_run(outcome: Outcome) -> bool:
    """Whether a launch ended without figures; one that missed a limit has some."""
    failure = outcome.failure
    return failure is not None and failure.kind is not FailureKind.LIMIT_VIOLATED


def points_of(outcomes: Sequence[Outcome]) -> tuple[Point, ...]:
    """One point for each configuration that was measured; repeats are pooled into it.

    A configuration that failed in a fresh launch is left out: it cannot be relied on. So is a
    host's own baseline: it is scaled to be the first host's, and says nothing of its own.
    """
    outcomes = [outcome for outcome in telling(outcomes) if outcome.purpose != "host_baseline"]
    repeats: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.repeats is not None:
            repeats.setdefault(outcome.repeats, []).append(outcome)
    points = []
    for first in outcomes:
        again = [outcome for outcome in repeats.get(first.number, ()) if _counts(outcome)]
        if first.repeats is None and is_measured(first) and all(map(is_measured, again)):
            points.append(_pool(first, again))
    return tuple(points)


def _counts(outcome: Outcome) -> bool:
    """A lost or interrupted launch says nothing about the configuration."""
    return outcome.state in ("ok", "infeasible")


def _pool(first: Outcome, again: Sequence[Outcome]) -> Point:
    selected = bool(again) and first.purpose != "baseline"
    counted = list(again) if selected else [first, *again]
    names = [*first.values] if first.values else []
    values = {
        name: median(outcome.values[name] for outcome in counted if outcome.values)
        for name in names
    }
    return Point(
        number=first.number,
        values=values,
        spread={name: _half_width(counted, name) for name in values},
        launches=tuple(outcome.number for outcome in counted),
        claimed=dict(first.values) if selected and first.values else None,
    )


def _half_width(counted: Sequence[Outcome], name: str) -> float:
    figures = [outcome.values[name] for outcome in counted if outcome.values]
    within = max(outcome.spread.get(name, 0.0) for outcome in counted)
    return max(within, (max(figures) - min(figures)) / 2)


def front_of(points: Iterable[Point]) -> tuple[Point, ...]:
    """The points that no other point beats on both objectives, fastest single stream first.

    Of points with equal values the one with the lowest number stays.
    """
    ordered = sorted(points, key=lambda point: (-point.single, -point.peak, point.number))
    front: list[Point] = []
    for point in ordered:
        if not front or point.peak > front[-1].peak:
            front.append(point)
    return tuple(front)


def knee_of(front: Sequence[Point]) -> Point:
    """The balanced member: the one with the largest product of the two objectives.

    From it to any other member one loses a larger factor on one objective than one gains on
    the other. It depends on no unit, no baseline and no far end of the front.
    """
    return max(front, key=lambda point: point.single * point.peak)


def picks_of(front: Sequence[Point]) -> dict[str, Point]:
    """What people choose from, by the names that `export --pick` takes: both ends and the knee."""
    return {"single": front[0], "knee": knee_of(front), "peak": front[-1]}
