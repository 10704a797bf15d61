"""What an earlier run is worth to a new study, before anything is learned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.experiment import Experiment, load_experiment
from autotune.fingerprint import Fingerprint
from autotune.rundir import RunDir, read_run
from autotune.seeding import (
    ANY_OTHER_STUDY,
    OTHER_COMMAND,
    OTHER_MACHINE,
    OTHER_WORKLOAD,
    history_of,
    weight_of,
)
from autotune.space import Space

FILE = """
name: small
engines:
  sglang:
    command: [sglang, serve]
    args: {model-path: a/b, json-model-override-args: {rope: 1}}
parameters:
  steps: {choices: [0, 3], flag: speculative-num-steps}
known_good: [{steps: 0}]
"""
HERE = Fingerprint(hostname="host", settings={"gpu.name": "H200"}, engine_versions={}, gpu_uuids=())


def earlier_run(path: Path, text: str = FILE) -> Path:
    """On the machine ``HERE``, with one working trial."""
    trial = path / "trials" / "0000"
    trial.mkdir(parents=True)
    (path / "experiment.yaml").write_text(text)
    (path / "machine.json").write_text(json.dumps({"digest": HERE.digest}))
    outcome = {
        "number": 0,
        "state": "ok",
        "engine": "sglang",
        "params": {"steps": 0},
        "command": ["sglang"],
        "env": {},
        "key": "one",
        "values": {"single_stream_tok_s": 60.0, "peak_tok_s": 900.0},
    }
    (trial / "outcome.json").write_text(json.dumps(outcome))
    return path


def now(tmp_path: Path) -> Experiment:
    (tmp_path / "now.yaml").write_text(FILE)
    return load_experiment(tmp_path / "now.yaml")


@pytest.mark.parametrize(
    ("old", "new", "factor"),
    [
        ("", "", 1.0),
        ("name: small", "name: small\nbudget: {trials: 3}", 1.0),
        ("rope: 1", "rope: 2", OTHER_COMMAND),
    ],
)
def test_only_what_differs_takes_weight(tmp_path: Path, old: str, new: str, factor: float) -> None:
    run = read_run(earlier_run(tmp_path / "run", FILE.replace(old, new, 1)))
    weight = weight_of(run, now(tmp_path), HERE)
    assert weight == pytest.approx(ANY_OTHER_STUDY * factor)
    unknown = weight_of(run, now(tmp_path), here=None)
    assert unknown == pytest.approx(weight * OTHER_MACHINE)


@pytest.mark.parametrize(("held_then", "factor"), [("same", 1.0), ("other", OTHER_WORKLOAD)])
def test_prompts_differ_by_what_they_hold_not_by_their_name(
    tmp_path: Path, held_then: str, factor: float
) -> None:
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text("same")
    for then in (str(prompts), "elsewhere.jsonl"):
        path = earlier_run(tmp_path / Path(then).stem, f"{FILE}workload: {{prompts: {then}}}")
        RunDir(path).prompts.write_text(held_then)
        weight = weight_of(read_run(path), now(tmp_path).with_prompts(prompts), HERE)
        assert weight == pytest.approx(ANY_OTHER_STUDY * factor)
        shipped = weight_of(read_run(path), now(tmp_path), HERE)
        assert shipped == pytest.approx(ANY_OTHER_STUDY * OTHER_WORKLOAD)


def test_a_run_whose_experiment_cannot_be_read_counts_least(tmp_path: Path) -> None:
    run = read_run(earlier_run(tmp_path / "run", "name: [broken"))
    assert 0 < weight_of(run, now(tmp_path), HERE) < ANY_OTHER_STUDY * OTHER_COMMAND


def test_trials_say_which_run_they_are_of(tmp_path: Path) -> None:
    runs = [earlier_run(tmp_path / name) for name in ("one", "two")]
    experiment = now(tmp_path)
    history = history_of(runs, experiment, Space(experiment), HERE)
    assert [trial.user_attrs["study"] for trial, _ in history] == [str(run) for run in runs]
