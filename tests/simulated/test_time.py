"""Figures do not depend on the speed, and an idle or sleeping client is not raced."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from pathlib import Path

import pytest

from autotune.engines.simulated.clock import STANDSTILL_SECONDS, SimulatedClock
from autotune.engines.simulated.clock_file import NAME, ClockFile
from autotune.engines.simulated.hosts import host_named
from autotune.engines.simulated.models import model_named
from autotune.engines.simulated.prediction import Load, predict
from autotune.engines.simulated.sglang_args import parse
from autotune.engines.simulated.timekeeper import Timekeeper
from autotune.load import open_loop
from autotune.stream import Endpoint, Request
from tests.patience import PATIENCE_SECONDS, until
from tests.simulated.servers import Running, simulated, single_tok_s, whole_run_tok_s
from tests.simulated.test_lifecycle import KIMI_ARGS

SPEC = [
    *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "x"),
    *("--speculative-num-steps", "2", "--speculative-eagle-topk", "1"),
    *("--speculative-num-draft-tokens", "3", "--max-running-requests", "64"),
]


@pytest.mark.parametrize("extra", [[], SPEC], ids=["plain", "speculative"])
def test_figures_are_the_same_at_every_speed(extra: list[str], tmp_path: Path) -> None:
    def measure(server: Running, speed: float) -> tuple[float, float, float]:
        server.set_speed(speed)
        server.http.post("/flush_cache")
        single = statistics.median(single_tok_s(server.load(3, 1, (128, 64))))
        server.http.post("/flush_cache")
        run = server.load(64, 32, (128, 64))
        ttft = statistics.median(reply.ttft_seconds or 0.0 for reply in run.ok)
        return single, whole_run_tok_s(run), ttft

    with simulated(tmp_path, "sglang", [*KIMI_ARGS, *extra]) as server:
        server.wait_ready()
        server.load(6, 1)
        fast, slow = measure(server, 5000), measure(server, 4)
    assert slow == pytest.approx(fast, rel=0.04)


def test_what_is_asked_while_kernels_are_compiled_waits_for_them(tmp_path: Path) -> None:
    """HTTP is open by then. Served meanwhile, tokens took the compiler's time."""
    args = [*KIMI_ARGS, "--attention-backend", "flashinfer"]
    with simulated(tmp_path, "sglang", args, speed=200) as server:
        until(lambda: server._health() == 503)
        run = server.load(1, 1, (128, 64))
        assert "ready to roll" in server.log
        assert single_tok_s(run)[0] < 5  # it waited for most of the 95 s
        assert single_tok_s(server.load(1, 1, (128, 64)))[0] > 50


