"""One server from its launch to *drained*.

async with running(launch, engine, …) as server:   # launched, waited for, answering
    await server.guard(measure(…))                  # ends at once if the server dies
# here nothing of it is left: no process, no port, no GPU memory
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx

from autotune import masking
from autotune.clock import Clock
from autotune.control import ControlClient, with_key
from autotune.drain import Before, before_launch, not_clean, strangers, wait_until_drained
from autotune.engines.base import Engine
from autotune.engines.launch import api_key_of
from autotune.errors import TrialError, TrialFailed, TrialLost
from autotune.leash import Leash
from autotune.machine import Machine, port_answers, port_owners, process_name
from autotune.postmortem import death, evidence
from autotune.records import FailureKind, Launch, Phase
from autotune.starting import Starting, StartupLimits
from autotune.timeline import Timeline

T = TypeVar("T")

_LAST_WORDS_SECONDS = 0.3  # for what the work still has to say when its server has died
_DYING_SECONDS = 2.0  # a server whose connections break is usually about to end
_KILL_SECONDS = 75.0  # longer than the reaper itself tries
_MIN_DRAIN_SECONDS = 5.0


class StopLimits(Protocol):
    """What is needed of the experiment's `stop` section."""

    @property
    def grace_seconds(self) -> float: ...
    @property
    def memory_tolerance_mib(self) -> float: ...


class Server:
    """A server that runs. `http` is a client on `base_url`, for control calls only."""

    def __init__(
        self, launch: Launch, engine: Engine, leash: Leash, timeline: Timeline, clock: Clock
    ) -> None:
        self.launch, self.engine, self.clock = launch, engine, clock
        self.base_url = f"http://{launch.host}:{launch.port}"
        self.headers = with_key(api_key_of(launch))
        self.http = ControlClient(base_url=self.base_url, headers=self.headers, trust_env=False)
        self.log_path: Path = leash.log_path
        self.notes: tuple[str, ...] = ()  # what a person should know of this launch
        self._leash, self._timeline = leash, timeline
        self._served_from = 0  # bytes of the log written before it was ready

    def log_text(self, since: int = 0) -> str:
        """The log from byte `since` on."""
        with self.log_path.open("rb") as log:
            log.seek(since)
            return log.read().decode("utf-8", "replace")

    async def guard(self, work: Awaitable[T]) -> T:
        """Await `work`, unless the server dies first.

        Raises:
            TrialFailed: the server died; the cause is its log's, whatever the work ran into,
                and what the work had measured by then (`TrialFailed.partial`) is kept.
        """
        task = asyncio.ensure_future(work)
        try:
            either: set[asyncio.Future[Any]] = {task, self._leash.exit}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await asyncio.wait({task}, timeout=_LAST_WORDS_SECONDS)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return task.result()
        if error is None or await self._explains(error):
            raise await self._death(error) from error
        raise error

    async def _explains(self, error: BaseException) -> bool:
        """Whether the server's death is behind an error that its client met."""
        if not isinstance(error, TrialFailed | OSError | httpx.HTTPError):
            return False
        if isinstance(error, TrialFailed) and error.failure.kind is not (
            FailureKind.REQUESTS_FAILED
        ):
            return False
        await asyncio.wait({self._leash.exit}, timeout=_DYING_SECONDS)
        return self._leash.exit.done() or evidence(self.log_text(self._served_from), self.engine)

    async def _death(self, error: BaseException | None) -> TrialError:
        status = self._leash.exit.result() if self._leash.exit.done() else None
        found = await death(self._leash, self.engine, self._timeline.phase, self._served_from)
        if isinstance(found, TrialLost):
            return found
        partial = error.partial if isinstance(error, TrialFailed) else None
        failure = found.failure
        if status is None and not self._leash.exit.done():
            failure = failure.model_copy(update={"cause": f"{failure.cause} (still running)"})
        return TrialFailed(failure, partial)


@asynccontextmanager
async def running(
    launch: Launch,
    engine: Engine,
    *,
    startup: StartupLimits,
    stop: StopLimits,
    machine: Machine,
    timeline: Timeline,
) -> AsyncIterator[Server]:
    """Launch a server, wait until it answers, and leave nothing of it behind.

    Drives `timeline` from launch to ready, and to drained at the end. However the block ends,
    cancellation included, the server is ended first; a second cancellation only hurries.

    Raises:
        TrialFailed: it died, or made no progress for too long, or was not ready in time.
        TrialLost: its port was taken, or somebody killed its reaper.
        MachineNotClean: something of it is left behind.
    """
    _refuse_taken_port(launch)
    before = before_launch(launch, machine)
    timeline.enter(Phase.LAUNCH)
    leash = Leash(launch, stop.grace_seconds)
    try:
        server = Server(launch, engine, leash, timeline, engine.clock(launch))
        server.notes = tuple(f"stranger on a GPU: {h}" for h in strangers(launch, machine))
        async with server.http:
            starting = Starting(launch, engine, leash, machine, timeline, server.clock, startup)
            await starting.until_ready(server.http)
            before.look_at(leash.pids)
            server._served_from = server.log_path.stat().st_size
            try:
                yield server
            finally:
                timeline.enter(Phase.STOP)
                # 31 requests that nobody waited for any more made a stop 12 s instead of 4.
                with contextlib.suppress(httpx.HTTPError):
                    await engine.abort_all(server.http)
    finally:
        await _uncancelled(_end(launch, leash, machine, before, stop, timeline), leash)


def _refuse_taken_port(launch: Launch) -> None:
    if port_answers(launch.host, launch.port):
        owners = ", ".join(f"pid {p} ({process_name(p)})" for p in port_owners(launch.port))
        raise TrialLost(
            f"port {launch.port} is already answered by {owners or 'another process'}; "
            "the trial needs another port"
        )


async def _uncancelled(ending: Awaitable[None], leash: Leash) -> None:
    """Finish the ending whatever happens; being cancelled again means: hurry."""
    task = asyncio.ensure_future(ending)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
            leash.order_end(0.0)
        except BaseException:
            break  # raised below, once
    task.result()
    if cancelled is not None:
        raise cancelled


async def _end(
    launch: Launch,
    leash: Leash,
    machine: Machine,
    before: Before,
    stop: StopLimits,
    timeline: Timeline,
) -> None:
    timeline.enter(Phase.STOP)  # also of one that was never ready
    before.look_at(leash.pids)
    leash.order_end(stop.grace_seconds)
    try:
        left = await asyncio.wait_for(
            asyncio.shield(leash.gone), stop.grace_seconds + _KILL_SECONDS
        )
    except TimeoutError:
        left = tuple(leash.pids)
    await leash.close()
    timeline.enter(Phase.DRAINED)
    with contextlib.suppress(FileNotFoundError):
        masking.mask_file(leash.log_path, masking.secrets_of(launch.argv, launch.env))
    if left:
        raise not_clean(launch, [f"pid {p} ({process_name(p)}) cannot be ended" for p in left])
    await wait_until_drained(
        launch,
        machine,
        before,
        tolerance_bytes=stop.memory_tolerance_mib * 2**20,
        seconds=max(_MIN_DRAIN_SECONDS, stop.grace_seconds),
    )
