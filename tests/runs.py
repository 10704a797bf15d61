"""Synthetic runs for tests: outcomes made by hand, written as a study would write them.

Nothing here was measured. The figures are chosen so that each test can see one thing.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml

from autotune.front import front_of, points_of
from autotune.records import PEAK, SINGLE, Failure, FailureKind, Outcome, Phase, Value
from autotune.rundir import RunDir, write_json, write_text

EXPERIMENT: dict[str, Any] = {
    "name": "synthetic",
    "gpus_per_trial": 8,
    "engines": {
        "sglang": {
            "command": ["python", "-m", "sglang.launch_server"],
            "args": {"model-path": "acme/Tiny-1T", "tp-size": 8},
        }
    },
    "parameters": {
        "attention_backend": {"choices": ["triton", "flashinfer"], "flag": "attention-backend"},
        "num_steps": {"int": {"low": 0, "high": 5}, "flag": "speculative-num-steps"},
        "cuda_graph": {"choices": [True, False], "flag_when_false": "disable-cuda-graph"},
        "nccl_proto": {"choices": [None, "LL"], "env": "NCCL_PROTO"},
    },
    "known_good": [{"attention_backend": "flashinfer", "num_steps": 0, "cuda_graph": True}],
    "workload": {"input_tokens": 1024, "output_tokens": 256, "peak_concurrency": 128},
}

MACHINE: dict[str, Any] = {
    "hostname": "node-1",
    "settings": {"gpu.count": "8", "gpu.name": "NVIDIA RTX PRO 6000", "gpu.power_limit_w": "600"},
    "engine_versions": {"sglang": "0.5.23"},
    "gpu_uuids": ["GPU-1"],
}

SECONDS = {"prepare": 0.1, "launch": 40.0, "load": 320.0, "capture": 70.0, "ready": 5.0}
SECONDS |= {"answer_check": 4.0, "warm_up": 30.0, "single": 40.0, "peak": 60.0, "stop": 8.0}

BASE_PARAMS: dict[str, Value] = {
    "attention_backend": "flashinfer",
    "num_steps": 0,
    "cuda_graph": True,
    "nccl_proto": None,
}


def command_of(number: int, params: dict[str, Value]) -> tuple[str, ...]:
    """The launch a study would have made of these parameters."""
    words = ["python", "-m", "sglang.launch_server", "--model-path", "acme/Tiny-1T"]
    words += ["--tp-size", "8", "--host", "127.0.0.1", "--port", str(41000 + number)]
    words += ["--served-model-name", f"autotune-{number}", "--enable-metrics"]
    words += ["--attention-backend", str(params["attention_backend"])]
    if params["num_steps"]:
        words += ["--speculative-num-steps", str(params["num_steps"])]
    if not params["cuda_graph"]:
        words += ["--disable-cuda-graph"]
    return tuple(words)


def env_of(number: int, params: dict[str, Value]) -> dict[str, str]:
    env = {
        "AUTOTUNE_MARK": f"mark-{number}",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
        "TMPDIR": f"/runs/synthetic/trials/{number:04d}/tmp",
    }
    return env | ({"NCCL_PROTO": str(params["nccl_proto"])} if params["nccl_proto"] else {})


def bare_outcome(number: int, key: str, **fields: Any) -> Outcome:
    """The outcome of a launch of which nothing matters but what is given."""
    plain = {"state": "ok", "engine": "sglang", "params": {}, "command": (), "env": {}}
    return Outcome.model_validate({"number": number, "key": key, **plain, **fields})


def measured(
    number: int,
    single: float,
    peak: float,
    *,
    params: dict[str, Value] | None = None,
    **fields: Any,
) -> Outcome:
    """A feasible outcome; `params` are changes to the baseline's, `fields` any of Outcome's."""
    full = BASE_PARAMS | (params or {})
    defaults: dict[str, Any] = {
        "number": number,
        "state": "ok",
        "engine": "sglang",
        "params": full,
        "command": command_of(number, full),
        "env": env_of(number, full),
        "key": repr(sorted(full.items(), key=str)),
        "values": {SINGLE: single, PEAK: peak},
        "spread": {SINGLE: round(single * 0.01, 3), PEAK: round(peak * 0.005, 3)},
        "figures": {"peak_concurrency": 128.0},
        "seconds": dict(SECONDS),
        "engine_version": "0.5.23",
        "machine": "feedbeef",
        "started_at": f"2026-03-01T{number // 60:02d}:{number % 60:02d}:00+00:00",
        "finished_at": f"2026-03-01T{number // 60:02d}:{number % 60:02d}:59+00:00",
    }
    return Outcome.model_validate(defaults | fields)


def failed(
    number: int,
    kind: FailureKind = FailureKind.OUT_OF_MEMORY,
    cause: str = "torch.OutOfMemoryError: CUDA out of memory.",
    *,
    phase: Phase = Phase.LOAD,
    params: dict[str, Value] | None = None,
    **fields: Any,
) -> Outcome:
    failure = Failure(kind=kind, phase=phase, cause=cause, excerpt=("Load weight end.", cause))
    fields = {"state": "infeasible", "failure": failure, "values": None, "spread": {}} | fields
    return measured(number, 0.0, 0.0, params=params, **fields)


def baseline(single: float = 80.0, peak: float = 1500.0, **fields: Any) -> Outcome:
    return measured(0, single, peak, **({"purpose": "baseline"} | fields))


def study(count: int, seed: int = 0) -> list[Outcome]:
    """A whole study of `count` search trials: baseline, failures, warnings, finalists, drift."""
    rng = random.Random(seed)
    outcomes = [baseline(*_speed(BASE_PARAMS, rng))]
    for number in range(1, count):
        params: dict[str, Value] = {
            "attention_backend": rng.choice(["triton", "flashinfer"]),
            "num_steps": rng.randint(0, 5),
            "cuda_graph": rng.random() < 0.8,
            "nccl_proto": rng.choice([None, "LL"]),
        }
        if params["num_steps"] == 5:
            outcomes.append(failed(number, params=params))
        elif params["attention_backend"] == "triton" and rng.random() < 0.1:
            cause = "error: argument --attention-backend: invalid choice: 'triton_v9'"
            outcomes.append(failed(number, FailureKind.BAD_FLAGS, cause, phase=Phase.LAUNCH))
        else:
            warnings = ("one prompt was served from the prefix cache",) * (number % 9 == 0)
            speed = _speed(params, rng)
            outcomes.append(measured(number, *speed, params=params, warnings=warnings))
    return outcomes + _confirmations(outcomes, rng)


def _confirmations(outcomes: list[Outcome], rng: random.Random) -> list[Outcome]:
    again: list[Outcome] = []
    finalists = [(point.number, "finalist") for point in front_of(points_of(outcomes))] * 2
    for first, purpose in [(0, "drift"), *finalists, (0, "finalist")]:
        params, number = outcomes[first].params, len(outcomes) + len(again)
        fields = {"params": params, "purpose": purpose, "repeats": first}
        again.append(measured(number, *_speed(params, rng), **fields))
    return again


def _speed(params: dict[str, Value], rng: random.Random) -> tuple[float, float]:
    steps = int(params["num_steps"] or 0)
    single = (
        60.0 * (1.0, 1.25, 1.4, 1.45, 1.35, 1.2)[steps] * (1.0 if params["cuda_graph"] else 0.45)
    )
    peak = (
        2300.0 * (1.0, 0.93, 0.86, 0.8, 0.75, 0.7)[steps] * (1.0 if params["cuda_graph"] else 0.8)
    )
    if params["nccl_proto"] == "LL":
        single, peak = single * 1.12, peak * 0.97
    if params["attention_backend"] == "triton":
        peak *= 1.05
    return round(single * rng.gauss(1, 0.02), 2), round(peak * rng.gauss(1, 0.01), 1)


def write_run(
    path: Path,
    *outcomes: Outcome,
    experiment: dict[str, Any] | None = None,
    machine: dict[str, Any] | None = None,
) -> Path:
    """Write these outcomes as the run directory `path`; returns it."""
    place = RunDir(path)
    place.create()
    write_text(place.experiment_yaml, yaml.safe_dump(experiment or EXPERIMENT, sort_keys=False))
    write_json(place.machine_json, machine or MACHINE)
    for outcome in outcomes:
        place.create_trial(outcome.number)
        write_json(place.outcome_json(outcome.number), outcome)
    return path
