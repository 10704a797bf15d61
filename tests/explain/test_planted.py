"""What a simulated server is given as the cause is what the explanation names.

Ten launches of a simulated Kimi-K2.5 on eight GPUs, each with one thing wrong; what they answer
is measured as a real server would be. (The client's own overload cannot be planted there: a
simulated server's tokens per second are not the client's. test_rules.py has it.)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.engines.simulated.adapter import make_host
from autotune.experiment import load_experiment
from autotune.explain import findings_of, run_findings
from autotune.records import Outcome
from autotune.run import Run, read_run
from autotune.rundir import RunDir, write_text
from autotune.trial import TrialPlan, run_trial

EXPERIMENT: dict[str, Any] = {
    "name": "planted",
    "gpus_per_trial": 8,
    "engines": {
        "sglang": {
            "command": ["python", "-m", "sglang.launch_server"],
            "args": {"model-path": "moonshotai/Kimi-K2.5", "tp-size": 8},
        }
    },
    "parameters": {
        "backend": {"choices": ["flashinfer", "triton"], "flag": "attention-backend"},
        "num_steps": {
            "int": {"low": 0, "high": 4},
            "args": {
                "speculative-algorithm": "EAGLE3",
                "speculative-draft-model-path": "lightseekorg/kimi-k2.5-eagle3-mla",
                "speculative-num-steps": "{num_steps}",
                "speculative-eagle-topk": 1,
                "speculative-num-draft-tokens": "{num_steps + 1}",
            },
            "args_when": "num_steps > 0",
        },
        "graph_max_bs": {"choices": [64, 4], "flag": "cuda-graph-max-bs-decode"},
        "nccl_proto": {"choices": [None, "Simple"], "env": "NCCL_PROTO"},
        "max_running": {"choices": [64, 8], "flag": "max-running-requests"},
        "kv_tokens": {"choices": [None, 3000, 90_000_000], "flag": "max-total-tokens"},
        "mem_fraction": {"choices": [0.9, 0.85], "flag": "mem-fraction-static"},
    },
    "known_good": [
        {
            "backend": "flashinfer",
            "num_steps": 0,
            "graph_max_bs": 64,
            "nccl_proto": None,
            "max_running": 64,
            "kv_tokens": None,
            "mem_fraction": 0.9,
        }
    ],
    "workload": {"input_tokens": 128, "output_tokens": 64, "peak_concurrency": 32},
    "measure": {"limit_seconds": 20.0},
}
BASE = EXPERIMENT["known_good"][0]

BASELINE, VERIFY_EAGER, PLAIN_TRITON, LOW_ACCEPT, NCCL, RUNNING, GRAPHS, KV, IGNORED, COLD = range(
    10
)
CHANGES: dict[int, dict[str, Any]] = {
    BASELINE: {},
    VERIFY_EAGER: {"num_steps": 3},  # FlashInfer's MLA verifies outside a graph
    PLAIN_TRITON: {"backend": "triton"},
    LOW_ACCEPT: {"backend": "triton", "num_steps": 4},
    NCCL: {"nccl_proto": "Simple"},
    RUNNING: {"max_running": 8},
    GRAPHS: {"graph_max_bs": 4},
    KV: {"kv_tokens": 3000},  # 32 requests of 128 + 64 tokens need 6,144
    IGNORED: {"kv_tokens": 90_000_000},  # more than fits: silently lowered
    COLD: {"mem_fraction": 0.85},
}
PLANTED = {
    LOW_ACCEPT: {"SGLANG_SIMULATE_ACC_LEN": "1.05"},
    COLD: {"AUTOTUNE_SIM_FAULT": "slow_first_post:264"},
}
DRIFTED = 10


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """What a server inherits."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def launched(place: RunDir, host: Path, number: int, **fields: Any) -> Outcome:
    plan = TrialPlan(
        experiment=load_experiment(place.experiment_yaml),
        number=number,
        params=BASE | CHANGES.get(number, {}),
        trial_dir=place.create_trial(number),
        purpose=fields.get("purpose", "search"),
        repeats=fields.get("repeats"),
        simulated_host=host,
    )
    with environment(PLANTED.get(number, {})):
        return asyncio.run(run_trial(plan, tuple(range(8))))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of ten launches, and of the baseline again on a machine that has become another."""
    folder = tmp_path_factory.mktemp("planted")
    place = RunDir(folder / "run")
    place.create()
    write_text(place.experiment_yaml, yaml.safe_dump(EXPERIMENT, sort_keys=False))
    make_host(folder / "host", "8x-rtx-pro-6000")
    make_host(folder / "drifted", "8x-h200")
    for number in CHANGES:
        purpose = "baseline" if number == BASELINE else "search"
        launched(place, folder / "host", number, purpose=purpose)
    launched(place, folder / "drifted", DRIFTED, purpose="drift", repeats=BASELINE)
    return read_run(place.path)


def causes(run: Run, number: int) -> set[str]:
    return {finding.name for finding in findings_of(run, number) if finding.kind == "cause"}


def test_every_launch_was_measured(run: Run) -> None:
    failures = [(outcome.number, outcome.failure) for outcome in run.outcomes if outcome.failure]
    assert failures == []
    assert len(run.points) == len(CHANGES)


def test_a_healthy_launch_is_left_in_peace(run: Run) -> None:
    assert causes(run, BASELINE) == set()


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (VERIFY_EAGER, "verify_without_graph"),
        (LOW_ACCEPT, "accept_length_low"),
        (NCCL, "collective_settings"),
        (RUNNING, "max_running_below_concurrency"),
        (GRAPHS, "graph_batch_below_concurrency"),
        (KV, "kv_too_small"),
        (IGNORED, "ignored_flag"),
    ],
)
def test_the_planted_cause_is_named(run: Run, number: int, cause: str) -> None:
    findings = [finding.statement for finding in findings_of(run, number)]
    assert cause in causes(run, number), findings


def test_a_cold_start_is_named(run: Run) -> None:
    findings = {finding.name: finding.statement for finding in findings_of(run, COLD)}
    assert "cold_start" in findings, findings


def test_a_machine_that_changed_is_named(run: Run) -> None:
    assert [finding.name for finding in run_findings(run)] == ["host_drift"]
