"""A server with a known truth in virtual time: a busy machine changes no figure of it.

Every event says when it came, and nothing else tells the time. All requests that are in flight
begin at one moment and are answered together, as a server with room for all of them would.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from autotune.mock import Truth
from tests.odd_server import END, STREAM_HEAD, Body, Writer, chunk, good_answer, serving

_QUIET_TURNS = 50  # of the event loop that both sides share: whoever wants to ask has asked


class StampedClock:
    """Stands at the latest moment that an event was stamped with."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def stamp(self, event: Mapping[str, Any]) -> float:
        moment = float(event["at"])
        self.time = max(self.time, moment)
        return moment

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a closed loop does not sleep")


@asynccontextmanager
async def stamped(truth: Truth) -> AsyncIterator[tuple[str, StampedClock]]:
    """Serve `truth` in this event loop; gives the URL and the clock that its seconds are of."""
    clock, asked = StampedClock(), 0

    async def answer(path: str, body: Body, writer: Writer) -> None:
        nonlocal asked
        if not body.get("stream"):
            return await good_answer(path, body, writer)
        asked += 1
        await _until_all_have_asked(lambda: asked)
        writer.write(STREAM_HEAD + _events(truth, body["max_tokens"], clock.now()))

    async with serving(answer) as url:
        yield url, clock


async def _until_all_have_asked(count: Callable[[], int]) -> None:
    known, quiet = count(), 0
    while quiet < _QUIET_TURNS:
        await asyncio.sleep(0)
        known, quiet = count(), quiet + 1 if count() == known else 0


def _events(truth: Truth, tokens: int, start: float) -> bytes:
    """The answer's events, with a usage in each, as vLLM and SGLang give when asked."""
    gap, moment, sent, parts = truth.tokens_per_chunk * truth.tpot_seconds, start, 0, []
    for index, count in enumerate(truth.chunks(tokens)):
        moment, sent = start + truth.ttft_seconds + index * gap, sent + count
        choice = {"index": 0, "delta": {"content": " token" * count}}
        usage = {"prompt_tokens": 128, "completion_tokens": sent}
        parts.append(chunk({"choices": [choice], "usage": usage, "at": moment}))
    return b"".join(parts) + END
