"""How long an all-reduce takes, and what NCCL's variables do to it and to a start."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engines.logs import pieces
from autotune.engines.registry import engine_named
from autotune.engines.simulated import durations, nccl
from autotune.engines.simulated.collectives import OWN_LIMIT_BYTES, all_reduce_us
from autotune.engines.simulated.hosts import host_named
from autotune.engines.simulated.models import NARROW
from autotune.engines.simulated.prediction import Load, Prediction, predict
from autotune.engines.simulated.settings import Collective, Settings
from autotune.records import FailureKind, Phase
from tests.simulated.servers import simulated
from tests.simulated.test_lifecycle import KIMI_ARGS, VLLM

H200 = host_named("8x-h200")
PAIR = Settings(tp=2, mem_fraction=0.6, graph_max_bs=64, max_running=64)
SMALL, LARGE = 2048, 64 * 2**20


def us(message: float, tp: int = 2, **variables: object) -> float:
    settings = replace(PAIR, tp=tp, collective=Collective(**variables))  # type: ignore[arg-type]
    return all_reduce_us(H200, settings, message, graph=True)


def found(settings: Settings = PAIR, **variables: object) -> Prediction:
    collective = Collective(**variables)  # type: ignore[arg-type]
    prediction = predict(H200, NARROW, replace(settings, collective=collective), Load(128, 256, 64))
    assert prediction.failure is None, prediction.failure
    return prediction


@pytest.mark.parametrize(
    ("value", "all_reduce", "all_gather"),
    [
        ("", "", True),
        ("Tree", "tree", False),
        ("RING", "ring", True),
        ("Ring,Tree", "", True),
        ("Tree,CollnetChain", "", False),
        ("^Tree", "", True),
        ("allreduce:tree", "tree", True),
        ("AllReduce:Ring", "ring", True),
        ("allgather:ring", "", True),
        ("tree;allgather:ring", "tree", True),
        ("allreduce:tree;tree", "tree", False),
    ],
)
def test_a_bare_algorithm_is_for_every_collective(
    value: str, all_reduce: str, all_gather: bool
) -> None:
    assert nccl.all_reduce_algorithm(value) == all_reduce
    assert bool(nccl.algorithms(value, "allgather")) == all_gather


def test_small_messages_of_the_own_kernel_never_reach_nccl() -> None:
    for proto, p2p_disabled in (("Simple", False), ("", True)):
        variables = {"proto": proto, "p2p_disabled": p2p_disabled}
        assert us(SMALL, **variables) == us(SMALL)
        above = OWN_LIMIT_BYTES + 1
        assert us(above, **variables) == us(above, custom=False, **variables)
    assert us(OWN_LIMIT_BYTES) < us(OWN_LIMIT_BYTES + 1)


@pytest.mark.parametrize(
    ("size", "best"), [(SMALL, "LL"), (128 * 1024, "LL"), (4 * 2**20, "LL128"), (LARGE, "Simple")]
)
def test_nccl_takes_the_protocol_that_is_fastest_for_the_size(size: int, best: str) -> None:
    times = {name: us(size, custom=False, proto=name) for name in ("LL", "LL128", "Simple")}
    assert min(times, key=lambda name: times[name]) == best
    assert us(size, custom=False) == times[best]
    assert us(size, custom=False, proto="^ll") == min(times["LL128"], times["Simple"])


def test_links_that_are_not_used_cost_little_of_one_stream_and_much_of_many() -> None:
    """Measured on two H200: 7 % and 24 %; the protocol for large messages 26 % and 26 %."""
    base, staged = found(custom=False), found(custom=False, p2p_disabled=True)
    assert staged.single_tok_s / base.single_tok_s == pytest.approx(0.93, abs=0.03)
    assert staged.peak_tok_s / base.peak_tok_s == pytest.approx(0.76, abs=0.05)
    simple = found(custom=False, proto="Simple")
    assert simple.single_tok_s / base.single_tok_s == pytest.approx(0.74, abs=0.06)
    assert simple.peak_tok_s / base.peak_tok_s == pytest.approx(0.74, abs=0.06)
    assert base.single_tok_s / found().single_tok_s == pytest.approx(0.855, abs=0.03)


def test_more_ranks_take_longer() -> None:
    for custom in (True, False):
        assert us(SMALL, tp=8, custom=custom) > us(SMALL, tp=4, custom=custom) > us(SMALL)
        assert us(SMALL, custom=custom) > 0


def test_a_drafter_is_split_over_the_ranks_and_has_no_graphs_where_the_model_has_none() -> None:
    """Measured: 377,044 tokens of KV, and 203 ms a cycle of 96 + 3 x 16 layers."""
    drafting = replace(PAIR, spec_steps=3, graph_max_bs=0, graph_sizes=0)
    speculative, plain = found(drafting), found(replace(drafting, spec_steps=0))
    assert speculative.kv_tokens == pytest.approx(377_044, rel=0.02)
    assert speculative.step_ms / plain.step_ms == pytest.approx(1.5, abs=0.05)
    assert speculative.step_ms == pytest.approx(203, rel=0.1)


NO_TREE = (
    r"^\[[\d :-]+\] \S+:\d+:\d+ \[1\] enqueue\.cc:\d+ NCCL WARN Error : no algorithm/protocol "
    r"available for function AllGather with datatype ncclInt8\. NCCL_ALGO was set to Tree\.$",
    r'^    raise RuntimeError\(f"NCCL error: \{error_str\}"\)$',
    r"^RuntimeError: NCCL error: invalid usage \(run with NCCL_DEBUG=WARN for details\)$",
)
CAPTURE_FAILED = (
    r"^Exception: Capture cuda graph failed: NCCL error: invalid usage \(run with NCCL_DEBUG=WARN "
    r"for details\)$"
)


@pytest.mark.parametrize("graphs", [True, False])
def test_a_bare_tree_ends_sglang_where_the_logits_are_first_gathered(
    graphs: bool, tmp_path: Path
) -> None:
    env = {"NCCL_ALGO": "Tree", "NCCL_DEBUG": "WARN"}
    args = KIMI_ARGS if graphs else [*KIMI_ARGS, "--disable-cuda-graph"]
    with simulated(tmp_path, "sglang", args, env=env) as server:
        assert server.wait() == -9
        log = server.log
    for pattern in (*NO_TREE, *([CAPTURE_FAILED] if graphs else [])):
        assert re.search(pattern, log, re.M), pattern
    for rank in range(8):
        assert f" TP{rank}] Scheduler hit an exception: Traceback" in log
    adapter = engine_named("sglang")
    phases = [phase for line in pieces(log) if (phase := adapter.phase_of(line)) is not None]
    assert phases[-1] == (Phase.CAPTURE if graphs else Phase.READY)
    causes = [kind for line in pieces(log) if (kind := adapter.failure_of(line)) is not None]
    assert causes[0] == FailureKind.UNSUPPORTED


@pytest.mark.parametrize("debug", ["", "WARN"])
def test_a_bare_tree_ends_vllm_and_nccl_says_why_only_when_asked(
    debug: str, tmp_path: Path
) -> None:
    env = {"NCCL_ALGO": "Tree", "NCCL_DEBUG": debug}
    with simulated(tmp_path, "vllm", VLLM, env=env) as server:
        assert server.wait() == 1
        log = server.log
    said = r"^\(Worker_TP7 pid=\d+\) ERROR \d\d-\d\d [\d:]+ \[\S+\] .*RuntimeError: NCCL error: inv"
    assert re.search(said, log, re.M)
    assert bool(re.search(NO_TREE[0], log, re.M)) == bool(debug)
    assert "Available KV cache memory" not in log


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_tree_for_the_all_reduce_alone_starts(engine: str, tmp_path: Path) -> None:
    args = KIMI_ARGS if engine == "sglang" else VLLM
    with simulated(tmp_path, engine, args, env={"NCCL_ALGO": "AllReduce:Tree"}) as server:
        server.wait_ready()
        assert not server.load(1, 1).failed


def test_one_gpu_gathers_nothing(tmp_path: Path) -> None:
    args = ["--model-path", "/models/mini-kimi", "--attention-backend", "triton"]
    with simulated(tmp_path, "sglang", args, host="1x-h200", env={"NCCL_ALGO": "Tree"}) as server:
        server.wait_ready()


PAIR_ARGS = (
    "--model-path /models/nccl-narrow --tp-size 2 --load-format dummy --attention-backend triton "
    "--mem-fraction-static 0.6 --cuda-graph-max-bs-decode 64 --max-running-requests 64"
)


def seconds_to_ready(folder: Path, *more: str) -> tuple[float, str]:
    with simulated(folder, "sglang", [*PAIR_ARGS.split(), *more], host="8x-h200") as server:
        server.wait_ready()
        return server.clock.now(), server.log


def test_the_first_launch_looks_who_reaches_whom(tmp_path: Path) -> None:
    (tmp_path / "asked").mkdir()
    (tmp_path / "other").mkdir()
    first, said = seconds_to_ready(tmp_path / "asked", "--enable-p2p-check")
    later, said_later = seconds_to_ready(tmp_path / "asked", "--enable-p2p-check")
    not_asked, _ = seconds_to_ready(tmp_path / "other")
    assert first - not_asked == pytest.approx(durations.PEERS_SECONDS, abs=2)
    assert "generating GPU P2P access cache" in said
    assert "generating" not in said_later and "reading GPU P2P access cache" in said_later
    assert later < not_asked


def test_the_first_of_a_burst_is_prefilled_alone(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", PAIR_ARGS.split(), host="8x-h200") as server:
        server.wait_ready()
        server.load(2, 1)
        before = len(server.log)
        assert not server.load(32, 32).failed
        batches = re.findall(r"Prefill batch, #new-seq: (\d+)", server.log[before:])
    assert batches == ["1", "31"]
