"""How long a study still takes: what it is going to launch, shared by its slots.

A trial is expected to take what trials took so far, those that failed included; a finalist was
measured before, and takes as long as what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.budget import expected_seconds, trial_seconds, trials_left
from autotune.confirmation import expected_launches, launches_due
from autotune.experiment import Experiment
from autotune.records import Outcome


def search_seconds_left(
    experiment: Experiment,
    outcomes: Sequence[Outcome],
    running: Sequence[float],
    *,
    slots: int,
    size: int | None,
) -> float | None:
    """Seconds until the search and its confirmation end; None before any trial has ended.

    Args:
        running: how long each running trial has taken so far, seconds.
        size: how many configurations the space has; None if they are countless.
    """
    usual, each = trial_seconds(outcomes), expected_seconds(outcomes)
    if usual is None or each is None:
        return None
    budget, due = experiment.budget, launches_due(experiment, outcomes)
    most = expected_launches(experiment, due, budget.trials)
    trials = trials_left(budget, outcomes, len(running), slots, size, again=most)
    again = expected_launches(experiment, due, trials + len(running))
    return _shared(running, trials, each, slots) + _shared([], again, usual, slots)


def confirmation_seconds_left(
    outcomes: Sequence[Outcome], running: Sequence[float], waiting: int, *, slots: int
) -> float | None:
    """Seconds until what is launched again now has ended; `waiting` of them have not begun.

    What this brings to the front is launched after it, and nobody knows how many those are.
    """
    usual = trial_seconds(outcomes)
    return None if usual is None else _shared(running, waiting, usual, slots)


def _shared(running: Sequence[float], count: int, each: float, slots: int) -> float:
    """Seconds until the running ones and `count` further launches of `each` seconds have ended."""
    left = [max(each - elapsed, 0.0) for elapsed in running]
    work = sum(left) + count * each
    return max(work / max(slots, 1), each if count else max(left, default=0.0))
