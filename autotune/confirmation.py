"""What is launched again before it is believed: the front's members and the baseline.

The figures of what was launched again replace those that were partly luck, so others can come to
the front: the search goes round until what people choose from has been launched again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

from autotune.budget import counted_causes
from autotune.conditions import forbidden
from autotune.experiment import Confirm, Experiment, Forbid
from autotune.front import (
    Point,
    baseline_of,
    failed_to_run,
    fresh_launches,
    front_of,
    is_the_machines,
    knee_of,
    picks_of,
    points_of,
    telling,
)
from autotune.records import Outcome

# Launches of one search, over those that its finalists and its baseline need if none falls back.
# In synthetic studies of 40 trials with 1 % noise 99 of 100 needed at most twice as many.
_MOST_OVER_FIRST = 3


def to_confirm(
    confirm: Confirm, outcomes: Sequence[Outcome], seed: int, forbid: Sequence[Forbid] = ()
) -> list[Outcome]:
    """The trials to launch again, in mixed order, as often as each still has to be.

    In mixed order because a host that warms up or drifts must not favour the last ones. What was
    forbidden after it was measured is no finalist: it is never launched.
    """
    outcomes = _allowed(telling(outcomes), forbid)
    numbers = {p.number for p in finalists(front_of(points_of(outcomes)), confirm.finalists)}
    if (baseline := _baseline(outcomes)) is not None:
        numbers.add(baseline.number)
    # One that was interrupted or lost says nothing, and is made good.
    conclusive = [o for o in outcomes if o.state in ("ok", "infeasible")]
    done = Counter(o.repeats for o in conclusive if o.purpose == "finalist")
    missing = [n for n in sorted(numbers) for _ in range(confirm.relaunches - done[n])]
    random.Random(seed).shuffle(missing)
    by_number = {outcome.number: outcome for outcome in outcomes}
    return [by_number[number] for number in missing]


def next_round(experiment: Experiment, outcomes: Sequence[Outcome], seed: int) -> list[Outcome]:
    """The trials to launch again next: what is due, or a witness alone if the last ones failed.

    Those of an earlier driver among them: it may have ended before its witness did.
    """
    witness = _witness(_allowed(outcomes, experiment.forbid))
    if witness is not None:
        return [witness]
    return to_confirm(experiment.confirm, outcomes, seed, experiment.forbid)


def _witness(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Whose launch tells whether the last ones failed or the machine did; None if nobody asks.

    If it fails too, none of them counts. The baseline, or, if it alone failed, the last that ran.
    """
    baseline, failed = _baseline(outcomes), {again.repeats for again in _failed_last(outcomes)}
    if baseline is None or not failed:
        return None
    if baseline.number not in failed:
        return baseline
    ran = [again.repeats for again in fresh_launches(outcomes) if not failed_to_run(again)]
    if len(failed) > 1 or not ran:
        return None
    return next(outcome for outcome in outcomes if outcome.number == ran[-1])


def broken_machine(experiment: Experiment, outcomes: Sequence[Outcome], begun: int) -> str | None:
    """What the last launches died of, if it is the machine's fault; else None.

    Further launches would only fail too. Where no baseline can tell, it is the machine if
    several configurations were launched again and none of them runs. `begun` is how many outcomes
    there were before this search launched anything again: the machine may have been repaired.
    """
    baseline = _baseline(_allowed(outcomes, experiment.forbid))
    failed = _failed_last(outcomes[begun:])
    nothing_runs = len(failed) == len(fresh_launches(outcomes[begun:]))
    several = len({outcome.repeats for outcome in failed}) > 1
    if not (is_the_machines(failed, baseline) if baseline else nothing_runs and several):
        return None
    return f"the last {len(failed)} fresh launches failed: {counted_causes(failed)}"


def _failed_last(launches: Sequence[Outcome]) -> list[Outcome]:
    """The fresh launches since the last one that ran, all of which failed."""
    return list(takewhile(failed_to_run, reversed(fresh_launches(launches))))


def _allowed(outcomes: Sequence[Outcome], forbid: Sequence[Forbid]) -> list[Outcome]:
    return [outcome for outcome in outcomes if forbidden(forbid, outcome.params) is None]


def _baseline(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The baseline, if it ran."""
    baseline = baseline_of(outcomes)
    return baseline if baseline is not None and baseline.state == "ok" else None


def launches_due(experiment: Experiment, outcomes: Sequence[Outcome]) -> int:
    """How many launches would confirm the result now."""
    return len(to_confirm(experiment.confirm, outcomes, 0, experiment.forbid))


def expected_launches(experiment: Experiment, due: int, trials: int) -> int:
    """How many launches confirm the result after `trials` more, if no finalist falls back then.

    Those that are `due` now, and more if the trials bring more to the front.
    """
    most = min(due + trials * experiment.confirm.relaunches, experiment.confirming_launches)
    return max(due, most)


def most_launches(confirm: Confirm) -> int:
    """How many launches one search may take to confirm: a noisy host must not go on for ever."""
    return _MOST_OVER_FIRST * (confirm.finalists + 1) * confirm.relaunches


def finalists(front: tuple[Point, ...], most: int) -> list[Point]:
    """At most `most` members: both ends and the knee, which people choose from, then others.

    Of the others those that were launched again already, then evenly between.
    """
    if len(front) <= most:
        return list(front)
    if most <= 1:
        return [knee_of(front)] if most else []
    picks = picks_of(front)
    chosen = {picks[name].number: picks[name] for name in ("single", "peak", "knee")}
    others = [point for point in front if point.number not in chosen]
    again = [point for point in others if point.claimed is not None]
    new = [point for point in others if point.claimed is None]
    between = _evenly(new, most - len(chosen) - len(again))
    return [*chosen.values(), *again, *between][:most]


def _evenly(points: Sequence[Point], count: int) -> list[Point]:
    """So many of the points (or all), at equal distances."""
    count = max(0, min(count, len(points)))
    return [points[(2 * i + 1) * len(points) // (2 * count)] for i in range(count)]
