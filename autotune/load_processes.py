"""A closed loop spread over several client processes, for more streams than one can read.

Each process runs its share of the concurrency and hands every reply to this one as it ends, so
that one stopping rule sees them all. Started as `python -m autotune.load_processes`: the job
comes on standard input, replies go to standard output, and the end of the input says stop.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import struct
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from autotune.clock import WallClock
from autotune.errors import TrialLost
from autotune.load import LoadStalled, Run, closed_loop
from autotune.stream import Endpoint, Reply, Request

STREAMS_PER_PROCESS = 512
_LENGTH = struct.Struct("<Q")
_READY, _GO = "ready", b"!"


@dataclass(frozen=True)
class Job:
    """The share of one process."""

    endpoint: Endpoint
    make: Callable[[int], Request]  # must survive pickling
    concurrency: int
    first_index: int
    step: int


def processes_for(concurrency: int) -> int:
    """How many client processes this concurrency wants on this host."""
    return min(-(-concurrency // STREAMS_PER_PROCESS), max(1, (os.cpu_count() or 1) // 2))


async def closed_loop_in_processes(
    endpoint: Endpoint,
    make: Callable[[int], Request],
    concurrency: int,
    processes: int,
    *,
    more: Callable[[Reply], bool],
    first_index: int = 0,
) -> Run:
    """As `load.closed_loop`, over `processes` processes, on the host's clock.

    Raises LoadStalled, and TrialLost if a client process dies.
    """
    shares = [concurrency // processes + (k < concurrency % processes) for k in range(processes)]
    jobs = [
        Job(endpoint, make, share, first_index + number, processes)
        for number, share in enumerate(shares)
    ]
    going = True

    def ask(reply: Reply) -> bool:
        nonlocal going
        going = more(reply) and going
        if not going:
            for child in children:
                _stop(child)
        return going

    children: list[asyncio.subprocess.Process] = []
    async with _started(jobs, children):
        runs = await asyncio.gather(*(_follow(child, ask) for child in children))
    return _merged(runs, concurrency)


def _stop(child: asyncio.subprocess.Process) -> None:
    if child.stdin is not None and not child.stdin.is_closing():
        child.stdin.close()


@asynccontextmanager
async def _started(
    jobs: list[Job], children: list[asyncio.subprocess.Process]
) -> AsyncIterator[None]:
    """Start a child for every job; none is left, whatever happens.

    They begin together: on a busy host one would be through before another is there.
    """
    pipe = asyncio.subprocess.PIPE
    try:
        for job in jobs:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "autotune.load_processes", stdin=pipe, stdout=pipe
            )
            children.append(child)
            assert child.stdin is not None
            child.stdin.write(_packed(job))
        for child in children:
            assert await _message(child) == _READY
        for child in children:
            assert child.stdin is not None
            child.stdin.write(_GO)
        yield
    finally:
        for child in children:
            if child.returncode is None:
                child.kill()
            await child.wait()


async def _follow(child: asyncio.subprocess.Process, ask: Callable[[Reply], bool]) -> Run:
    """Hand on a child's replies until its `Run` comes."""
    while True:
        message = await _message(child)
        if isinstance(message, Run):
            return message
        if isinstance(message, LoadStalled):
            raise message
        ask(message)


async def _message(child: asyncio.subprocess.Process) -> Any:
    assert child.stdout is not None
    try:
        (length,) = _LENGTH.unpack(await child.stdout.readexactly(_LENGTH.size))
        return pickle.loads(await child.stdout.readexactly(length))
    except asyncio.IncompleteReadError as problem:
        status = await child.wait()
        raise TrialLost(f"a client process ended with status {status}") from problem


def _merged(runs: list[Run], concurrency: int) -> Run:
    replies = sorted(itertools.chain(*(run.replies for run in runs)), key=lambda r: r.last)
    return Run(
        replies=tuple(replies),
        concurrency=concurrency,
        full_from=max(run.full_from for run in runs),
        full_until=min(run.full_until for run in runs),
        client_cpu_seconds=sum(run.client_cpu_seconds for run in runs),
    )


# -- the child ------------------------------------------------------------------------------
def _packed(message: Any) -> bytes:
    data = pickle.dumps(message)
    return _LENGTH.pack(len(data)) + data


def _read(source: BinaryIO) -> Any:
    (length,) = _LENGTH.unpack(source.read(_LENGTH.size))
    return pickle.loads(source.read(length))


def main() -> None:
    """Run one job from standard input; replies, then the run, go to standard output."""

    def send(message: Any) -> None:
        sys.stdout.buffer.write(_packed(message))
        sys.stdout.buffer.flush()

    job: Job = _read(sys.stdin.buffer)
    send(_READY)
    sys.stdin.buffer.read(len(_GO))
    stopped = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.buffer.read()
        stopped.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()

    def more(reply: Reply) -> bool:
        send(reply)
        return not stopped.is_set()

    try:
        send(
            asyncio.run(
                closed_loop(
                    job.endpoint,
                    job.make,
                    job.concurrency,
                    clock=WallClock(),
                    more=more,
                    indices=itertools.count(job.first_index, job.step),
                )
            )
        )
    except LoadStalled as stalled:
        send(stalled)


if __name__ == "__main__":
    from autotune.load_processes import main as importable_main

    importable_main()  # not __main__'s own: jobs are pickled under the module's name
