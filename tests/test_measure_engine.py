"""A measurement of a real engine: vLLM's CPU build."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.engines.registry import engine_named
from autotune.errors import TrialFailed
from autotune.records import PEAK, SINGLE, FailureKind, Phase
from tests.measuring import measured
from tests.vllm_cpu import vllm_cpu

pytestmark = pytest.mark.engine

LOAD = {"input_tokens": 200, "output_tokens": 48, "peak_concurrency": 8}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with vllm_cpu() as running:
        yield running


async def test_a_real_vllm_is_measured(
    server: tuple[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    found = await measured(server[0], tmp_path, engine=engine_named("vllm"), workload=LOAD)
    assert found.values[PEAK] > found.values[SINGLE] > 0
    # A fast host is through before the server has been looked at often enough to claim a limit.
    assert found.figures.get("running_requests_max", 8) <= 8
    assert found.figures["cached_share"] == 0
    assert found.figures["peak_failed_requests"] == 0
    assert found.figures["single_p50_tpot_ms"] < found.figures["single_p50_e2e_ms"] / 40


async def test_a_workload_beyond_the_real_context_is_refused(
    server: tuple[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    with pytest.raises(TrialFailed, match="context of 1024 tokens is shorter"):
        await measured(server[0], tmp_path, workload=LOAD | {"input_tokens": 1000})


async def test_a_server_that_dies_under_load_fails_with_what_was_measured(
    server: tuple[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    async def kill_at_the_peak() -> None:
        while '"phase": "single"' not in (tmp_path / "requests.jsonl").read_text():
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        os.killpg(server[1].pid, signal.SIGKILL)

    async def begin() -> None:
        while not (tmp_path / "requests.jsonl").exists():
            await asyncio.sleep(0.02)
        await kill_at_the_peak()

    killer = asyncio.create_task(begin())
    with pytest.raises(TrialFailed) as caught:
        await measured(server[0], tmp_path, workload=LOAD | {"output_tokens": 400})
    await killer
    assert caught.value.failure.kind is FailureKind.REQUESTS_FAILED
    assert caught.value.failure.phase is Phase.PEAK
    assert caught.value.partial is not None and caught.value.partial.values[SINGLE] > 0
