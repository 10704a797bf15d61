"""What a start that is given up says, read from a log that nobody answers behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from autotune.engines.registry import engine_named
from autotune.errors import TrialFailed
from autotune.machine import Machine, free_port
from autotune.records import Launch
from autotune.starting import Starting
from autotune.timeline import Timeline

LIMIT_SECONDS = 36.0


class Ticking:
    """A clock that goes on by a second each time it is read."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        self.seconds += 1.0
        return self.seconds

    def stamp(self, event: Mapping[str, Any]) -> float:
        return self.now()

    async def sleep(self, seconds: float) -> None:
        await asyncio.Event().wait()


async def cause_at_the_limit(folder: Path, log: str) -> str:
    (folder / "server.log").write_text(log)
    launch = Launch(
        trial=1,
        engine="sglang",
        argv=("sglang",),
        env={},
        host="127.0.0.1",
        port=free_port(),
        served_name="autotune-0001",
        trial_dir=folder,
        mark="0001-test",
    )
    started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    started.set_result(None)
    leash = SimpleNamespace(
        started=started,
        exit=asyncio.get_running_loop().create_future(),
        log_path=folder / "server.log",
        pids=set(),
    )
    clock = Ticking()
    starting = Starting(
        launch,
        engine_named("sglang"),
        cast(Any, leash),
        cast(Machine, None),  # is asked for GPUs only
        Timeline(1, clock=clock),
        clock,
        SimpleNamespace(stall_minutes=60.0, limit_hours=LIMIT_SECONDS / 3600),
    )
    async with httpx.AsyncClient() as http:
        with pytest.raises(TrialFailed) as failed:
            await starting.until_ready(http)
    return failed.value.failure.cause


BEGUN = "".join(
    f"[2026-11-29 10:00:00 TP{rank}] Load weight begin. avail mem=138.25 GB\n" for rank in (0, 1)
)


async def test_the_ranks_that_are_waited_for_are_named_at_the_limit(tmp_path: Path) -> None:
    log = BEGUN + "[2026-11-29 10:00:00 TP0] Load weight end. elapsed=0.19 s\n"
    cause = await cause_at_the_limit(tmp_path, log)
    assert cause.startswith("not ready after 0.0 h, while allocating the KV cache")
    assert cause.endswith("; TP1 of 2 ranks is still loading weights")


async def test_a_line_that_is_cut_accuses_nobody_however_often_it_is_read(tmp_path: Path) -> None:
    cause = await cause_at_the_limit(tmp_path, BEGUN[:-12])
    assert cause == "not ready after 0.0 h, while loading weights"
