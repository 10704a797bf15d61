"""Every fault switch does what it says."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import httpx
import pytest

from autotune.engines.simulated.faults import KINDS
from tests.patience import until
from tests.simulated.servers import simulated
from tests.simulated.test_lifecycle import KIMI_ARGS, MINI, VLLM, ask

DYING = [  # fault, line of the log; SGLang kills itself by signal 9
    ("oom@load", "torch.OutOfMemoryError: CUDA out of memory"),
    ("oom@kv", "torch.OutOfMemoryError: CUDA out of memory"),
    ("oom@capture", "Capture cuda graph failed: CUDA out of memory"),
    ("unsupported", "Unsupported architecture"),
    ("rank_exception@load", "an illegal memory access was encountered"),
]


@pytest.mark.parametrize(("fault", "line"), DYING)
def test_a_start_that_fails_says_why_and_dies_by_signal_9(
    fault: str, line: str, tmp_path: Path
) -> None:
    with simulated(tmp_path, "sglang", KIMI_ARGS, fault=fault) as server:
        assert server.wait() == -signal.SIGKILL
        assert line in server.log
        assert "Received sigquit from a child process" in server.log
        until(lambda: set(server.ledger().values()) == {0})


def test_out_of_memory_strikes_in_the_phase_it_was_told(tmp_path: Path) -> None:
    def reached(fault: str) -> tuple[bool, bool, bool]:
        with simulated(tmp_path, "sglang", KIMI_ARGS, fault=fault) as server:
            server.wait()
            words = ("Load weight end", "KV Cache is allocated", "Capture target decode")
            return tuple(word in server.log for word in words)  # type: ignore[return-value]

    assert reached("oom@load") == (False, False, False)
    assert reached("oom@kv") == (True, False, False)
    assert reached("oom@capture") == (True, True, True)


def test_out_of_memory_at_the_first_burst_leaves_single_requests_alone(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", KIMI_ARGS, fault="oom@burst") as server:
        server.wait_ready()
        assert not server.load(2, 1).failed
        assert len(server.load(32, 16).failed) >= 16
        assert server.wait() == -signal.SIGKILL
        assert "torch.OutOfMemoryError" in server.log


def test_vllm_says_the_cause_first_and_ends_with_the_generic_line(tmp_path: Path) -> None:
    with simulated(tmp_path, "vllm", VLLM, fault="oom@kv") as server:
        assert server.wait() == 1
        lines = server.log.splitlines()
        cause = next(i for i, line in enumerate(lines) if "OutOfMemoryError" in line)
        generic = next(i for i, line in enumerate(lines) if "Engine core initialization" in line)
        assert cause < generic
        assert re.search(r"EngineCore pid=\d+\) ERROR .*OutOfMemoryError", server.log)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_an_nccl_hang_keeps_gpus_busy_and_the_log_silent(engine: str, tmp_path: Path) -> None:
    args = KIMI_ARGS if engine == "sglang" else VLLM
    with simulated(tmp_path, engine, args, fault="nccl_hang") as server:
        hung = "Init parallel begin" if engine == "sglang" else "backend=nccl"
        until(lambda: hung in server.log and max(server.ledger().values()) > 0)
        said, moment = server.log, server.clock.now()
        until(lambda: server.clock.now() > moment + 300)
        assert server.log == said
        assert '"busy_percent": 100' in (server.host_dir / "gpus.json").read_text()
        assert server._health() is None
        server.process.terminate()


def test_a_slow_shard_stops_the_bar_for_a_while_and_the_load_goes_on(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", KIMI_ARGS, fault="slow_shard:3000") as server:
        server.wait_ready()
        took = re.search(r"Load weight end. elapsed=([\d.]+)", server.log)
        assert took is not None
        assert float(took[1]) > 3300


def test_a_rank_dies_when_told(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", KIMI_ARGS, fault="rank_dies@load:5") as server:
        assert server.wait() == 1
        assert "Rank 5 scheduler died during initialization (exit code: -9)" in server.log
    with simulated(tmp_path, "sglang", KIMI_ARGS, fault="rank_dies@serve:2") as server:
        server.wait_ready()
        assert server.load(40, 4).failed
        assert server.wait() == -signal.SIGKILL
        assert "Subprocess scheduler_2" in server.log


def test_a_dead_vllm_engine_ends_streams_with_an_error_object(tmp_path: Path) -> None:
    with simulated(tmp_path, "vllm", VLLM, fault="rank_dies@serve") as server:
        server.wait_ready()
        failed = server.load(40, 4).failed
        assert "EngineCore encountered an issue" in failed[0].error
        assert server.wait() == 0


def test_orphans_outlive_their_launcher_and_ignore_sigterm(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", KIMI_ARGS, fault="orphans") as server:
        server.wait_ready()
        server.process.terminate()
        assert server.wait() == 0
        ranks = server.tree()
        assert len(ranks) >= 8
        for pid in ranks:
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.1)
        assert set(server.tree()) == set(ranks)
        assert min(server.ledger().values()) > 0


def test_a_squatter_answers_under_another_name(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", KIMI_ARGS, fault="port_squatter", speed=300) as server:
        until(lambda: server._health() == 200)
        models = server.http.get("/v1/models").json()["data"]
        assert [model["id"] for model in models] == ["somebody-else"]


@pytest.mark.parametrize("fault", ["no_tokens", "never_answers"])
def test_a_healthy_server_that_gives_no_token(fault: str, tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", MINI, host="1x-h200", fault=fault) as server:
        server.wait_ready()
        assert server._health() == 200
        with pytest.raises(httpx.ReadTimeout):
            body = {"model": "m", "prompt": "x", "stream": True}
            server.http.post("/v1/completions", json=body, timeout=0.5)


def test_garbled_answers_are_garbage(tmp_path: Path) -> None:
    from autotune.answers import is_degenerate

    with simulated(tmp_path, "sglang", MINI, host="1x-h200", fault="garbled") as server:
        server.wait_ready()
        assert is_degenerate(ask(server, max_tokens=64).json()["choices"][0]["text"])


def test_a_tenth_of_requests_fails(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", MINI, host="1x-h200", fault="fail_requests") as server:
        server.wait_ready()
        run = server.load(200, 8, (64, 8))
        assert 8 <= len(run.failed) <= 36
        assert {reply.status for reply in run.failed} == {500}


def test_an_error_object_ends_some_streams(tmp_path: Path) -> None:
    fault = "error_in_stream:0.3"
    with simulated(tmp_path, "sglang", MINI, host="1x-h200", fault=fault) as server:
        server.wait_ready()
        run = server.load(60, 4, (64, 64))
        assert 0.1 <= len(run.failed) / len(run.replies) <= 0.5
        assert {reply.fault for reply in run.failed} == {"error_in_stream"}
        assert {reply.status for reply in run.failed} == {200}


def test_an_ignored_flag_is_recorded_and_has_no_effect(tmp_path: Path) -> None:
    args = [*KIMI_ARGS, "--attention-backend", "triton", "--disable-cuda-graph"]
    with simulated(tmp_path, "sglang", args, fault="ignored_flag:disable-cuda-graph") as server:
        server.wait_ready()
        assert server.http.get("/server_info").json()["disable_cuda_graph"] is True
        run = server.load(3, 1)
        assert run.ok[-1].completion_tokens / run.ok[-1].e2e_seconds > 50


def test_a_crash_comes_after_minutes_of_load(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", KIMI_ARGS, fault="crash_under_load:20") as server:
        server.wait_ready()
        run = server.load(60, 1)
        assert 2 <= len(run.ok) < 60
        assert server.wait() == -signal.SIGKILL
        assert "illegal memory access" in server.log


@pytest.mark.parametrize("status", [0, 1])
def test_a_server_that_just_exits(status: int, tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", MINI, host="1x-h200", fault=f"exit{status}") as server:
        assert server.wait() == status


def test_a_log_can_be_flooded(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", MINI, host="1x-h200", fault="log_flood:20") as server:
        server.wait_ready()
        log = server.trial_dir / "server.log"
        before = log.stat().st_size
        until(lambda: log.stat().st_size - before > 4e6)


def test_the_first_post_can_take_minutes(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", MINI, host="1x-h200", fault="slow_first_post") as server:
        server.wait_ready()
        run = server.load(2, 1)
        assert run.ok[0].e2e_seconds > 264
        assert run.ok[1].e2e_seconds < 10


def test_sigterm_can_be_ignored(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", MINI, host="1x-h200", fault="ignores_sigterm") as server:
        server.wait_ready()
        server.process.terminate()
        time.sleep(0.3)
        assert server.process.poll() is None
        assert ask(server).status_code == 200


def test_memory_can_stay_held_by_the_dead(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", KIMI_ARGS, fault="memory_stays:2") as server:
        server.wait_ready()
        ended = time.time()
        server.process.terminate()
        assert server.wait() == 0
        until(lambda: not server.tree())
        holders = json.loads((server.host_dir / "gpus.json").read_text())["holders"]
        assert len(holders) == 8
        assert all(entry["leaked"] and entry["until"] >= ended + 2 for entry in holders)
        until(lambda: max(server.ledger().values()) == 0)


def test_an_unknown_fault_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", MINI, host="1x-h200", fault="ooom") as server:
        assert server.wait() == 2
        assert "unknown fault 'ooom'; one of oom" in server.log
    with simulated(tmp_path, "sglang", MINI, host="1x-h200", fault="oom@lunch") as server:
        assert server.wait() == 2
        assert "oom takes one of load, kv, capture, burst" in server.log


def test_every_fault_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    assert [name for name in KINDS if f"`{name}" not in text] == []
