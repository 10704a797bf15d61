"""The process between the scheduler and the clients: it streams one chunk after another.

It matters where tokens are made faster than it sends them: a small model, many streams. Then the
scheduler, and its log, are ahead of what clients get, and it idles until they ask again.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from autotune.engines.simulated.requests import Sequence
from autotune.engines.simulated.settings import Settings

STREAM_CHUNKS_S = 12_000.0
"""Chunks a second of SGLang 0.5.15's HTTP process, measured on one H200 with 64 streams of a model
whose scheduler made 20,000 and 22,200 tokens/s: 12,000 and 15,400 by the time between tokens,
10,250 and 13,550 over whole waves. The runs drifted by as much as they differ; this is between
them, and the 10,600 of an 8B model pass."""


def chunk_seconds(settings: Settings) -> float:
    """Time the front end takes for one chunk; vLLM's was not measured and is taken for free."""
    return 1 / STREAM_CHUNKS_S if settings.engine == "sglang" else 0.0


def chunks_of(settings: Settings, steps: float, tokens: float) -> float:
    """Chunks in which `tokens` tokens of one request, made in `steps` steps, are streamed."""
    return min(steps, tokens / settings.stream_interval)


@dataclass(slots=True)
class Message:
    """Tokens of one request on their way to its client."""

    sequence: Sequence
    tokens: int
    done: bool


@dataclass
class FrontEnd:
    """What the scheduler has made and clients have not got yet, in order."""

    chunk_seconds: float
    _through: float = 0.0  # when the work of all that was made is done
    _new: list[Message] = field(default_factory=list)  # of the step that runs
    _held: deque[tuple[float, list[Message]]] = field(default_factory=deque)

    def put(self, message: Message) -> None:
        """A message of the step that runs."""
        self._new.append(message)

    def step_done(self, started: float, now: float, chunks: float) -> None:
        """A scheduler step from `started` to `now` made `chunks`, spread over it."""
        self._through = max(self._through, started) + chunks * self.chunk_seconds
        if self._new:
            self._held.append((max(now, self._through), self._new))
            self._new = []

    @property
    def next_due(self) -> float:
        """When the next messages are sent; infinite if none wait."""
        return self._held[0][0] if self._held else math.inf

    @property
    def unfinished(self) -> int:
        """Requests that the scheduler is through with and that have not got their last tokens."""
        return sum(message.done for _, messages in self._held for message in messages)

    def sent(self, now: float) -> list[Message]:
        """What goes out by `now`."""
        messages: list[Message] = []
        while self._held and self._held[0][0] <= now:
            messages += self._held.popleft()[1]
        return messages
