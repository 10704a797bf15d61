"""The logs have the lines of the recorded ones, in their order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autotune.engines.logs import pieces
from autotune.engines.registry import engine_named
from autotune.records import FailureKind, Phase
from tests.patience import until
from tests.simulated.servers import Running, simulated
from tests.simulated.test_lifecycle import KIMI_ARGS, VLLM, ask
from tests.simulated.test_time import SPEC

STAMP = r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( TP\d)?\] "
SGLANG_ORDER = (  # as in the recorded logs of 0.5.15, with the names of 0.5.23
    r"server_args=\{",
    r"TP0\] Init parallel begin\.",
    r"TP0\] Init parallel ends\. elapsed=[\d.]+ s, mem usage=[\d.]+ GB",
    r"TP0\] Load weight begin\. avail mem=[\d.]+ GB",
    r"Multi-thread loading shards:  50% Completed \| 32/64 \[\d\d:\d\d<\d\d:\d\d, [\d.]+s/it\]",
    r"TP0\] Load weight end\. elapsed=[\d.]+ s, type=\w+, avail mem=[\d.]+ GB, mem usage=[\d.]+ GB",
    r"TP0\] KV Cache is allocated\. dtype: torch\.bfloat16, #tokens: \d+, KV size: [\d.]+ GB",
    r"TP0\] Memory pool end\. avail mem=[\d.]+ GB",
    r"TP0\] Capture target decode CUDA graph begin\.",
    r"Capturing batches \(bs=512 avail_mem=[\d.]+ GB\):   0%\|",
    r"TP0\] Capture target decode CUDA graph end\. elapsed=[\d.]+ s, mem usage=[\d.]+ GB",
    r"TP0\] max_total_num_tokens=\d+, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    r"max_running_requests=\d+, context_len=262144, available_gpu_mem=[\d.]+ GB",
    r"Engine startup timings \(s\): load_weight=",
    r"INFO:     Uvicorn running on http://127\.0\.0\.1:\d+ \(Press CTRL\+C to quit\)",
    r"The server is fired up and ready to roll!",
)
VLLM_ORDER = (
    r"\(APIServer pid=\d+\) INFO \d\d-\d\d [\d:]+ \[\S+\] non-default args: \{",
    r"\(APIServer pid=\d+\) INFO .* Resolved architecture: KimiK25ForConditionalGeneration",
    r"\(EngineCore pid=\d+\) INFO .* Initializing a V1 LLM engine \(v0\.32\.0\) with config: ",
    r"\(Worker_TP0 pid=\d+\) INFO .* world_size=8 rank=0",
    r"\(Worker_TP0 pid=\d+\) INFO .* Starting to load model",
    r"Loading safetensors checkpoint shards: 100% Completed \| 64/64",
    r"Loading weights took [\d.]+ seconds",
    r"GPU KV cache size: [\d,]+ tokens, Maximum concurrency for 32,768 tokens per request",
    r"Graph capturing finished in \d+ secs, took [\d.]+ GiB",
    r"Starting vLLM server on http://127\.0\.0\.1:\d+",
    r"Application startup complete\.",
)


def in_order(patterns: tuple[str, ...], lines: list[str]) -> None:
    start = 0
    for pattern in patterns:
        found = [i for i in range(start, len(lines)) if re.search(pattern, lines[i])]
        assert found, f"no {pattern!r} after line {start}"
        start = found[0]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_start_has_the_engines_lines_in_their_order(engine: str, tmp_path: Path) -> None:
    args = KIMI_ARGS if engine == "sglang" else VLLM
    with simulated(tmp_path, engine, args) as server:
        server.wait_ready()
        lines = list(pieces(server.log))
    in_order(SGLANG_ORDER if engine == "sglang" else VLLM_ORDER, lines)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_adapter_sees_the_phases_of_a_start_and_no_failure(engine: str, tmp_path: Path) -> None:
    args = KIMI_ARGS if engine == "sglang" else VLLM
    with simulated(tmp_path, engine, args) as server:
        server.wait_ready()
        lines = list(pieces(server.log))
    adapter = engine_named(engine)
    phases = [phase for line in lines if (phase := adapter.phase_of(line)) is not None]
    assert list(dict.fromkeys(phases)) == [Phase.LOAD, Phase.CAPTURE, Phase.READY]
    assert any((p := adapter.progress_of(line)) and p.fraction == 0.5 for line in lines)


def test_serving_lines_look_like_the_recorded_ones(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", [*KIMI_ARGS, *SPEC]) as server:
        server.wait_ready()
        server.load(2, 1)
        lines = server.log.splitlines()
    prefill = re.compile(
        STAMP + r"Prefill batch, #new-seq: \d+, #new-token: \d+, #cached-token: \d+, token usage: "
        r"[\d.]+, #running-req: \d+, #queue-req: \d+, #pending-token: \d+, cuda graph: False, "
        r"input throughput \(token/s\): [\d.]+$"
    )
    decode = re.compile(
        STAMP + r"Decode batch, #running-req: \d+, #token: \d+, token usage: [\d.]+, accept len: "
        r"[\d.]+, accept rate: [\d.]+, cuda graph: True, gen throughput \(token/s\): [\d.]+, "
        r"#queue-req: \d+$"
    )
    assert any(prefill.match(line) for line in lines)
    assert any(decode.match(line) for line in lines)


def test_overrides_are_said_as_sglang_says_them(tmp_path: Path) -> None:
    args = [*KIMI_ARGS, *SPEC[:-2]]
    with simulated(tmp_path, "sglang", args) as server:
        server.wait_ready()
        assert "Max running requests is reset to 48 for speculative decoding" in server.log
        assert "Attention backend not specified. Use triton backend by default." in server.log
        info = server.http.get("/server_info").json()
    assert info["internal_states"][0]["effective_max_running_requests_per_dp"] == 48


def cause_of(engine: str, server: Running) -> FailureKind | None:
    from autotune.engines.logs import first_cause

    cause = first_cause(list(pieces(server.log)), engine_named(engine).failure_of)
    return cause.kind if cause else None


PHYSICAL = [  # engine, arguments, environment, what it dies of
    ("sglang", "--mem-fraction-static 0.7", {}, FailureKind.NO_KV_ROOM),
    ("sglang", "--mem-fraction-static 0.999", {}, FailureKind.OUT_OF_MEMORY),
    ("sglang", "--mem-fraction-static 0.9 --attention-backend trtllm_mla", {}, "unsupported"),
    ("sglang", "--mem-fraction-static 0.9 --attention-backend fa3", {}, FailureKind.UNSUPPORTED),
    ("sglang", "--mem-fraction-static 0.9 --tp-size 4", {}, FailureKind.OUT_OF_MEMORY),
    ("vllm", "--attention-backend FLASHMLA", {}, FailureKind.UNSUPPORTED),
    ("vllm", "--gpu-memory-utilization 0.7", {}, FailureKind.NO_KV_ROOM),
    ("vllm", "--gpu-memory-utilization 0.85 --max-model-len 262144", {}, FailureKind.NO_KV_ROOM),
]


@pytest.mark.parametrize(("engine", "words", "env", "kind"), PHYSICAL)
def test_what_physics_forbids_dies_with_a_cause_that_the_adapter_knows(
    engine: str, words: str, env: dict[str, str], kind: FailureKind, tmp_path: Path
) -> None:
    args = KIMI_ARGS[:-2] if engine == "sglang" else VLLM
    with simulated(tmp_path, engine, [*args, *words.split()], env=env) as server:
        assert server.wait() == (-9 if engine == "sglang" else 1)
        assert cause_of(engine, server) == kind


def test_health_checks_and_requests_are_in_the_access_log(tmp_path: Path) -> None:
    with simulated(tmp_path, "vllm", VLLM) as server:
        server.wait_ready()
        ask(server)
        assert re.search(
            r'^INFO:     127\.0\.0\.1:\d+ - "GET /health HTTP/1\.1" 200 OK$', server.log, re.M
        )
        # Written after the answer, so a client can be here first.
        until(lambda: '"POST /v1/completions HTTP/1.1" 200 OK' in server.log)
