"""A study from its experiment file to its confirmed front: the loop over trials.

The driver asks the ledger, sends what it gets to a free slot, and tells the ledger what came
back; nothing else writes the storage or the run directory's index. After the search, the front
and the baseline are launched again, in mixed order, because the best of many noisy figures is
too good to be true.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from autotune.budget import failing_in_a_row, reason_to_stop, searched
from autotune.errors import MachineNotClean, NoMachineLeft
from autotune.experiment import Experiment
from autotune.front import Point, front_of, knee_of, points_of
from autotune.leash import end_leftovers
from autotune.ledger import Asked, Ledger
from autotune.records import Outcome, Progress, Purpose
from autotune.rundir import RunDir
from autotune.snapshot import Snapshot, snapshot
from autotune.space import Space
from autotune.trial import TrialPlan, write_outcome
from autotune.workers import Slot, TrialResult, ray_has_died, reopen_slot, unpack_folder

INTERRUPTED = "interrupted"
TICK_SECONDS = 0.25
STATUS_SECONDS = 5.0  # a slot that does not answer by then is asked again at the next tick
MAX_LOSSES_OF_A_CONFIGURATION = 2
MAX_LOSSES_IN_A_ROW_OF_A_HOST = 3


@dataclass
class Running:
    """A trial on its slot."""

    asked: Asked
    slot: Slot
    task: asyncio.Task[TrialResult]
    progress: Progress | None = None


@dataclass
class Conductor:
    """Runs one study on the slots given. `show` is called with what is going on, often."""

    run: RunDir
    experiment: Experiment
    space: Space
    ledger: Ledger
    slots: list[Slot]
    seed: int
    simulated_host: Path | None
    show: Callable[[Snapshot], None]
    outcomes: list[Outcome] = field(default_factory=list)
    running: dict[int, Running] = field(default_factory=dict)
    stopping: str | None = None
    _losses: Counter[str] = field(default_factory=Counter)
    _host_losses: Counter[str] = field(default_factory=Counter)

    async def conduct(self) -> str:
        """Search, then confirm; returns why the study ended.

        Raises:
            MachineNotClean: a trial left something behind; nothing further was started.
            NoMachineLeft: nothing is left to run trials on; what ran is asked again on resume.
        """
        reason = await self._run_stage(self._next_of_search)
        if self.stopping is None and failing_in_a_row(self.experiment.budget, self.outcomes):
            self.stopping = reason
        if self.stopping is None:
            left_over = self.ledger.take_planned()  # known-good ones that the budget did not reach
            self._plan_confirmation()
            await self._run_stage(self._next_planned)
            for planned in left_over:
                self.ledger.plan(planned.params, planned.purpose, planned.repeats)
        reason = self.stopping or reason
        if not self.slots:
            raise NoMachineLeft(f"{reason}; what was measured is kept, --resume continues")
        return reason

    def stop(self, reason: str) -> None:
        """Start nothing further and end what runs, cleanly."""
        if self.stopping is None:
            self.stopping = reason
            for running in self.running.values():
                running.slot.actor.cancel.remote()

    def abandon(self) -> None:
        """Kill what runs, now: the servers of this host first, then the actors."""
        for running in self.running.values():
            end_leftovers(self.run.trial(running.asked.number))
            ray.kill(running.slot.actor)

    # -- the loop ---------------------------------------------------------------------------
    async def _run_stage(self, next_trial: Callable[[], Asked | str]) -> str:
        """Keep every slot busy until `next_trial` says why there is nothing more to start."""
        reason = ""
        while True:
            while not reason and self.stopping is None and (slot := self._free_slot()):
                asked = next_trial()
                if isinstance(asked, str):
                    reason = asked
                else:
                    self._start(asked, slot)
            if not self.running:
                return reason or self.stopping or "no machine is left"
            await self._wait_for_a_trial()
            if reason and self.stopping is None and self.ledger.planned:
                reason = ""  # a lost trial waits to be asked again

    def _next_of_search(self) -> Asked | str:
        counted = sum(1 for r in self.running.values() if r.asked.repeats is None)
        budget = self.experiment.budget
        reason = reason_to_stop(budget, self.outcomes, counted, len(self.slots))
        if reason is not None:
            return reason
        self._plan_drift_check()
        return self.ledger.ask() or "every configuration of the space has been tried"

    def _next_planned(self) -> Asked | str:
        if self.ledger.planned:
            return self.ledger.ask() or "confirmed"
        return "confirmed"

    def _free_slot(self) -> Slot | None:
        busy = {id(running.slot) for running in self.running.values()}
        return next((slot for slot in self.slots if id(slot) not in busy), None)

    def _start(self, asked: Asked, slot: Slot) -> None:
        plan = TrialPlan(
            experiment=self.experiment,
            number=asked.number,
            params=asked.params,
            trial_dir=self.run.create_trial(asked.number),
            purpose=asked.purpose,
            repeats=asked.repeats,
            front=tuple((p.single, p.peak) for p in front_of(points_of(self.outcomes))),
            reference_answers=self._reference_answers(),
            simulated_host=self.simulated_host,
        )
        task = asyncio.create_task(_result_of(slot, plan))
        self.running[asked.number] = Running(asked, slot, task)

    async def _wait_for_a_trial(self) -> None:
        tasks = {running.task for running in self.running.values()}
        await asyncio.wait(tasks, timeout=TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if self.slots and ray_has_died():
            self.slots = []
            self.stop("Ray died")
        for running in [r for r in self.running.values() if r.task.done()]:
            del self.running[running.asked.number]
            await self._finish(running)
        await asyncio.gather(*(self._look_at(running) for running in self.running.values()))
        self.show(snapshot(self))

    async def _look_at(self, running: Running) -> None:
        """Ask the slot what its trial is doing; a slot that died is found by its task."""
        status = running.slot.actor.status.remote()
        with contextlib.suppress(RayActorError, TimeoutError):
            running.progress = await asyncio.wait_for(status, STATUS_SECONDS) or running.progress

    # -- results ----------------------------------------------------------------------------
    async def _finish(self, running: Running) -> None:
        try:
            result = running.task.result()
        except RayTaskError as error:  # a fault of autotune's own: the slot lives on
            self._keep_traceback(running, str(error))
            result = TrialResult(self._lost(running, f"internal error: {_last_line(error)}"))
        except RayError as error:
            result = TrialResult(self._lost(running, _last_line(error)))
            await self._replace_slot(running.slot)
        if result.folder is not None:
            unpack_folder(result.folder, self.run.trial(running.asked.number))
        outcome = result.outcome or self._lost(running, result.not_clean or "")
        self._record(outcome, running)
        if result.not_clean is not None:
            self.stop("the machine is not clean")
            raise MachineNotClean(result.not_clean)

    def _keep_traceback(self, running: Running, text: str) -> None:
        (self.run.create_trial(running.asked.number) / "error.txt").write_text(text + "\n")

    def _record(self, outcome: Outcome, running: Running) -> None:
        outcome = outcome.model_copy(update={"machine": running.slot.facts.fingerprint.digest})
        write_outcome(outcome, self.run.create_trial(outcome.number))
        self.ledger.tell(outcome)
        self.outcomes.append(outcome)
        if outcome.state == "interrupted":
            self.ledger.plan(outcome.params, outcome.purpose, outcome.repeats)  # for --resume
        elif outcome.state == "lost":
            self._count_loss(outcome, running.slot)
        else:
            self._host_losses[running.slot.facts.hostname] = 0

    def _lost(self, running: Running, why: str) -> Outcome:
        asked, settings = running.asked, self.space.settings(running.asked.params)
        progress = running.progress
        return Outcome(
            number=asked.number,
            state="interrupted" if self.stopping is not None else "lost",
            engine=settings.engine,
            params=asked.params,
            command=settings.command,
            env={},
            key=asked.key,
            warnings=(why,),
            seconds={progress.phase: progress.total_seconds} if progress else {},
            purpose=asked.purpose,
            repeats=asked.repeats,
            simulated=self.simulated_host is not None,
            finished_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )

    def _count_loss(self, outcome: Outcome, slot: Slot) -> None:
        """Ask a lost trial again, at most twice; leave out a host that keeps losing them."""
        self._losses[outcome.key] += 1
        if self._losses[outcome.key] <= MAX_LOSSES_OF_A_CONFIGURATION and self.stopping is None:
            self.ledger.plan(outcome.params, outcome.purpose, outcome.repeats)
        host = slot.facts.hostname
        self._host_losses[host] += 1
        if self._host_losses[host] >= MAX_LOSSES_IN_A_ROW_OF_A_HOST:
            self.slots = [other for other in self.slots if other.facts.hostname != host]
            if not self.slots:
                self.stop(f"{host} lost {self._host_losses[host]} trials in a row")

    async def _replace_slot(self, slot: Slot) -> None:
        """Open a new actor where one died; without its node, the slot is gone."""
        self.slots = [other for other in self.slots if other is not slot]
        if self.stopping is None:
            new = await reopen_slot(slot)
            self.slots += [new] if new is not None else []

    def _reference_answers(self) -> tuple[str, ...]:
        return next((o.answers for o in self.outcomes if o.state == "ok" and o.answers), ())

    # -- what is measured again ---------------------------------------------------------------
    def _plan_drift_check(self) -> None:
        """Measure the baseline again in the middle of the search."""
        half = self.experiment.budget.trials // 2
        if half >= 5 and len(searched(self.outcomes)) == half and not self._was_repeated("drift"):
            self._plan_again(self._baseline(), "drift")

    def _plan_confirmation(self) -> None:
        """Plan fresh launches of the front's members and the baseline, in mixed order."""
        confirm, baseline = self.experiment.confirm, self._baseline()
        front = front_of(points_of(self.outcomes))
        numbers = {point.number for point in finalists(front, confirm.finalists)}
        if baseline is not None and baseline.state == "ok":
            numbers.add(baseline.number)
        if confirm.relaunches == 0 or len(numbers) == 0:
            return
        done = Counter(o.repeats for o in self.outcomes if o.purpose == "finalist")
        missing = [
            number for number in sorted(numbers) for _ in range(confirm.relaunches - done[number])
        ]
        random.Random(self.seed).shuffle(missing)
        by_number = {outcome.number: outcome for outcome in self.outcomes}
        for number in missing:
            self._plan_again(by_number[number], "finalist")

    def _plan_again(self, outcome: Outcome | None, purpose: Purpose) -> None:
        if outcome is not None and outcome.state == "ok":
            self.ledger.plan(outcome.params, purpose, outcome.number)

    def _baseline(self) -> Outcome | None:
        return next((o for o in searched(self.outcomes) if o.purpose == "baseline"), None)

    def _was_repeated(self, purpose: Purpose) -> bool:
        running = (r.asked.purpose for r in self.running.values())
        return purpose in {*running, *(o.purpose for o in self.outcomes)}


async def _result_of(slot: Slot, plan: TrialPlan) -> TrialResult:
    """A Ray reference is awaitable but no coroutine; a task needs one."""
    result: TrialResult = await slot.actor.run.remote(plan)
    return result


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def finalists(front: tuple[Point, ...], most: int) -> list[Point]:
    """At most `most` members, both ends first, then evenly between: what people choose from."""
    if len(front) <= most:
        return list(front)
    if most <= 1:
        return [knee_of(front)] if most else []
    steps = [round(i * (len(front) - 1) / (most - 1)) for i in range(most)]
    return [front[i] for i in steps]
