"""The clock that server times are measured with.

A real server's seconds are the host's seconds. The simulated server runs on a faster clock and
stamps what it streams, so that a compressed run reports the same figures as a slow one. This
seam is the only place where the rest of autotune meets that difference.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Protocol


class Clock(Protocol):
    """Seconds as the server under test lives them."""

    def now(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def stamp(self, event: Mapping[str, Any]) -> float:
        """The time, on the scale of `now`, at which a streamed event (parsed JSON) came."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for that many of the server's seconds."""
        ...


class WallClock:
    """The host's monotonic clock: right for every real server."""

    def now(self) -> float:
        return time.perf_counter()

    def stamp(self, event: Mapping[str, Any]) -> float:
        return time.perf_counter()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