def test_virtual_time_stands_while_the_client_thinks(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", KIMI_ARGS) as server:
        server.wait_ready()
        server.load(1, 1)
        before = server.clock.now()
        time.sleep(0.1)
        assert server.clock.now() == before


def test_an_open_loop_sends_at_its_virtual_times(tmp_path: Path) -> None:
    def make(index: int) -> Request:
        body = (
            f'{{"model":"m","prompt":"{index:09d} hello there","max_tokens":8,"ignore_eos":true,'
            '"stream":true,"stream_options":{"include_usage":true}}'
        )
        return Request(index, body.encode(), 8)

    with simulated(tmp_path, "sglang", KIMI_ARGS) as server:
        server.wait_ready()
        server.load(6, 1)
        endpoint = Endpoint(str(server.http.base_url), "/v1/completions")
        run = asyncio.run(open_loop(endpoint, make, 2.0, 30, clock=server.clock, seed=3))
    assert not run.failed
    sent = sorted(reply.sent for reply in run.ok)
    assert sent[-1] - sent[0] == pytest.approx(29 / 2.0, rel=0.5)
    assert max(reply.e2e_seconds for reply in run.ok) < 1.5


def test_sleeping_moves_the_clock_where_no_server_does(tmp_path: Path) -> None:
    clock = SimulatedClock(tmp_path, 5000.0)
    asyncio.run(asyncio.wait_for(clock.sleep(900.0), PATIENCE_SECONDS))
    assert clock.now() >= 900.0


def test_sleepers_wake_in_order_and_at_their_time_however_long_the_host_stalls(
    tmp_path: Path,
) -> None:
    clock, woken = SimulatedClock(tmp_path, 5000.0), list[float]()

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(clock.now())

    async def stall() -> None:
        await asyncio.sleep(STANDSTILL_SECONDS + 0.05)  # they move the clock themselves by now
        time.sleep(1.0)

    async def both() -> None:
        await asyncio.gather(sleep(9000.0), sleep(4000.0), stall())

    asyncio.run(both())
    assert woken == [4000.0, 9000.0]


def test_a_client_that_works_is_told_from_one_that_waits(tmp_path: Path) -> None:
    file, done = ClockFile(tmp_path / NAME, 1.0), threading.Event()
    server = Timekeeper(tmp_path, 1.0)
    file.touch()
    assert server._client_wants_to_run  # it is this thread

    def look_and_wait() -> None:
        file.take()
        done.wait()

    client = threading.Thread(target=look_and_wait)
    client.start()
    until(lambda: not server._client_wants_to_run)
    done.set()
    client.join()


def test_launches_differ_a_little_and_a_repeat_of_a_launch_does_not(tmp_path: Path) -> None:
    def single(seed: str) -> float:
        with simulated(tmp_path, "sglang", KIMI_ARGS, seed=seed) as server:
            server.wait_ready()
            server.load(6, 1)
            return statistics.median(single_tok_s(server.load(5, 1)))

    first, again, other = single("a"), single("a"), single("b")
    assert again == pytest.approx(first, rel=1e-3)
    assert abs(other - first) > 2e-3 * first
    assert other == pytest.approx(first, rel=0.06)


def test_the_first_tokens_of_a_server_are_slow(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", KIMI_ARGS) as server:
        server.wait_ready()
        rates = single_tok_s(server.load(8, 1))
    assert rates[0] < 0.9 * rates[-1]


def test_the_first_load_is_long_and_the_next_launches_are_shorter(tmp_path: Path) -> None:
    def start_seconds(seed: str) -> tuple[float, float]:
        with simulated(tmp_path, "sglang", KIMI_ARGS, seed=seed) as server:
            server.wait_ready()
            info = server.http.get("/server_info").json()["startup_time"]
            return info["load_weight"], info["cuda_graph"]["decode"]

    cold, warm = start_seconds("a"), start_seconds("b")
    assert 313 <= cold[0] <= 628
    assert warm[0] < 0.6 * cold[0]
    assert cold[1] - warm[1] == pytest.approx(75, abs=1)  # kernels were compiled once


def test_speculation_finds_the_kernels_of_a_launch_without_it(tmp_path: Path) -> None:
    def capture_seconds(extra: list[str]) -> float:
        with simulated(tmp_path, "sglang", [*KIMI_ARGS, *extra]) as server:
            server.wait_ready()
            info = server.http.get("/server_info").json()["startup_time"]
            return float(info["cuda_graph"]["decode"])

    plain, speculative, again = (capture_seconds(extra) for extra in ([], SPEC, SPEC))
    assert plain > 75
    assert speculative == again


def test_prediction_and_server_agree_where_kv_room_is_short(tmp_path: Path) -> None:
    args = [*KIMI_ARGS[:-1], "0.8", "--attention-backend", "triton"]
    with simulated(tmp_path, "sglang", args) as server:
        server.wait_ready()
        server.load(128, 128)
        served = whole_run_tok_s(server.load(256, 128, (600, 256)))
        info = server.http.get("/server_info").json()
    host = host_named("8x-rtx-pro-6000")
    found = predict(
        host, model_named("kimi-k2"), parse(args, {}, host).settings, Load(600, 256, 128)
    )
    assert found.kv_tokens == info["max_total_num_tokens"]
    assert found.peak_tok_s == pytest.approx(served, rel=0.2)
