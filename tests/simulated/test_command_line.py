"""The engines' own command lines: refusals, abbreviations and silent overrides."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from autotune.engines.simulated import sglang_args, vllm_args
from autotune.engines.simulated.hosts import host_named
from autotune.engines.simulated.launch_args import Arguments, ResolveError, UsageError
from tests.patience import PATIENCE_SECONDS

RTX, H200, B200 = (host_named(name) for name in ("8x-rtx-pro-6000", "8x-h200", "8x-b200"))
KIMI, GLM = "moonshotai/Kimi-K2.5", "zai-org/GLM-5-NVFP4"


def sglang(words: str, model: str = KIMI, host: Any = RTX, **env: str) -> Arguments:
    return sglang_args.parse(f"--model-path {model} --tp-size 8 {words}".split(), env, host)


def vllm(words: str, model: str = KIMI, host: Any = RTX, **env: str) -> Arguments:
    return vllm_args.parse(f"{model} --tensor-parallel-size 8 {words}".split(), env, host)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--no-such-flag 3", "unrecognized arguments: --no-such-flag 3"),
        ("--attention-backend cutlass_mla", "invalid choice: 'cutlass_mla'"),
        ("--kv-cache-dtype fp8", "invalid choice: 'fp8'"),
        ("--page-size many", "invalid int value: 'many'"),
        ("--cuda-graph-max-bs 16", "--cuda-graph-max-bs could match --cuda-graph-max-bs-decode"),
        ("--disable-piecewise-cuda-graph", "unrecognized arguments"),
        ("--cuda-graph-backend-prefill tc_piecewise", "invalid choice: 'tc_piecewise'"),
    ],
)
def test_sglang_refuses_with_one_line_of_its_own(words: str, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        sglang(words)
    assert message in refusal.value.text
    assert "sglang serve: error:" in refusal.value.text


def test_sglang_takes_abbreviations() -> None:
    assert sglang("--max-running 64 --disable-overlap").settings.max_running == 64


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--speculative-num-steps 2", "TypeError: '>' not supported"),
        ("--speculative-algorithm EAGLE3 --speculative-num-draft-tokens 3", "AssertionError"),
        ("--attention-backend cutedsl_mla", "only supported on Blackwell GPUs (SM100)"),
        ("--page-size 48 --chunked-prefill-size 8192", "must be divisible by page_size"),
        ("--disable-cuda-graph-padding --enable-torch-compile", "incompatible"),
        ("--tp-size 7", "divisible"),
    ],
)
def test_sglang_refuses_contradictions_while_resolving(words: str, line: str) -> None:
    with pytest.raises(ResolveError, match=line.replace("(", r"\(").replace(")", r"\)")):
        sglang(words)


SPEC = (
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path x --speculative-num-steps 3 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 8"
)


def test_speculation_limits_requests_to_48_and_derives_the_draft_tokens() -> None:
    args = sglang(SPEC)
    assert args.settings.max_running == 48
    assert args.resolved["speculative_num_draft_tokens"] == 4
    assert any("reset to 48" in line for line in args.warnings)
    assert sglang(f"{SPEC} --max-running-requests 128").settings.max_running == 128


def test_page_sizes_are_changed_silently() -> None:
    assert sglang("--attention-backend trtllm_mla", host=B200).resolved["page_size"] == 64
    assert sglang("--page-size 1", model=GLM).resolved["page_size"] == 64
    assert sglang("--attention-backend flashinfer").resolved["page_size"] == 1


def test_defaults_follow_the_gpu_and_the_model() -> None:
    assert sglang("").settings.attention == "triton"
    assert sglang("", host=H200).settings.attention == "fa3"
    assert sglang("", host=B200).settings.attention == "trtllm_mla"
    assert sglang("", model=GLM).settings.kv_dtype == "fp8"
    assert sglang("").settings.graph_max_bs == 512
    assert sglang("--max-running-requests 128").settings.graph_max_bs == 128


@pytest.mark.parametrize(
    ("words", "model", "fraction"),
    [("", KIMI, 0.758), ("--max-running-requests 128", KIMI, 0.764), ("", GLM, 0.833)],
)
def test_the_memory_fraction_is_what_the_real_resolver_gave(
    words: str, model: str, fraction: float
) -> None:
    assert sglang(words, model=model).settings.mem_fraction == pytest.approx(fraction, abs=0.005)


def test_custom_all_reduce_is_off_over_pcie() -> None:
    assert not sglang("").settings.collective.custom
    assert sglang("", host=H200).settings.collective.custom


def test_a_graph_batch_list_wins_over_the_maximum() -> None:
    args = sglang("--cuda-graph-bs-decode 1 2 4 --cuda-graph-max-bs-decode 64")
    assert args.settings.graph_max_bs == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--no-such-flag 3", "vllm: error: unrecognized arguments: --no-such-flag 3"),
        ("--dtype float99", "vllm serve: error: argument --dtype: invalid choice: 'float99'"),
    ],
)
def test_vllm_refuses_with_its_own_parser(words: str, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        vllm(words)
    assert message in refusal.value.text


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--max-num-seqs 0", "validation error for SchedulerConfig"),
        ("--max-num-batched-tokens 16 --max-num-seqs 64", "greater than or equal to max_num_seqs"),
        ("--max-model-len 999999", "greater than the derived max_model_len"),
        ("--attention-backend NOPE", "Unknown attention backend: 'NOPE'"),
        ("--tensor-parallel-size 7", "must be divisible by"),
    ],
)
def test_vllm_refuses_contradictions_with_status_1(words: str, line: str) -> None:
    with pytest.raises(ResolveError) as refusal:
        vllm(words)
    assert line in refusal.value.line.replace("\n", " ")


def test_vllm_takes_abbreviations() -> None:
    assert vllm("--max-num-s 64 --enforce").settings.max_running == 64
    with pytest.raises(UsageError, match="ambiguous option: --max-num could match"):
        vllm("--max-num 2")


def test_vllm_speculation_is_read_from_every_spelling() -> None:
    spellings = (
        '--speculative-config {"method":"eagle3","model":"x","num_speculative_tokens":3}',
        "--spec-method eagle3 --spec-model x --spec-tokens 3",
        "-sc.method=eagle3 -sc.model=x -sc.num_speculative_tokens=3",
    )
    assert [vllm(words).settings.spec_steps for words in spellings] == [3, 3, 3]


def test_vllm_graph_switches() -> None:
    assert vllm("").settings.graph_max_bs == 512
    assert vllm("--enforce-eager").settings.graph_max_bs == 0
    assert vllm("-O0").settings.graph_max_bs == 0
    assert vllm("-cc.cudagraph_mode=NONE").settings.graph_max_bs == 0
    assert vllm("--cudagraph-capture-sizes 1 2 64").settings.graph_max_bs == 64


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "autotune.engines.simulated", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ}, timeout=PATIENCE_SECONDS
    )


def test_exit_statuses_are_the_engines_own() -> None:
    assert run("--as", "sglang", "--model-path", KIMI, "--bad").returncode == 2
    assert run("--as", "vllm", "serve-me", "--max-num-seqs", "0").returncode == 1
    resolved = run("--as", "sglang", "--model-path", KIMI, "--speculative-num-steps", "2")
    assert resolved.returncode == 1
    assert "Traceback (most recent call last)" in resolved.stderr


def test_preflight_only_parses() -> None:
    done = run("--preflight", "--as", "sglang", "--model-path", KIMI, "--tp-size", "8")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
