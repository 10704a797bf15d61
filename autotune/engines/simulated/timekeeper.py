"""The server's side of virtual time: advances it, publishes it, and waits for the client."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path

from autotune.engines.simulated.clock_file import NAME, ClockFile

SLICE_SECONDS = 0.01  # longest real wait between two updates of the published time
GRACE_SECONDS = 0.1  # real time a client gets to react; a busy host takes it away for long
PATIENCE_SECONDS = 1.0  # longest real wait for a client that has events left to take
STARVED_SECONDS = 10.0  # longest real wait for a client that wants to run and gets no core
BEHIND_SECONDS = 0.05  # further behind than this, real time is given up rather than caught up


class Timekeeper:
    """Virtual seconds of one server.

    Real waiting is virtual time / speed, but the clock stands while the client has its turn:
    a compressed run is slowed down rather than distorted.
    """

    def __init__(self, trial_dir: Path | None, speed: float) -> None:
        self._file = ClockFile(trial_dir / NAME, speed) if trial_dir else None
        self.now = self._file.now if self._file else 0.0
        self._speed = speed
        self.busy = True  # somebody advances it: loading, or requests in flight
        self.hanging = 0  # requests that are never answered: their clients wait
        self.expects_more: Callable[[], bool] = lambda: False
        self._due = time.monotonic()
        self._grace = GRACE_SECONDS
        self._sent = self._taken_before = 0
        if self._file:
            self._file.speed = speed

    @property
    def speed(self) -> float:
        """Virtual seconds a real second; may be changed in the clock file at any time."""
        return self._file.speed if self._file else self._speed

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
    def begin_busy(self) -> None:
        """Requests came to an idle server: nothing of what was sent before is awaited any more."""
        self.busy = True
        self._sent, self._taken_before = 0, self._taken

    def sent_event(self) -> None:
        """An event with text was written to a client."""
        self._sent += 1

    @property
    def _taken(self) -> int:
        return self._file.taken if self._file else 0

    def _signs(self) -> int:
        """Moves whenever the client does anything."""
        return self.touches + self._taken

    @property
    def _backlog(self) -> bool:
        """Whether a client that takes events has not taken all of them yet."""
        taken = self._taken - self._taken_before
        return 0 < taken < self._sent

    @property
    def _client_wants_to_run(self) -> bool:
        """Whether the client's thread has work: it may yet act, however long a busy host keeps
        it from a core."""
        thread = self._file.client if self._file else 0
        try:
            stat = Path(f"/proc/{thread}/stat").read_bytes() if thread else b""
        except OSError:
            return False
        return stat.rpartition(b") ")[2][:1] in (b"R", b"D")

    async def settle(self, arrived: asyncio.Event) -> None:
        """Wait until a burst of requests has come in: 2 ms in which the client did nothing.

        While connections stand open that have not asked anything yet, more is expected.
        """
        start = quiet_since = time.monotonic()
        before = self._signs()
        while self._is_early(start + PATIENCE_SECONDS, start + STARVED_SECONDS):
            arrived.clear()
            await _wait(arrived, 0.002)
            signs, now = self._signs(), time.monotonic()
            if arrived.is_set() or signs != before or self._client_wants_to_run:
                before, quiet_since = signs, now
            elif now - quiet_since >= (GRACE_SECONDS if self.expects_more() else 0.0015):
                return

    async def turn(self, arrived: asyncio.Event, missing: Callable[[], int]) -> None:
        """Wait for the requests that finished ones make room for, until none is `missing`.

        A client that has taken every event and sends nothing twice in a row is at the end of
        its load: it is given little time until it asks again. Looks at the clock are no sign
        of a request to come: whoever watches the server while it is loaded looks all the time.
        """
        wanted = missing()
        deadline, before = time.monotonic() + self._grace, self._taken
        starved = deadline + STARVED_SECONDS
        while missing() > 0 and self._is_early(deadline, starved):
            arrived.clear()
            await _wait(arrived, 0.002)
            taken = self._taken
            if arrived.is_set() or taken != before:
                patience = PATIENCE_SECONDS if self._backlog else self._grace
                deadline, before = time.monotonic() + patience, taken
        came = wanted == 0 or missing() < wanted
        self._grace = GRACE_SECONDS if came else max(0.002, self._grace / 4)
        if not came:  # what was not taken by now went to connections that were given up
            self._sent = self._taken - self._taken_before

    def _is_early(self, deadline: float, starved: float) -> bool:
        """Whether a client may still act: there is time left, or it waits for a core."""
        now = time.monotonic()
        return now < deadline or (now < starved and self._client_wants_to_run)

    async def hold_for_sleeper(self, arrived: asyncio.Event, until: float) -> None:
        """Stop at every moment before `until` that a client sleeps until; let it act."""
        while self.now <= (wake := self.wake) < until:
            await self.advance(wake - self.now)
            limit = time.monotonic() + GRACE_SECONDS
            while self.wake == wake and self._is_early(limit, limit + STARVED_SECONDS):
                await asyncio.sleep(0.0005)
            if self.wake == wake:
                return  # whoever slept is gone
            await self.settle(arrived)

    async def tick_when_idle(self) -> None:
        """Let time pass while nobody is served but somebody waits; runs as a task.

        A client that sleeps is not passed: time stands at the moment it is to wake. Where nobody
        waits, time stands too: what happens between two loads is the client's own business.
        """
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.004 if self.wake == math.inf else 0.001)
            real, last = time.monotonic() - last, time.monotonic()
            if self.busy:
                continue
            if (wake := self.wake) < math.inf:
                self.set(min(self.now + real * self.speed, max(wake, self.now)))
            elif self.hanging:
                self.set(self.now + real * self.speed)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
