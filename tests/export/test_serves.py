"""The exported script of an engine with known flags starts the same server, which answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

from autotune.engines.base import Place
from autotune.engines.launch import build_launch
from autotune.engines.registry import engine_named
from autotune.engines.simulated.adapter import SimulatedEngine, make_host
from autotune.experiment import load_experiment
from autotune.export import export
from autotune.machine import free_port
from autotune.records import Outcome
from autotune.run import Run, read_run
from autotune.rundir import RunDir
from autotune.space import Space
from tests.patience import PATIENCE_SECONDS
from tests.runs import EXPERIMENT, baseline, measured, write_run

MODEL = "moonshotai/Kimi-K2.5"


def run_with_real_launch(tmp_path: Path) -> Run:
    """A run whose trial 1 has the command and environment that autotune itself would build."""
    section = EXPERIMENT["engines"]["sglang"]
    args = section["args"] | {"model-path": MODEL, "api-key": "hunter2hunter2"}
    experiment = EXPERIMENT | {
        "engines": {"sglang": section | {"args": args}},
        "parameters": {"nccl_proto": EXPERIMENT["parameters"]["nccl_proto"]},
        "known_good": [{"nccl_proto": "LL"}],
    }
    place = RunDir(write_run(tmp_path / "run", baseline(), experiment=experiment))
    make_host(tmp_path / "host", "8x-rtx-pro-6000")
    engine = SimulatedEngine(engine_named("sglang"), tmp_path / "host")
    where = Place("127.0.0.1", 41001, "autotune-0001", place.create_trial(1), tuple(range(8)))
    settings = Space(load_experiment(place.experiment_yaml)).settings({"nccl_proto": "LL"})
    launch = build_launch(settings, engine, where, 1)
    outcome: Outcome = measured(1, 90, 2000, command=launch.argv, env=launch.env)
    return read_run(write_run(place.path, outcome, experiment=experiment))


def asked(url: str, body: dict[str, object] | None = None) -> dict[str, object]:
    data = json.dumps(body).encode() if body is not None else None
    headers = {"Content-Type": "application/json", "Authorization": "Bearer mine"}
    request = urllib.request.Request(url, data=data, headers=headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as reply:
        return dict(json.load(reply))


def wait_for(url: str, process: subprocess.Popen[bytes]) -> dict[str, object]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            return asked(url)
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"the exported server did not answer; status {process.poll()}")


def test_the_exported_script_serves_under_its_model_s_name(tmp_path: Path) -> None:
    text = export(run_with_real_launch(tmp_path), 1).text
    assert "hunter2" not in text
    assert "autotune-0001" not in text
    (tmp_path / "serve.sh").write_text(text)
    port = free_port()
    mine = {"HOST": "127.0.0.1", "PORT": str(port), "API_KEY": "mine"}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", tmp_path / "serve.sh"],
            env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **mine},
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        models = wait_for(f"http://127.0.0.1:{port}/v1/models", process)
        assert MODEL in json.dumps(models)
        body = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 8}
        answer = asked(f"http://127.0.0.1:{port}/v1/completions", body)
        assert answer["usage"]["completion_tokens"] > 0  # type: ignore[index]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
