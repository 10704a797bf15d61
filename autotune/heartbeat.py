"""Says what a command waits for, as long as nothing new can be said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from autotune.records import Progress
from autotune.timeline import Timeline

FIRST_SECONDS = 10.0


@asynccontextmanager
async def heartbeat(say: Callable[[str], None]) -> AsyncIterator[Timeline]:
    """A timeline whose last entry is said while no other follows: after 10 s, 20 s, 40 s, …"""
    news, changed = "what serves there", asyncio.Event()

    def listen(progress: Progress) -> None:
        nonlocal news
        news = progress.detail or progress.phase.replace("_", " ")
        changed.set()

    async def beat() -> None:
        seconds, step = 0.0, FIRST_SECONDS
        while True:
            try:
                await asyncio.wait_for(changed.wait(), step)
                changed.clear()
                seconds, step = 0.0, FIRST_SECONDS
            except TimeoutError:
                seconds += step
                step = seconds
                say(f"waiting for {seconds:.0f} s: {news}")

    task = asyncio.create_task(beat())
    try:
        yield Timeline(0, listener=listen)
    finally:
        task.cancel()
