"""What a study is doing at one moment: shown live, and written to `status.json`."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from autotune.budget import searched, spent_seconds
from autotune.front import Point, baseline_of, front_of, points_of
from autotune.records import PEAK, SINGLE, Frozen, Outcome, Phase, Progress
from autotune.time_left import confirmation_seconds_left, search_seconds_left
from autotune.verdict import differences, number_text, params_text, settings_text

if TYPE_CHECKING:
    from autotune.study import Conductor


# As many trials as can end between two looks at the study.
_RECENT = 16
_CAUSE_LENGTH = 160


class FrontRow(Frozen):
    """A member of the front so far; `params` is what it changes against the baseline."""

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
    confirming: bool = False  # what this brings to the front is launched after what is left
    recent: tuple[str, ...] = ()  # how the last trials ended, a line each, the newest last
    simulated_machines: tuple[str, ...] = ()  # the kinds that are simulated, as their servers know
    notes: tuple[str, ...] = ()  # of the hosts: who is gone or was left out, and why


def snapshot(study: Conductor) -> Snapshot:
    """The study's state now."""
    outcomes, budget = study.outcomes, study.experiment.budget
    points = points_of(outcomes)
    first = baseline_of(outcomes)
    failures = Counter(str(o.failure.kind) for o in outcomes if o.failure is not None)
    return Snapshot(
        name=study.experiment.name,
        pid=os.getpid(),
        simulated=study.simulated_host is not None,
        simulated_machines=study.hosts.simulated,
        trials_done=len(searched(outcomes)),
        trials_planned=budget.trials,
        launches=len(outcomes),
        slots=len(study.hosts.slots),
        running=tuple(_progress(r.asked.number, r.progress) for r in study.running.values()),
        baseline=next((_row(study, p) for p in points if first and p.number == first.number), None),
        front=tuple(_row(study, point) for point in front_of(points)),
        failures=dict(failures),
        spent_seconds=spent_seconds(outcomes, len(study.hosts.slots)),
        budget_seconds=None if budget.hours is None else budget.hours * 3600,
        eta_seconds=_eta(study),
        stopping=study.stopping,
        confirming=study.round_ends is not None,
        notes=tuple(study.hosts.notes),
        recent=tuple(_ended(study, outcome) for outcome in outcomes[-_RECENT:]),
    )


def _progress(number: int, progress: Progress | None) -> Progress:
    return progress or Progress(trial=number, phase=Phase.PREPARE)


def _row(study: Conductor, point: Point) -> FrontRow:
    outcome = next(o for o in study.outcomes if o.number == point.number)
    return FrontRow(
        number=point.number,
        single_stream_tok_s=point.single,
        peak_tok_s=point.peak,
        params="the baseline" if outcome.purpose == "baseline" else _settings(study, outcome),
    )


def _settings(study: Conductor, outcome: Outcome) -> str:
    """What a trial changes against the baseline; the whole configuration without one."""
    first = baseline_of(study.outcomes)
    if first is None or first.number == outcome.number:
        return params_text(outcome.params)
    return settings_text(differences(outcome.params, first.params))


def _ended(study: Conductor, outcome: Outcome) -> str:
    """`trial 7: 81.9 single, 2,370 peak tok/s: num_steps=3`, or its cause of failure."""
    role = "" if outcome.purpose == "search" else f" ({outcome.purpose.replace('_', ' ')})"
    about = f"again trial {outcome.repeats}" if outcome.repeats is not None else None
    what = about or _settings(study, outcome)
    if outcome.failure is not None:
        failure = outcome.failure
        cause = failure.cause[:_CAUSE_LENGTH]
        return f"trial {outcome.number}{role}: {failure.kind} during {failure.phase}: {cause}"
    if outcome.state == "interrupted":
        return f"trial {outcome.number}{role}: interrupted"
    if outcome.state == "lost":
        why = outcome.warnings[0][:_CAUSE_LENGTH] if outcome.warnings else "nobody knows why"
        return f"trial {outcome.number}{role}: lost with {outcome.host}: {why}"
    values = outcome.values or {}
    single, peak = (number_text(values[name]) if name in values else "-" for name in (SINGLE, PEAK))
    return f"trial {outcome.number}{role}: {single} single, {peak} peak tok/s: {what}"


def _eta(study: Conductor) -> float | None:
    """Seconds that are left; None if nobody can know."""
    if study.stopping is not None:
        return None
    running = [r.progress.total_seconds if r.progress else 0.0 for r in study.running.values()]
    slots = len(study.hosts.slots)
    if study.round_ends is not None:
        waiting = max(study.round_ends - len(study.outcomes) - len(running), 0)
        return confirmation_seconds_left(study.outcomes, running, waiting, slots=slots)
    return search_seconds_left(
        study.experiment, study.outcomes, running, slots=slots, size=study.space_size
    )
