"""The streaming load client: concurrency (or a request rate) in, raw timings out.

A closed loop keeps `concurrency` requests in flight; an open loop sends at random moments
whatever the server does. Neither judges: `measure.py` turns the replies into figures.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import resource
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from autotune.clock import Clock
from autotune.stream import Connection, Endpoint, Reply, Request

SILENCE_LIMIT_SECONDS = 300.0
"""A load on which not one token comes for this long (of the host's time) is given up. A server's
first request may compile kernels for minutes."""

_OTHER_FILES = 256  # logs, libraries, control connections
_FAULTS_IN_A_ROW = 3  # after so many a worker stops asking: the server is gone or refuses


class LoadStalled(Exception):
    """No token came on any connection for `SILENCE_LIMIT_SECONDS`."""


@dataclass(frozen=True)
class Run:
    """All replies of one load, in the order in which they ended."""

    replies: tuple[Reply, ...]
    concurrency: int
    full_from: float  # when the last of the first `concurrency` requests was sent
    full_until: float  # when the first worker stopped asking
    client_cpu_seconds: float

    @property
    def ok(self) -> tuple[Reply, ...]:
        """The replies that count."""
        return tuple(reply for reply in self.replies if reply.ok)

    @property
    def failed(self) -> tuple[Reply, ...]:
        """The replies that do not."""
        return tuple(reply for reply in self.replies if not reply.ok)

    @property
    def tokens(self) -> int:
        """Completion tokens of the replies that count."""
        return sum(reply.completion_tokens for reply in self.ok)

    def faults(self) -> str:
        """What went wrong, with counts: `3 x HTTP 400: ...; 1 x connection: ...`."""
        counts: dict[str, int] = {}
        for reply in self.failed:
            text = f"{reply.fault}: {reply.error}"
            counts[text] = counts.get(text, 0) + 1
        most = sorted(counts.items(), key=lambda item: -item[1])[:3]
        return "; ".join(f"{count} x {text}" for text, count in most)


@dataclass
class _Loop:
    """What the workers of one closed loop share."""

    make: Callable[[int], Request]
    more: Callable[[Reply], bool]
    indices: Iterator[int]
    connections: Sequence[Connection]
    replies: list[Reply] = field(default_factory=list)
    stopped_at: float | None = None  # when the first worker stopped asking

    def end(self, now: float) -> None:
        """The first worker asks no more: the concurrency falls from here on."""
        if self.stopped_at is None:
            self.stopped_at = now

    def stop(self, now: float) -> None:
        """Nobody asks any more; who asked just now, and got no token yet, is not waited for."""
        self.end(now)
        for connection in self.connections:
            connection.abandon()


async def closed_loop(
    endpoint: Endpoint,
    make: Callable[[int], Request],
    concurrency: int,
    *,
    clock: Clock,
    more: Callable[[Reply], bool],
    indices: Iterator[int] | None = None,
) -> Run:
    """Keep `concurrency` requests in flight until `more(reply)` says no; then let them finish.

    Requests that have not brought a token by then are given up: they are in no figure.

    `more` is called once a reply, in the order in which they end; `indices` (default: 0, 1, …)
    are handed to `make` and end the loop when they end. Connections are opened before the first
    request is sent. A request that fails comes back as a `Reply` with its fault. Raises
    LoadStalled.
    """
    _allow_files(concurrency)
    connections = [Connection(endpoint, clock) for _ in range(concurrency)]
    loop = _Loop(make, more, indices or itertools.count(), connections)
    cpu_start = time.thread_time()
    await _drive([_work(loop, connection) for connection in connections], connections)
    return Run(
        replies=tuple(loop.replies),
        concurrency=concurrency,
        full_from=_all_sent(loop.replies, concurrency),
        full_until=loop.stopped_at if loop.stopped_at is not None else clock.now(),
        client_cpu_seconds=time.thread_time() - cpu_start,
    )


async def open_loop(
    endpoint: Endpoint,
    make: Callable[[int], Request],
    rate_per_second: float,
    count: int,
    *,
    clock: Clock,
    seed: int,
) -> Run:
    """Send `count` requests at exponential gaps (a Poisson process), whatever the server does.

    Raises LoadStalled.
    """
    random_gaps = random.Random(seed)
    replies: list[Reply] = []
    connections: list[Connection] = []
    idle: list[Connection] = []

    async def one(index: int, due: float) -> None:
        await clock.sleep(max(0.0, due - clock.now()))
        if not idle:
            connections.append(Connection(endpoint, clock))
            idle.append(connections[-1])
        connection = idle.pop()
        replies.append(await connection.send(make(index)))
        idle.append(connection)

    gaps = (random_gaps.expovariate(rate_per_second) for _ in range(count))
    start, cpu_start = clock.now(), time.thread_time()
    moments = itertools.accumulate(gaps, initial=start)
    tasks = [one(index, due) for index, due in zip(range(count), moments, strict=False)]
    await _drive(tasks, connections)
    return Run(
        replies=tuple(replies),
        concurrency=len(connections),
        full_from=start,
        full_until=max((reply.last for reply in replies), default=start),
        client_cpu_seconds=time.thread_time() - cpu_start,
    )


def _allow_files(connections: int) -> None:
    """Raise this process's soft limit of open files, often 1,024, as far as it may go."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


async def _work(loop: _Loop, connection: Connection) -> None:
    faults = 0
    for index in loop.indices:
        reply = await connection.send(loop.make(index))
        if connection.abandoned:
            return
        loop.replies.append(reply)
        faults = 0 if reply.ok else faults + 1
        if not loop.more(reply) or faults == _FAULTS_IN_A_ROW:
            loop.stop(reply.last)
        if loop.stopped_at is not None:
            return
    loop.end(connection.clock.now())


async def _drive(
    work: Sequence[Coroutine[None, None, None]], connections: Sequence[Connection]
) -> None:
    """Run all of `work` over the opened connections; close them whatever happens."""
    async with watched(connections), asyncio.TaskGroup() as group:
        # A refused connection shows again, as a fault with its text, when a request is sent.
        opening = [connection.open() for connection in connections]
        await asyncio.gather(*opening, return_exceptions=True)
        for one in work:
            group.create_task(one)


@asynccontextmanager
async def watched(connections: Sequence[Connection]) -> AsyncIterator[None]:
    """Closes the connections after the block, whatever happens.

    Raises LoadStalled, in the middle of it, when no token comes on any of them for too long.
    """
    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_watch(connections))
            try:
                yield
            finally:
                watch.cancel()
    except* LoadStalled as stalled:
        raise stalled.exceptions[0] from None
    finally:
        for connection in connections:
            connection.close()


async def _watch(connections: Sequence[Connection]) -> None:
    """Raise LoadStalled when nothing moved on any connection for too long."""
    loop = asyncio.get_running_loop()
    moved, before = loop.time(), [connection.progress for connection in connections]
    while True:
        await asyncio.sleep(SILENCE_LIMIT_SECONDS / 100)
        now = [connection.progress for connection in connections]
        if now != before:
            moved, before = loop.time(), now
        elif loop.time() - moved > SILENCE_LIMIT_SECONDS:
            raise LoadStalled(f"no token for {SILENCE_LIMIT_SECONDS:.0f} s on any connection")


def _all_sent(replies: Sequence[Reply], concurrency: int) -> float:
    """When the last of the first `concurrency` requests was sent."""
    sent = sorted(reply.sent for reply in replies)
    return sent[min(concurrency, len(sent)) - 1] if sent else 0.0
