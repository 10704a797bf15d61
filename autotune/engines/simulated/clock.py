"""The client's side of a simulated server's time: satisfies `autotune.clock.Clock`."""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.engines.simulated.clock_file import NAME, ClockFile

STANDSTILL_SECONDS = 0.3
"""A clock that has not moved for so long (real) while the client slept has no server."""


class SimulatedClock:
    """Reads the server's time from its clock file, and an event's from its stamp.

    The server never runs past the moment that a client sleeps until, so an open-loop load sends
    at the right virtual time at every speed. Without a server (before launch, after its end) a
    sleep moves the clock itself.
    """

    def __init__(self, trial_dir: Path, speed: float) -> None:
        self._file = ClockFile(trial_dir / NAME, speed)
        self._sleepers: list[float] = []

    def now(self) -> float:
        self._file.touch()
        return self._file.now

    def stamp(self, event: Mapping[str, Any]) -> float:
        self._file.take()
        stamp = event.get("sim_time")
        return float(stamp) if stamp is not None else self._file.now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        target = self.now() + seconds
        heapq.heappush(self._sleepers, target)
        self._file.wake = self._sleepers[0]
        try:
            await self._until(target)
        finally:
            self._sleepers.remove(target)
            heapq.heapify(self._sleepers)
            self._file.wake = self._sleepers[0] if self._sleepers else math.inf
            self._file.touch()

    def _next(self, now: float) -> float:
        """When the next sleeper wakes, at the earliest now."""
        return max(now, self._sleepers[0])

    async def _until(self, target: float) -> None:
        moved, last = time.monotonic(), self._file.now
        while (now := self._file.now) < target:
            nap = min(0.02, max(0.0005, (target - now) / self._file.speed))
            started = time.monotonic()
            await asyncio.sleep(nap)
            if self._file.now != last:
                moved, last = time.monotonic(), self._file.now
            elif time.monotonic() - moved > STANDSTILL_SECONDS:
                slept = time.monotonic() - started
                # Not past the next who wakes, however long the host kept this one asleep.
                self._file.now = last = min(last + slept * self._file.speed, self._next(last))
