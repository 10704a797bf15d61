"""Synthetic trials to explain: a healthy one, and what is found about one of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autotune.explain import findings_of
from autotune.explain.finding import Finding
from autotune.records import Outcome
from autotune.run import Run, read_run
from tests.runs import EXPERIMENT, baseline, write_run

HEALTHY = {
    "single_p50_tpot_ms": 12.1,
    "single_end_to_end_tok_s": 82.5,
    "single_cold_tok_s": 80.0,
    "single_decode_graph_share": 1.0,
    "peak_decode_graph_share": 1.0,
    "peak_concurrency": 128.0,
    "running_requests_max": 128.0,
    "running_requests_mean": 127.5,
    "queued_requests_mean": 0.2,
    "retractions": 0.0,
    "kv_tokens": 300_000.0,
    "kv_usage_max": 0.55,
    "max_running_requests": 2048.0,
    "client_ceiling_tok_s": 40_000.0,
    "client_cpu_us_per_token": 30.0,
}
SPECULATIVE = {
    "name": "synthetic",
    **{key: value for key, value in EXPERIMENT.items() if key != "name"},
    "parameters": {
        **EXPERIMENT["parameters"],
        "num_steps": {
            "int": {"low": 0, "high": 5},
            "args": {"speculative-num-steps": "{num_steps}"},
        },
    },
}


def healthy(**changes: float) -> dict[str, float]:
    return {name: value for name, value in (HEALTHY | changes).items() if value >= 0}


def run_of(tmp_path: Path, *outcomes: Outcome, **workload: Any) -> Run:
    experiment = SPECULATIVE | {"workload": SPECULATIVE["workload"] | workload}
    return read_run(write_run(tmp_path / "run", *outcomes, experiment=experiment))


def base(**fields: Any) -> Outcome:
    return baseline(82.5, 1536, **({"figures": healthy()} | fields))


def causes(run: Run, number: int) -> dict[str, Finding]:
    return {f.name: f for f in findings_of(run, number) if f.kind == "cause"}


def named(run: Run, number: int, name: str) -> Finding:
    """The finding of that name; fails with all that was found."""
    found = {finding.name: finding for finding in findings_of(run, number)}
    assert name in found, found
    return found[name]
