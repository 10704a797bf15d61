"""Waiting for a server to be ready: by progress, not by the clock."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, Protocol

import httpx

from autotune.clock import Clock
from autotune.engines.base import Engine, LoadProgress, NoAnswer
from autotune.engines.logs import LogReader, rank_of
from autotune.errors import TrialError, TrialFailed, TrialLost
from autotune.leash import Leash
from autotune.machine import Machine, port_answers, port_owners, process_name
from autotune.postmortem import death
from autotune.progress import Pace, Signs, Usage, all_busy
from autotune.ranks import Ranks
from autotune.reaper import mark_of
from autotune.records import Failure, FailureKind, Launch, Phase
from autotune.timeline import Timeline

_POLL_SECONDS = 0.05
_LOOK_SECONDS = 0.5  # between two looks at all processes and GPUs
_PROBE_SECONDS = 0.1  # between two questions whether it is ready
_REFUSED_SECONDS, _REFUSAL_SECONDS = 120.0, 2.0  # of errors to every probe, and between two
# A driver that was suspended must not take its own sleep for the server's: so many looks in
# a row have to find nothing before a stall is one.
_MIN_SILENT_LOOKS = 5
_ORDER = list(Phase)


class StartupLimits(Protocol):
    """What is needed of the experiment's `startup` section."""

    @property
    def stall_minutes(self) -> float: ...
    @property
    def limit_hours(self) -> float: ...


