"""A simulated server starts, answers and stops as a real one does."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path

import httpx
import pytest

from autotune.engines.simulated.text import count_tokens
from tests.patience import until
from tests.simulated.servers import KIMI, Running, simulated

MINI = ["--model-path", "/models/mini-kimi", "--attention-backend", "triton", "--enable-metrics"]
KIMI_ARGS = ["--model-path", KIMI, "--tp-size", "8", "--mem-fraction-static", "0.9"]
VLLM = [KIMI, "--tensor-parallel-size", "8", "--max-model-len", "32768"]


def ask(server: Running, **more: object) -> httpx.Response:
    body = {"model": "m", "prompt": "What is the capital of France?", "max_tokens": 32, **more}
    return server.http.post("/v1/completions", json=body)


def test_sglang_ranks_have_their_own_titles_and_processes(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", KIMI_ARGS) as server:
        server.wait_ready()
        titles = sorted(server.tree().values())
    ranks = [title for title in titles if title.startswith("sglang::scheduler_TP")]
    assert ranks == [f"sglang::scheduler_TP{rank}" for rank in range(8)]
    assert "sglang::detokenizer" in titles


def test_vllm_workers_are_children_of_the_engine_core(tmp_path: Path) -> None:
    with simulated(tmp_path, "vllm", VLLM) as server:
        server.wait_ready()
        tree = server.tree()
        core = next(pid for pid, title in tree.items() if title == "VLLM::EngineCore")
        workers = [pid for pid, title in tree.items() if title.startswith("VLLM::Worker")]
        parents = {int(Path(f"/proc/{pid}/stat").read_text().split()[3]) for pid in workers}
    assert len(workers) == 8
    assert parents == {core}


def test_health_is_refused_then_503_then_200(tmp_path: Path) -> None:
    seen: list[int | None] = []
    cold = [*MINI, "--attention-backend", "flashinfer"]  # compiles for a minute, HTTP being open
    with simulated(tmp_path, "sglang", cold, host="1x-h200", speed=50) as server:

        def poll() -> bool:
            status = server._health()
            if not seen or seen[-1] != status:
                seen.append(status)
            return status == 200

        until(poll)
    assert seen == [None, 503, 200]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_sigterm_ends_everything_with_status_0_and_frees_the_gpus(
    engine: str, tmp_path: Path
) -> None:
    args = KIMI_ARGS if engine == "sglang" else VLLM
    with simulated(tmp_path, engine, args) as server:
        server.wait_ready()
        assert min(server.ledger().values()) > 80 * 2**30
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        until(lambda: not server.tree())
        assert set(server.ledger().values()) == {0}


def test_sglang_finishes_running_requests_before_it_stops(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", MINI, host="1x-h200") as server:
        server.wait_ready()
        server.set_speed(5)
        with server.http.stream(
            "POST",
            "/v1/completions",
            json={
                "model": "m",
                "prompt": "x" * 99,
                "max_tokens": 200,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        ) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert any('"completion_tokens":200' in line for line in rest)
        assert server.wait() == 0


@pytest.mark.parametrize(("tokens", "least", "most"), [(0, 4.0, 5.0), (3000, 9.0, 10.0)])
def test_sglang_takes_its_time_to_stop(
    tokens: int, least: float, most: float, tmp_path: Path
) -> None:
    """Longer with requests left: it looks for them every five seconds."""
    with simulated(tmp_path, "sglang", MINI, host="1x-h200") as server:
        server.wait_ready()
        server.set_speed(1)  # the request, of four seconds, must still run when it is told
        body = {"model": "m", "prompt": "x", "max_tokens": tokens, "stream": True}
        body["ignore_eos"] = True
        with contextlib.ExitStack() as stack:
            if tokens:
                answer = stack.enter_context(
                    server.http.stream("POST", "/v1/completions", json=body)
                )
                next(answer.iter_lines())
            asked = server.clock.now()
            server.process.send_signal(signal.SIGTERM)
            assert server.wait() == 0
            assert least <= server.clock.now() - asked < most


def test_sglang_ranks_die_with_a_killed_launcher(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", KIMI_ARGS) as server:
        server.wait_ready()
        server.process.kill()
        server.wait()
        until(lambda: not server.tree())


def test_vllm_workers_outlive_a_killed_launcher(tmp_path: Path) -> None:
    with simulated(tmp_path, "vllm", VLLM) as server:
        server.wait_ready()
        server.process.kill()
        server.wait()
        assert len(server.tree()) >= 9
        assert min(server.ledger().values()) > 80 * 2**30


def test_a_killed_rank_takes_a_serving_sglang_along_by_signal_9(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", KIMI_ARGS) as server:
        server.wait_ready()
        rank = next(pid for pid, title in server.tree().items() if title.endswith("TP3"))
        os.kill(rank, signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
        assert re.search(
            r"Subprocess scheduler_3 \(pid=\d+\) crashed with exit code -9", server.log
        )


def test_a_killed_worker_ends_vllm_with_status_0(tmp_path: Path) -> None:
    with simulated(tmp_path, "vllm", VLLM) as server:
        server.wait_ready()
        worker = next(pid for pid, title in server.tree().items() if title.endswith("TP0"))
        os.kill(worker, signal.SIGKILL)
        assert server.wait() == 0
        assert "Worker proc VllmWorker-0 died unexpectedly (exit code: -9)" in server.log


def test_answers_are_the_same_every_time_marked_and_sane(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", MINI, host="1x-h200") as server:
        server.wait_ready()
        first, second = ask(server), ask(server)
        assert first.headers["x-autotune-simulated"] == "true"
        assert first.json()["simulated"] is True
        assert "Paris" in first.json()["choices"][0]["text"]
        assert first.json()["choices"] == second.json()["choices"]
        assert server.http.get("/server_info").json()["simulated"] is True
        assert "SIMULATED" in server.log


def test_a_stream_gives_exact_usage_and_several_tokens_a_chunk(tmp_path: Path) -> None:
    with simulated(tmp_path, "vllm", VLLM) as server:
        server.wait_ready()
        run = server.load(4, 2, (64, 100))
        assert [reply.completion_tokens for reply in run.ok] == [100] * 4
        assert all(1 < len(reply.deltas) < 100 for reply in run.ok)
        assert all(reply.prompt_tokens == 64 for reply in run.ok)


@pytest.mark.parametrize(
    ("text", "tokens"), [("What is it?", 3), ("", 1), ("#7 w12 w31000\nw5", 4), ("w12x w", 2)]
)
def test_a_word_of_the_dummy_models_is_a_token(text: str, tokens: int) -> None:
    assert count_tokens(text) == tokens


def test_a_repeated_prompt_is_cached_until_the_cache_is_flushed(tmp_path: Path) -> None:
    def cached(server: Running) -> int:
        usage = ask(server, prompt="one two three " * 200).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    with simulated(tmp_path, "sglang", MINI, host="1x-h200") as server:
        server.wait_ready()
        assert cached(server) == 0
        assert cached(server) > 500
        assert server.http.post("/flush_cache").status_code == 200
        assert cached(server) == 0


def test_vllm_refuses_another_model_and_too_many_tokens(tmp_path: Path) -> None:
    with simulated(tmp_path, "vllm", VLLM) as server:
        server.wait_ready()
        assert ask(server, model="other").status_code == 404
        too_long = ask(server, max_tokens=40_000)
        assert too_long.status_code == 400
        assert "cannot be greater than max_model_len" in too_long.json()["error"]["message"]


def test_a_second_server_on_the_same_gpus_finds_no_memory(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", KIMI_ARGS) as first:
        first.wait_ready()
        with simulated(tmp_path, "sglang", KIMI_ARGS) as second:
            assert second.wait() == -signal.SIGKILL
            assert "The memory capacity is unbalanced" in second.log
        with simulated(tmp_path, "vllm", VLLM) as third:
            assert third.wait() == 1
            assert "on startup is less than desired GPU memory utilization" in third.log
        assert ask(first).status_code == 200


def test_a_taken_port_ends_vllm_before_the_load_and_sglang_after_it(tmp_path: Path) -> None:
    with simulated(tmp_path, "vllm", VLLM, fault="port_squatter") as server:
        assert server.wait() == 1
        assert "OSError: [Errno 98] Address already in use" in server.log
        assert "Starting to load model" not in server.log
    with simulated(tmp_path, "sglang", KIMI_ARGS, fault="port_squatter") as server:
        assert server.wait() == 1
        assert "address already in use" in server.log
        assert "Load weight end" in server.log


def test_a_server_of_no_known_engine_takes_any_flag(tmp_path: Path) -> None:
    with simulated(tmp_path, "openai", ["--fast", "--threads", "4"], host="1x-h200") as server:
        server.wait_ready()
        assert ask(server).json()["usage"]["completion_tokens"] > 0
        assert [m["id"] for m in server.http.get("/v1/models").json()["data"]] == ["m"]


def test_a_process_stays_below_60_mb(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", KIMI_ARGS) as server:
        server.wait_ready()
        assert not server.load(192, 64).failed
        page = os.sysconf("SC_PAGE_SIZE")
        resident = {
            title: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
            for pid, title in server.tree().items()
        }
    assert max(resident.values()) < 60e6, resident


def test_every_rank_carries_the_trials_mark(tmp_path: Path) -> None:
    with simulated(tmp_path, "vllm", VLLM) as server:
        server.wait_ready()
        marks = {
            b"AUTOTUNE_MARK=mark-trial-0" in Path(f"/proc/{pid}/environ").read_bytes()
            for pid in server.tree()
        }
    assert marks == {True}
