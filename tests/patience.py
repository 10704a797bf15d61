"""Waiting for what must come: as long as a starved machine may take, and no fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_SECONDS = 120.0
"""Only a hang takes so long."""


def until(done: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until `done()`; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


async def eventually(done: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """The same without standing in the event loop's way."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.01)
