"""A trial on its slot: started, looked at, and told when nobody saw its end."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from ray.exceptions import RayActorError

from autotune.ledger import Asked
from autotune.losses import unmeasured
from autotune.records import Outcome, Progress, State
from autotune.space import Space
from autotune.trial import TrialPlan
from autotune.workers import Slot, TrialResult

STATUS_SECONDS = 5.0  # a slot that does not answer by then is asked again at the next look


@dataclass
class Running:
    """A trial on its slot; `progress` is what it was doing when it was last looked at."""

    asked: Asked
    slot: Slot
    task: asyncio.Task[TrialResult]
    progress: Progress | None = None

    async def look(self) -> None:
        """Ask the slot what its trial is doing; a slot that died is found by its task."""
        status = self.slot.actor.status.remote()
        with contextlib.suppress(RayActorError, TimeoutError):
            self.progress = await asyncio.wait_for(status, STATUS_SECONDS) or self.progress

    def unseen(self, space: Space, state: State, why: str, *, simulated: bool) -> Outcome:
        """The outcome of a trial whose end nobody saw."""
        progress, facts = self.progress, self.slot.facts
        return unmeasured(
            self.asked,
            space,
            state,
            warnings=(why,),
            seconds={progress.phase: progress.total_seconds} if progress else {},
            simulated=simulated,
            machine=facts.fingerprint.digest,
            host=facts.hostname,
        )


def started(asked: Asked, slot: Slot, plan: TrialPlan, *, exclusive: bool) -> Running:
    """Run the plan on a free slot; `exclusive`: no neighbour is measured at the same time."""
    return Running(asked, slot, asyncio.create_task(_result_of(slot, plan, exclusive)))


async def _result_of(slot: Slot, plan: TrialPlan, exclusive: bool) -> TrialResult:
    """A Ray reference is awaitable but no coroutine; a task needs one."""
    result: TrialResult = await slot.actor.run.remote(plan, exclusive)
    return result
