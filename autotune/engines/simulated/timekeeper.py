"""The server's side of virtual time: advances it, publishes it, and waits for the client."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

from autotune.engines.simulated.clock_file import NAME, ClockFile

SLICE_SECONDS = 0.01  # longest real wait between two updates of the published time
HOLD_SECONDS = 0.25  # real time after the last request during which an idle clock stands
GRACE_SECONDS = 0.03  # real time a client gets to react
PATIENCE_SECONDS = 1.0  # longest real wait for a client that is busy
BEHIND_SECONDS = 0.05  # further behind than this, real time is given up rather than caught up


class Timekeeper:
    """Virtual seconds of one server.

    Real waiting is virtual time / speed, but the clock stands while the client has its turn:
    a compressed run is slowed down rather than distorted.
    """

    def __init__(self, trial_dir: Path | None, speed: float) -> None:
        self._file = ClockFile(trial_dir / NAME, speed) if trial_dir else None
        self.now = self._file.now if self._file else 0.0
        self.speed = speed
        self.busy = True  # somebody advances it: loading, or requests in flight
        self.last_activity = -math.inf
        self._due = time.monotonic()
        self._grace = GRACE_SECONDS
        if self._file:
            self._file.speed = speed

    @property
    def wake(self) -> float:
        """The virtual time until which a client sleeps."""
        return self._file.wake if self._file else math.inf

    @property
    def touches(self) -> int:
        """Moves while the client works."""
        return self._file.touches if self._file else 0

    def set(self, now: float) -> None:
        """Publish a time; never goes back, also not behind what a client wrote."""
        if self._file:
            now = max(now, self._file.now)
            self._file.now = now
        self.now = max(self.now, now)

    async def advance(self, seconds: float) -> None:
        """Let `seconds` of virtual time pass, waiting as the speed asks."""
        target = self.now + seconds
        while self.now < target:
            part = min(target - self.now, SLICE_SECONDS * self.speed)
            await self._wait_real(part / self.speed)
            self.set(min(target, self.now + part))

    async def _wait_real(self, seconds: float) -> None:
        now = time.monotonic()
        self._due = max(self._due, now - BEHIND_SECONDS) + seconds
        if self._due - now > 0.001:
            await asyncio.sleep(self._due - now)

    # -- the client's turn ------------------------------
    async def settle(self, arrived: asyncio.Event) -> None:
        """Wait until a burst of requests has come in: 2 ms without an arrival or a look."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < limit:
            arrived.clear()
            before = self.touches
            await _wait(arrived, 0.002)
            if not arrived.is_set() and self.touches == before:
                return

    async def turn(self, arrived: asyncio.Event, expected: int) -> int:
        """Wait for the requests that finished ones make room for; returns how many came.

        A client that does not answer twice in a row is at the end of its load: it is given
        little time until it asks again.
        """
        came, start = 0, time.monotonic()
        deadline, before = start + self._grace, self.touches
        while came < expected and (now := time.monotonic()) < deadline:
            arrived.clear()
            await _wait(arrived, min(0.003, deadline - now))
            if arrived.is_set():
                came += 1
            if arrived.is_set() or self.touches != before:
                before = self.touches
                deadline = min(time.monotonic() + self._grace, start + PATIENCE_SECONDS)
        self._grace = GRACE_SECONDS if came else max(0.002, self._grace / 4)
        return came

    async def hold_for_sleeper(self, arrived: asyncio.Event, until: float) -> None:
        """Stop at every moment before `until` that a client sleeps until; let it act."""
        while self.now <= (wake := self.wake) < until:
            await self.advance(wake - self.now)
            limit = time.monotonic() + GRACE_SECONDS
            while self.wake == wake and time.monotonic() < limit:
                await asyncio.sleep(0.0005)
            if self.wake == wake:
                return  # whoever slept is gone
            await self.settle(arrived)

    async def tick_when_idle(self) -> None:
        """Let time pass at full speed while nobody is served; runs as a task."""
        last = time.monotonic()
        while True:
            wake = self.wake
            await asyncio.sleep(0.001 if wake < math.inf else 0.004)
            real, last = time.monotonic() - last, time.monotonic()
            if self.busy:
                continue
            held = time.monotonic() - self.last_activity < HOLD_SECONDS
            if held and wake == math.inf:
                continue
            target = self.now + real * self.speed
            self.set(min(target, wake) if wake > self.now else target)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
