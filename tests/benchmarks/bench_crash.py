"""How fast a server's death is noticed and told.

    python -m tests.benchmarks.bench_crash --crashes 20

A ready server is killed (its first process, or one rank) at a random moment while a request waits
for ever; the time until `guard` raises is the time to notice. Servers that exit by themselves a
second after their start, with status 0 and 1 and a startup limit of an hour, are timed until
`running` has raised with the cause and the machine is clean. Bars: 1 s and 3 s. Prints JSON; exit
status 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from autotune.errors import TrialFailed
from autotune.server import Server
from tests.census import in_sessions
from tests.lifecycle import Stage

NOTICED_SECONDS, REPORTED_SECONDS = 1.0, 3.0


async def crash(stage: Stage, number: int, chance: random.Random) -> float:
    """Kill one process of a ready server; the seconds until `guard` raises."""
    raised = 0.0
    launch = stage.launch(number=number, engine=("sglang", "vllm")[number % 2])
    struck = asyncio.get_running_loop().create_future()
    try:
        async with stage.running(launch) as server:
            asyncio.get_running_loop().call_later(
                chance.uniform(0.1, 0.6), lambda: struck.set_result(_kill(server, number))
            )
            try:
                await server.guard(asyncio.Event().wait())
            except TrialFailed:
                raised = time.monotonic()
                raise
    except TrialFailed:
        pass
    return raised - struck.result()


def _kill(server: Server, number: int) -> float:
    """SIGKILL the launcher (even numbers) or what it started last; when."""
    launcher = server._leash.server_pid
    ranks = sorted(in_sessions([launcher]) - {launcher})
    os.kill(ranks[-1] if number % 2 and ranks else launcher, signal.SIGKILL)
    return time.monotonic()


async def early_exit(stage: Stage, number: int, fault: str) -> tuple[float, str]:
    """Seconds from the launch to the report and the clean machine; the cause."""
    started = time.monotonic()
    try:
        async with stage.running(stage.launch(fault, number=number)):
            raise AssertionError("a server that exits was ready")
    except TrialFailed as failed:
        return time.monotonic() - started, failed.failure.cause


async def measure(crashes: int, seed: int) -> dict[str, object]:
    """All figures, in seconds."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder), limit_hours=1.0)
        noticed = sorted([await crash(stage, number, chance) for number in range(crashes)])
        exits = {f: await early_exit(stage, 900 + i, f) for i, f in enumerate(("exit0", "exit1"))}
    return {
        "crashes": crashes,
        "noticed_median_s": round(noticed[len(noticed) // 2], 3),
        "noticed_worst_s": round(noticed[-1], 3),
        "reported": {
            f: {"seconds": round(s, 2), "cause": cause} for f, (s, cause) in exits.items()
        },
        "held": noticed[-1] <= NOTICED_SECONDS
        and all(seconds < REPORTED_SECONDS for seconds, _ in exits.values()),
    }


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--crashes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    document = asyncio.run(measure(options.crashes, options.seed))
    print(json.dumps(document, indent=1))
    return 0 if document["held"] else 1


if __name__ == "__main__":
    sys.exit(main())
