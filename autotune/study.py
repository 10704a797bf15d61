"""A study from its experiment file to its confirmed front: the loop over trials.

The driver asks the ledger, sends what it gets to a free slot, and tells the ledger what came
back; nothing else writes the storage or the run directory's index. After the search, the front
and the baseline are launched again, in mixed order, because the best of many noisy figures is
too good to be true; and again whoever this brings to the front.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import ray
from ray.exceptions import RayError, RayTaskError

from autotune.budget import SEARCH_PURPOSES, failing_in_a_row, overrun, reason_to_stop, searched
from autotune.cluster import ray_has_died
from autotune.confirmation import (
    broken_machine,
    expected_launches,
    launches_due,
    most_launches,
    next_round,
)
from autotune.errors import MachineNotClean, NoMachineLeft
from autotune.experiment import Experiment
from autotune.front import baseline_of
from autotune.hosts import Hosts
from autotune.leash import end_leftovers
from autotune.ledger import Asked, Ledger
from autotune.parcel import unpack
from autotune.records import Outcome, Purpose, State
from autotune.rundir import RunDir
from autotune.running import Running, started
from autotune.snapshot import Snapshot, snapshot
from autotune.space import Space
from autotune.trial import TrialPlan, write_outcome
from autotune.workers import Slot, TrialResult

INTERRUPTED = "interrupted"
TICK_SECONDS = 0.25
_LOOK_SECONDS_PER_SLOT = 1 / 32


@dataclass
class Conductor:
    """Runs one study on the slots given. `show` is called with what is going on, often."""

    run: RunDir
    experiment: Experiment
    space: Space
    ledger: Ledger
    hosts: Hosts
    seed: int
    simulated_host: Path | None
    show: Callable[[Snapshot], None]
    outcomes: list[Outcome] = field(default_factory=list)
    running: dict[int, Running] = field(default_factory=dict)
    stopping: str | None = None
    not_clean: list[str] = field(default_factory=list)
    round_ends: int | None = None  # outcomes once what is launched again now has ended
    _looked: float = 0.0  # time.monotonic() of the last look at the slots

    async def conduct(self) -> str:
        """Search, then confirm; returns why the study ended.

        Raises:
            MachineNotClean: a trial left something behind; its host got nothing more.
            NoMachineLeft: nothing is left to run trials on; what ran is asked again on resume.
        """
        self.ledger.drop_planned("finalist")  # of one that was cut off: they are chosen anew
        reason = await self._run_stage(self._next_of_search)
        if self.stopping is None and failing_in_a_row(self.experiment.budget, self.outcomes):
            self.stopping = reason
        if self.stopping is None:
            await self._confirm()
        self.hosts.close()
        for lost in self.hosts.losses.pending:
            self.ledger.plan(lost.params, lost.purpose, lost.repeats)  # for --resume
        reason = self.stopping or reason
        if self.not_clean:
            raise MachineNotClean("; ".join(self.not_clean))
        if self.hosts.are_gone:
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

    async def _confirm(self) -> None:
        """Launch the finalists and the baseline again, and whoever that makes a finalist.

        The hours were kept for the former; the latter are launched as far as there is time.
        """
        begun, left = len(self.outcomes), most_launches(self.experiment.confirm)
        while due := next_round(self.experiment, self.outcomes, self.seed)[:left]:
            slots, is_first = len(self.hosts.slots), self.round_ends is None
            if not is_first and overrun(self.experiment.budget, self.outcomes, slots, len(due)):
                break
            self.round_ends = len(self.outcomes) + len(due)
            left -= len(due)
            await self._run_stage(partial(self._next_to_confirm, iter(due)))
            self.stopping = self.stopping or broken_machine(self.experiment, self.outcomes, begun)
            if self.stopping is not None or len(self.outcomes) < self.round_ends:
                break  # the user's wish, a broken machine, or no host is left

    @cached_property
    def space_size(self) -> int | None:
        """How many configurations there are; None if they are countless."""
        return self.space.size()

    # -- the loop ---------------------------------------------------------------------------
    async def _run_stage(self, next_trial: Callable[[], Asked | str]) -> str:
        """Keep every slot busy until `next_trial` says why there is nothing more to start."""
        reason = ""
        while True:
            for slot in self.hosts.free({id(running.slot) for running in self.running.values()}):
                if self.stopping is not None:
                    break
                asked = self.hosts.own_trial(slot, self.ledger)
                if asked is None and not reason and self.hosts.is_comparable(slot):
                    reason = self._start_or_reason(next_trial(), slot)
                elif asked is not None:
                    self._start(asked, slot)
                await asyncio.sleep(0)  # it leaves before the next is thought of
            if not self.running and not (self.hosts.opening and not reason):
                return self.stopping or reason or "no machine is left"
            await self._wait_for_a_trial()
            waiting = self.ledger.planned or self.hosts.losses.pending
            if reason and self.stopping is None and waiting:
                reason = ""  # a lost trial waits to be asked again

    def _start_or_reason(self, asked: Asked | str, slot: Slot) -> str:
        """Start it, or say why there is nothing more to start."""
        if isinstance(asked, str):
            return asked
        self._start(asked, slot)
        return ""

    def _next_of_search(self) -> Asked | str:
        counted = sum(1 for r in self.running.values() if r.asked.purpose in SEARCH_PURPOSES)
        counted += sum(1 for lost in self.hosts.losses.pending if lost.purpose in SEARCH_PURPOSES)
        budget, slots, again = self.experiment.budget, len(self.hosts.slots), 0
        if budget.hours is not None:  # which alone asks for what comes after the trials
            due = launches_due(self.experiment, self.outcomes)
            again = expected_launches(self.experiment, due, counted + 1)
        reason = reason_to_stop(budget, self.outcomes, counted, slots, again)
        if reason is not None:
            return reason
        self._plan_drift_check()
        return self.ledger.ask() or "every configuration of the space has been tried"

    def _next_to_confirm(self, due: Iterator[Outcome]) -> Asked | str:
        outcome = next(due, None)
        if outcome is None:
            return "confirmed"
        return self.ledger.start(outcome.params, "finalist", outcome.number)

    def _start(self, asked: Asked, slot: Slot) -> None:
        plan = TrialPlan(
            experiment=self.experiment,
            number=asked.number,
            params=asked.params,
            trial_dir=self.run.create_trial(asked.number),
            purpose=asked.purpose,
            repeats=asked.repeats,
            front=self.hosts.front_on(slot, self.outcomes),
            reference_answers=self._reference_answers(),
            neighbours=slot.neighbours,
            cores=slot.cores,
            machine=slot.facts.fingerprint.digest,
            host=slot.facts.hostname,
        )
        exclusive = self.experiment.measure.exclusive_peak
        self.running[asked.number] = started(asked, slot, plan, exclusive=exclusive)

    async def _wait_for_a_trial(self) -> None:
        tasks = {*(running.task for running in self.running.values()), *self.hosts.opening}
        await asyncio.wait(tasks, timeout=self._tick, return_when=asyncio.FIRST_COMPLETED)
        if self.hosts.slots and ray_has_died():
            self.hosts.slots = []
            self.stop("Ray died")
        for running in [r for r in self.running.values() if r.task.done()]:
            del self.running[running.asked.number]
            await self._finish(running)
        if time.monotonic() - self._looked >= self._tick:
            self._looked = time.monotonic()
            await asyncio.gather(*(running.look() for running in self.running.values()))
            self.show(snapshot(self))

    @property
    def _tick(self) -> float:
        """Seconds between two looks at all slots: many slots are looked at less often, so that
        looking stays a small part of the driver's work."""
        return max(TICK_SECONDS, len(self.hosts.slots) * _LOOK_SECONDS_PER_SLOT)

    # -- results ----------------------------------------------------------------------------
    async def _finish(self, running: Running) -> None:
        try:
            result = running.task.result()
        except RayTaskError as error:  # a fault of autotune's own: the slot lives on
            self._keep_traceback(running, str(error))
            result = TrialResult(self._lost(running, f"internal error: {_last_line(error)}"))
        except RayError as error:
            result = TrialResult(self._lost(running, _last_line(error)))
            if self.stopping is None:
                self.hosts.replace(running.slot)
        if result.folder is not None:
            unpack(result.folder, self.run.trial(running.asked.number))
        outcome = result.outcome or self._lost(running, result.not_clean or "")
        self._record(outcome, running)
        if result.not_clean is not None:
            self._not_clean(result.not_clean, running.slot)

    def _not_clean(self, what: str, slot: Slot) -> None:
        """Run nothing more on that host; on the only host, end the study."""
        self.not_clean.append(what)
        self.hosts.leave_out_node(slot.facts.node, f"{slot.facts} is not clean: {what}")
        if self.hosts.are_gone:
            self.stop("the machine is not clean")

    def _keep_traceback(self, running: Running, text: str) -> None:
        (self.run.create_trial(running.asked.number) / "error.txt").write_text(text + "\n")

    def _record(self, outcome: Outcome, running: Running) -> None:
        facts = running.slot.facts
        outcome = self.hosts.told(outcome)
        write_outcome(outcome, self.run.create_trial(outcome.number))
        self.ledger.tell(outcome)
        self.outcomes.append(outcome)
        if outcome.state == "interrupted" and outcome.purpose != "host_baseline":
            self.ledger.plan(outcome.params, outcome.purpose, outcome.repeats)  # for --resume
        self.hosts.judge(outcome, facts)
        if self.hosts.are_gone:
            self.stop("; ".join(self.hosts.notes) or "no machine is left")

    def _lost(self, running: Running, why: str) -> Outcome:
        state: State = "interrupted" if self.stopping is not None else "lost"
        simulated = self.simulated_host is not None
        return running.unseen(self.space, state, why, simulated=simulated)

    def _reference_answers(self) -> tuple[str, ...]:
        return next((o.answers for o in self.outcomes if o.state == "ok" and o.answers), ())

    # -- what is measured again ---------------------------------------------------------------
    def _plan_drift_check(self) -> None:
        """Measure the baseline again in the middle of the search."""
        half = self.experiment.budget.trials // 2
        if half >= 5 and len(searched(self.outcomes)) == half and not self._was_repeated("drift"):
            baseline = baseline_of(self.outcomes)
            if baseline is not None and baseline.state == "ok":
                self.ledger.plan(baseline.params, "drift", baseline.number)

    def _was_repeated(self, purpose: Purpose) -> bool:
        running = (r.asked.purpose for r in self.running.values())
        return purpose in {*running, *(o.purpose for o in self.outcomes)}


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
