"""One trial at a time is measured on a host."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid

from autotune.turn import turn

HOLD = """
import asyncio, sys
from autotune.turn import turn
async def hold():
    async with turn(sys.argv[1]):
        print("held", flush=True)
        await asyncio.sleep(600)
asyncio.run(hold())
"""


def test_turns_do_not_overlap_and_everybody_gets_one() -> None:
    host, inside, most = uuid.uuid4().hex, 0, 0

    async def measured() -> None:
        nonlocal inside, most
        async with turn(host):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.02)
            inside -= 1

    async def everybody() -> None:
        await asyncio.gather(*(measured() for _ in range(4)))

    asyncio.run(everybody())
    assert (inside, most) == (0, 1)


def test_hosts_have_turns_of_their_own_and_a_lone_trial_needs_none() -> None:
    async def nested() -> bool:
        host = uuid.uuid4().hex
        async with turn(host), turn(host + "another"), turn(None), turn(None):
            return True

    assert asyncio.run(nested())


def test_a_killed_trial_has_given_its_turn_back() -> None:
    host = uuid.uuid4().hex
    command = [sys.executable, "-c", HOLD, host]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"

        async def wait() -> None:
            waiting = asyncio.ensure_future(_take(host))
            await asyncio.sleep(0.5)
            assert not waiting.done()
            holder.kill()
            assert await waiting

        asyncio.run(wait())


async def _take(host: str) -> bool:
    async with turn(host):
        return True