class Starting:
    """One server between its launch and its first answer."""

    def __init__(
        self,
        launch: Launch,
        engine: Engine,
        leash: Leash,
        machine: Machine,
        timeline: Timeline,
        clock: Clock,
        limits: StartupLimits,
    ) -> None:
        self._launch, self._engine, self._leash = launch, engine, leash
        self._machine, self._timeline, self._clock = machine, timeline, clock
        self._stall_seconds = limits.stall_minutes * 60
        self._limit_seconds = limits.limit_hours * 3600
        self._log = LogReader(leash.log_path)
        self._usage, self._pace, self._ranks = Usage(), Pace(), Ranks()
        self._detail = "starting"
        self._fraction: float | None = None
        self._began = self._moved_at = clock.now()
        self._moved = Signs(time.monotonic())
        self._now = self._moved
        self._silent_looks = 0
        self._patience: asyncio.Task[None] | None = None

    async def until_ready(self, http: httpx.AsyncClient) -> None:
        """Return once the server answers a real generation under this trial's name.

        Raises:
            TrialFailed: it died, stalled, or passed the limit.
            TrialLost: another server answers on its port.
        """
        # Shielded: a cancelled trial must still hear of the server that it has to end.
        await asyncio.shield(self._leash.started)
        probe = asyncio.ensure_future(self._until_it_answers(http))
        try:
            while not probe.done():
                if self._leash.exit.done():
                    raise await self._death()
                self._read_log()
                await self._look()
                self._judge()
                either: set[asyncio.Future[Any]] = {probe, self._leash.exit}
                await asyncio.wait(
                    either, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
            probe.result()
        finally:
            self._lose_patience()
            probe.cancel()
            with contextlib.suppress(asyncio.CancelledError, TrialError):
                await probe
        self._read_log()
        self._enter(Phase.READY)

    async def _death(self) -> TrialError:
        self._read_log()
        return await death(self._leash, self._engine, self._timeline.phase)

    # -- is it ready? -----------------------------------------------------------------------
    async def _until_it_answers(self, http: httpx.AsyncClient) -> None:
        while not await asyncio.to_thread(port_answers, self._launch.host, self._launch.port):
            await asyncio.sleep(_PROBE_SECONDS)
        await asyncio.to_thread(self._refuse_another_server)
        self._enter(Phase.READY)
        refused: float | None = None
        while True:
            try:
                if await self._engine.is_ready(http, self._launch):
                    return
                refused = None
            except httpx.HTTPError:
                refused = None
            except NoAnswer as answer:
                # Each probe writes a line of the log, so that this would never be a stall.
                refused = self._clock.now() if refused is None else refused
                await self._clock.sleep(_REFUSAL_SECONDS)
                if self._clock.now() - refused > min(_REFUSED_SECONDS, self._stall_seconds):
                    raise self._failed(f"no request is answered: {answer}") from answer
            await asyncio.sleep(_PROBE_SECONDS)

    def _failed(self, cause: str) -> TrialFailed:
        return TrialFailed(
            Failure(kind=FailureKind.REQUESTS_FAILED, phase=self._timeline.phase, cause=cause)
        )

    def _refuse_another_server(self) -> None:
        """Whoever listens must be this trial's; an owner that cannot be seen is left to the
        served name."""
        owners = port_owners(self._launch.port)
        ours = self._leash.pids
        if owners and not owners & ours and not any(self._is_marked(pid) for pid in owners):
            pid = min(owners)
            raise TrialLost(
                f"port {self._launch.port} was taken by pid {pid} ({process_name(pid)})"
            )

    def _is_marked(self, pid: int) -> bool:
        return mark_of(pid) == self._launch.mark

    # -- how far is it? ---------------------------------------------------------------------
    def _read_log(self) -> None:
        for line in self._log.read():
            phase = self._engine.phase_of(line)
            if phase is not None:
                self._enter(phase)
            progress, rank = self._note(line), rank_of(line)
            if progress is not None and progress.step is not None and rank is not None:
                self._ranks.note(rank, progress.step, progress.detail, self._clock.now())
        if self._log.unfinished:
            self._note(self._log.unfinished)

    def _note(self, line: str) -> LoadProgress | None:
        progress = self._engine.progress_of(line)
        if progress is not None:
            self._detail, self._fraction = progress.detail, progress.fraction
        return progress

    def _enter(self, phase: Phase) -> None:
        """Phases only go forward: a draft's weights load after the target's KV cache."""
        if _ORDER.index(phase) > _ORDER.index(self._timeline.phase):
            self._timeline.enter(phase)
            self._pace = Pace()

    # -- is it getting on? ------------------------------------------------------------------
    async def _look(self) -> None:
        if time.monotonic() - self._now.at < _LOOK_SECONDS:
            return
        self._now = await asyncio.to_thread(self._signs)
        now = self._clock.now()
        self._pace.add(now, self._now.io_bytes, self._fraction)
        if self._now.moved_since(self._moved):
            self._moved, self._moved_at, self._silent_looks = self._now, now, 0
            self._lose_patience()
        else:
            self._silent_looks += 1
        if self._silent_looks == _MIN_SILENT_LOOKS:
            # The clock of an idle simulated server stands while it is only looked at.
            self._patience = asyncio.create_task(self._clock.sleep(self._stall_seconds))
        self._timeline.note(self._status(now), self._fraction)

    def _lose_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _signs(self) -> Signs:
        io, cpu, compilers = self._usage.read(self._leash.pids)
        gpus = self._launch.gpus
        memory = self._machine.memory_used() if gpus else {}
        busy = self._machine.utilisation() if gpus else {}
        return Signs(
            at=time.monotonic(),
            log_bytes=self._log.offset,
            io_bytes=io,
            gpu_bytes=sum(memory.get(gpu, 0) for gpu in gpus),
            cpu_seconds=cpu,
            compilers=compilers,
            gpus_busy=all_busy(busy[gpu] for gpu in gpus if gpu in busy),
        )

    def _status(self, now: float) -> str:
        parts = [self._detail, self._ranks.behind(now), self._pace.text]
        if self._now.compilers:
            parts.append(f"compiling ({', '.join(self._now.compilers)})")
        if (silent := now - self._moved_at) > 60:
            parts.append(f"no sign of life for {silent / 60:.0f} min{self._deadlock()}")
        return ", ".join(part for part in parts if part)

    def _deadlock(self) -> str:
        if not self._now.gpus_busy:
            return ""
        return " while all GPUs are fully busy: the signature of a deadlock between ranks"

    def _judge(self) -> None:
        now = self._clock.now()
        if self._silent_looks >= _MIN_SILENT_LOOKS and now - self._moved_at > self._stall_seconds:
            minutes = (now - self._moved_at) / 60
            raise self._stalled(
                f"no progress for {minutes:.0f} min while {self._detail}: no log, no bytes read, "
                f"no GPU memory, no CPU time{self._deadlock()}",
                now,
            )
        if now - self._began > self._limit_seconds:
            hours = (now - self._began) / 3600
            raise self._stalled(f"not ready after {hours:.1f} h, while {self._detail}", now)

    def _stalled(self, cause: str, now: float) -> TrialFailed:
        parts = (cause, self._ranks.behind(now))
        failure = Failure(
            kind=FailureKind.STALLED,
            phase=self._timeline.phase,
            cause="; ".join(part for part in parts if part),
        )
        return TrialFailed(failure)
