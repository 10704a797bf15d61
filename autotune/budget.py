"""When a study may start another trial, and how many: trials, hours, failures in a row."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from autotune.experiment import Budget
from autotune.front import failed_to_run
from autotune.records import Outcome
from autotune.verdict import failure_groups

SEARCH_PURPOSES = ("baseline", "known_good", "search")


def searched(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The launches that count as trials: conclusive ones, confirmations left out."""
    return [
        outcome
        for outcome in outcomes
        if outcome.purpose in SEARCH_PURPOSES and outcome.state in ("ok", "infeasible")
    ]


def spent_seconds(outcomes: Sequence[Outcome], slots: int) -> float:
    """The study's length so far: what all trials took, shared by the slots that ran them."""
    return sum(sum(outcome.seconds.values()) for outcome in outcomes) / max(slots, 1)


def trial_seconds(outcomes: Sequence[Outcome]) -> float | None:
    """How long a trial takes: the median of those that were measured, else of all."""
    totals = [sum(o.seconds.values()) for o in outcomes if o.state == "ok"]
    totals = totals or [sum(o.seconds.values()) for o in outcomes if o.seconds]
    return median(totals) if totals else None


def expected_seconds(outcomes: Sequence[Outcome]) -> float | None:
    """How long the next trial is likely to take: a failed one is over sooner."""
    trials = searched(outcomes)
    failed = [sum(o.seconds.values()) for o in trials if o.state == "infeasible"]
    usual = trial_seconds(outcomes)
    if usual is None or not failed:
        return usual
    return usual + (median(failed) - usual) * len(failed) / len(trials)


def overrun(budget: Budget, outcomes: Sequence[Outcome], slots: int, launches: int) -> bool:
    """Whether so many further launches would take longer than the hours that are left."""
    usual = trial_seconds(outcomes)
    if budget.hours is None or usual is None:
        return False
    needed = usual * max(1.0, launches / max(slots, 1))
    return spent_seconds(outcomes, slots) + needed > budget.hours * 3600


def trials_left(
    budget: Budget,
    outcomes: Sequence[Outcome],
    running: int,
    slots: int,
    size: int | None,
    again: int,
) -> int:
    """How many further trials may be started, as far as budget and space say; `running` do run.

    `size` is how many configurations there are, None if they are countless; `again` how many
    launches are kept for confirming.
    """
    most = budget.trials if size is None else min(budget.trials, size)
    left = most - len(searched(outcomes)) - running
    if budget.hours is not None and (expected := trial_seconds(outcomes)):
        seconds = budget.hours * 3600 - spent_seconds(outcomes, slots)
        left = min(left, int(seconds * max(slots, 1) / expected) - running - again)
    return max(left, 0)


def reason_to_stop(
    budget: Budget, outcomes: Sequence[Outcome], running: int, slots: int, again: int = 0
) -> str | None:
    """Why no further trial may be started, or None.

    `again` is how many launches will confirm the result if this trial is the last.
    """
    if len(searched(outcomes)) + running >= budget.trials:
        return f"{budget.trials} trial{'' if budget.trials == 1 else 's'}"
    if overrun(budget, outcomes, slots, 1 + again):
        what = "another trial and the launches that confirm" if again else "another trial"
        return f"{budget.hours:g} hours: {what} would overrun them"
    return failing_in_a_row(budget, outcomes)


def failing_in_a_row(budget: Budget, outcomes: Sequence[Outcome]) -> str | None:
    """The causes, counted, if the last trials all failed to be measured; else None."""
    last = list(filter(failed_to_run, searched(outcomes)[-budget.consecutive_failures :]))
    if len(last) < budget.consecutive_failures:
        return None
    return f"{len(last)} trials failed in a row: {counted_causes(last)}"


def counted_causes(outcomes: Sequence[Outcome]) -> str:
    """`3x out_of_memory during load: torch.OutOfMemoryError…; 1x …`, the most frequent first."""
    groups = failure_groups(outcomes)
    return "; ".join(f"{len(g.trials)}x {g.kind} during {g.phase}: {g.cause}" for g in groups)
