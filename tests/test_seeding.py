"""What an earlier run is worth to a new study, before anything is learned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.experiment import Experiment, load_experiment
from autotune.run import read_run
from autotune.rundir import RunDir
from autotune.seeding import (
    ANY_OTHER_STUDY,
    OTHER_COMMAND,
    OTHER_MACHINE,
    OTHER_WORKLOAD,
    Earlier,
    earlier_study,
)
from autotune.space import Space
from tests.runs import EXPERIMENT, baseline, failed, measured, write_run
from tests.searching import only_line, study_in

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
HERE = "0123456789abcdef"
"""The digest of this host."""


def earlier_run(path: Path, text: str = FILE, machine: str = HERE) -> Path:
    """On the machine ``HERE``, with one working trial, of another machine's figures perhaps."""
    trial = path / "trials" / "0000"
    trial.mkdir(parents=True)
    (path / "experiment.yaml").write_text(text)
    (path / "machine.json").write_text(json.dumps({"digest": HERE}))
    outcome = {
        "number": 0,
        "state": "ok",
        "engine": "sglang",
        "params": {"steps": 0},
        "command": ["sglang"],
        "env": {},
        "key": "one",
        "machine": machine,
        "values": {"single_stream_tok_s": 60.0, "peak_tok_s": 900.0},
    }
    (trial / "outcome.json").write_text(json.dumps(outcome))
    return path


def now(tmp_path: Path) -> Experiment:
    (tmp_path / "now.yaml").write_text(FILE)
    return load_experiment(tmp_path / "now.yaml")


def said_by(run: Path, experiment: Experiment, *machines: str) -> Earlier:
    """What a run says to a study on this host, or on others."""
    space = Space(experiment)
    return earlier_study(read_run(run), experiment, space, frozenset(machines or (HERE,)))


@pytest.mark.parametrize(
    ("old", "new", "factor"),
    [
        ("", "", 1.0),
        ("name: small", "name: small\nbudget: {trials: 3}", 1.0),
        ("rope: 1", "rope: 2", OTHER_COMMAND),
    ],
)
def test_only_what_differs_takes_weight(tmp_path: Path, old: str, new: str, factor: float) -> None:
    run = earlier_run(tmp_path / "run", FILE.replace(old, new, 1))
    here = said_by(run, now(tmp_path))
    assert here.weight == pytest.approx(ANY_OTHER_STUDY * factor)
    assert said_by(run, now(tmp_path), "other").weight == pytest.approx(here.weight * OTHER_MACHINE)


def test_a_machine_is_the_same_only_if_all_hosts_are(tmp_path: Path) -> None:
    run = earlier_run(tmp_path / "run")
    assert said_by(run, now(tmp_path)).differs == ()
    assert said_by(run, now(tmp_path), HERE, "other").differs == ("machine",)
    mixed = earlier_run(tmp_path / "mixed", machine="other")
    assert said_by(mixed, now(tmp_path)).differs == ("machine",)
    assert said_by(mixed, now(tmp_path), HERE, "other").differs == ()


@pytest.mark.parametrize(("held_then", "factor"), [("same", 1.0), ("other", OTHER_WORKLOAD)])
def test_prompts_differ_by_what_they_hold_not_by_their_name(
    tmp_path: Path, held_then: str, factor: float
) -> None:
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text("same")
    for then in (str(prompts), "elsewhere.jsonl"):
        path = earlier_run(tmp_path / Path(then).stem, f"{FILE}workload: {{prompts: {then}}}")
        RunDir(path).prompts.write_text(held_then)
        weight = said_by(path, now(tmp_path).with_prompts(prompts)).weight
        assert weight == pytest.approx(ANY_OTHER_STUDY * factor)
        shipped = said_by(path, now(tmp_path)).weight
        assert shipped == pytest.approx(ANY_OTHER_STUDY * OTHER_WORKLOAD)


def test_a_run_whose_experiment_cannot_be_read_counts_least(tmp_path: Path) -> None:
    run = earlier_run(tmp_path / "run", "name: [broken")
    assert said_by(run, now(tmp_path)).differs == ("command", "workload")


def test_a_machine_s_file_that_holds_something_else_says_nothing(tmp_path: Path) -> None:
    run = earlier_run(tmp_path / "run", machine="")
    (run / "machine.json").write_text(json.dumps({"digest": {"of": HERE}}))
    assert said_by(run, now(tmp_path)).differs == ("machine",)


def test_trials_say_which_run_they_are_of(tmp_path: Path) -> None:
    for run in (earlier_run(tmp_path / name) for name in ("one", "two")):
        (trial,) = said_by(run, now(tmp_path)).trials
        assert trial.user_attrs["study"] == str(run)


def test_launches_that_failed_with_the_machine_say_nothing(tmp_path: Path) -> None:
    broken = [failed(2 + of, purpose="finalist", repeats=of) for of in (0, 1)]
    run = write_run(tmp_path / "run", baseline(), measured(1, 90, 1600), *broken, failed(4))
    said = said_by(run, Experiment.model_validate(EXPERIMENT))
    assert [trial.values for trial in said.trials] == [[80, 1500], [90, 1600], [0, 0]]
    assert said.of == 3


def test_it_is_said_what_an_earlier_run_is_worth(tmp_path: Path) -> None:
    run = earlier_run(tmp_path / "run", FILE.replace("rope: 1", "rope: 2"))
    assert str(said_by(run, now(tmp_path), "other")) == (
        f"{run}: 1 of 1 trials fit this space; each counts as 0.16 of one of this study's, "
        "until those say more: "
        "another machine, another command"
    )
    experiment = now(tmp_path)
    narrow = Experiment.model_validate(
        experiment.model_dump(exclude_unset=True)
        | {"parameters": {"steps": {"choices": [3, 5], "flag": "steps"}}, "known_good": []}
    )
    assert str(said_by(run, narrow)) == (
        f"{run}: none of its 1 trials fits this space; it says nothing here"
    )


def test_a_fork_says_where_it_is_before_its_first_trial(tmp_path: Path) -> None:
    study = study_in(tmp_path, trials=1)
    assert study.search()[0] == 0
    status, output = study.search("--fork")
    assert status == 0, output
    assert output.index(f"note: --fork: this run is {tmp_path / 'run-2'}\n") < output.index(
        "[1 of 1"
    )


def test_a_search_knows_whether_an_earlier_run_was_of_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = study_in(tmp_path / "old", trials=1)
    assert old.search()[0] == 0
    for name, host, said in (
        ("same", "8x-rtx-pro-6000", "0.80 of one of this study's, until those say more\n"),
        ("other", "8x-rtx-pro-6000-no-p2p", "another machine\n"),  # with the same GPUs
    ):
        monkeypatch.setenv("AUTOTUNE_SIM_HOST", host)
        again = ("--from", str(old.run / ".." / "run"), "--from", str(old.run))
        status, output = study_in(tmp_path / name, trials=1).search(*again)
        assert status == 0, output
        assert f"note: {old.run}: 1 of 1 trials fit this space" in output
        assert output.count("fit this space") == 1
        assert said in output
        # In the first line and again above the figures.
        assert output.count(f"SIMULATION of {host}: no figure") == 2
    status, output = old.search("--resume", "--trials", "2")
    assert status == 2
    assert "simulated: 8x-rtx-pro-6000 here, 8x-rtx-pro-6000-no-p2p there" in only_line(output)
    monkeypatch.setenv("AUTOTUNE_SIM_HOST", "8x-h300")
    status, output = study_in(tmp_path / "unknown").search()
    assert status == 2
    assert "8x-h200" in only_line(output)
