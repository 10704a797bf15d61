"""What a study is doing at one moment: shown live, and written to `status.json`."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from autotune.budget import searched, spent_seconds, trial_seconds
from autotune.front import Point, front_of, points_of
from autotune.records import Frozen, Phase, Progress

if TYPE_CHECKING:
    from autotune.study import Conductor


class FrontRow(Frozen):
    """A member of the front so far."""

    number: int
    single_stream_tok_s: float
    peak_tok_s: float
    params: str


class Snapshot(Frozen):
    """Everything the live display shows; times in seconds."""

    name: str
    pid: int
    simulated: bool
    trials_done: int
    trials_planned: int
    launches: int
    slots: int
    running: tuple[Progress, ...]
    baseline: FrontRow | None
    front: tuple[FrontRow, ...]
    failures: dict[str, int]
    spent_seconds: float
    budget_seconds: float | None
    eta_seconds: float | None
    stopping: str | None


def snapshot(study: Conductor) -> Snapshot:
    """The study's state now."""
    outcomes, budget = study.outcomes, study.experiment.budget
    points = points_of(outcomes)
    baseline = next((o.number for o in searched(outcomes) if o.purpose == "baseline"), None)
    failures = Counter(str(o.failure.kind) for o in outcomes if o.failure is not None)
    return Snapshot(
        name=study.experiment.name,
        pid=os.getpid(),
        simulated=study.simulated_host is not None,
        trials_done=len(searched(outcomes)),
        trials_planned=budget.trials,
        launches=len(outcomes),
        slots=len(study.slots),
        running=tuple(_progress(r.asked.number, r.progress) for r in study.running.values()),
        baseline=next((_row(study, p) for p in points if p.number == baseline), None),
        front=tuple(_row(study, point) for point in front_of(points)),
        failures=dict(failures),
        spent_seconds=spent_seconds(outcomes, len(study.slots)),
        budget_seconds=None if budget.hours is None else budget.hours * 3600,
        eta_seconds=_eta(study),
        stopping=study.stopping,
    )


def _progress(number: int, progress: Progress | None) -> Progress:
    return progress or Progress(trial=number, phase=Phase.PREPARE)


def _row(study: Conductor, point: Point) -> FrontRow:
    params = next(o.params for o in study.outcomes if o.number == point.number)
    return FrontRow(
        number=point.number,
        single_stream_tok_s=point.single,
        peak_tok_s=point.peak,
        params=" ".join(f"{name}={value}" for name, value in params.items()),
    )


def _eta(study: Conductor) -> float | None:
    """Trials and confirmations that are left, at the usual length of a trial."""
    usual = trial_seconds(study.outcomes)
    if usual is None or study.stopping is not None:
        return None
    confirm = study.experiment.confirm
    confirmed = sum(1 for o in study.outcomes if o.purpose == "finalist")
    trials_left = max(study.experiment.budget.trials - len(searched(study.outcomes)), 0)
    confirmations_left = max((confirm.finalists + 1) * confirm.relaunches - confirmed, 0)
    in_flight = sum(r.progress.total_seconds for r in study.running.values() if r.progress)
    seconds = (trials_left + confirmations_left) * usual - in_flight
    return max(seconds, 0.0) / max(len(study.slots), 1)
