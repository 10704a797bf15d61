"""A run on disk is private, never half a file, and readable in every state it can be in."""

from __future__ import annotations

import itertools
import json
import math
import os
import stat
import threading
from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.run import read_run
from autotune.rundir import RunDir, write_json
from tests.runs import baseline, failed, measured, write_run


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    outcomes = (baseline(), measured(1, 90, 1400), failed(2))
    run = read_run(write_run(tmp_path / "run", *outcomes))
    assert run.outcomes == outcomes
    assert run.name == "synthetic"
    assert run.baseline == 0
    assert run.front == (1, 0)
    assert run.machine["hostname"] == "node-1"
    assert run.problems == ()


def test_only_the_owner_can_read_a_run(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", baseline())
    place = RunDir(path)
    for folder in (path, place.trials, place.trial(0)):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(place.outcome_json(0).stat().st_mode) == 0o600


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_json(path, {"trial": 1})
    with pytest.raises(TypeError):
        write_json(path, {"trial": object()})
    with pytest.raises(UnicodeEncodeError):
        write_json(path, {"trial": "\ud800"})
    assert json.loads(path.read_text()) == {"trial": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_trial_without_an_outcome_is_unfinished(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", baseline())
    RunDir(path).create_trial(1)
    run = read_run(path)
    assert run.unfinished == (1,)
    assert not run.live


def test_a_run_is_live_while_its_driver_lives(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", baseline())
    write_json(RunDir(path).status_json, {"pid": os.getpid()})
    assert read_run(path).live
    write_json(RunDir(path).status_json, {"pid": 2**22 + 1})
    assert not read_run(path).live


def test_half_an_outcome_costs_that_trial_only(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", baseline(), measured(1, 90, 1400))
    outcome = RunDir(path).outcome_json(1)
    outcome.write_bytes(outcome.read_bytes()[:200])
    run = read_run(path)
    assert [one.number for one in run.outcomes] == [0]
    assert len(run.problems) == 1
    assert "0001/outcome.json: not readable" in run.problems[0]
    assert "\n" not in run.problems[0]


def test_a_figure_that_is_no_number_costs_that_figure_only(tmp_path: Path) -> None:
    figures = {"single_accept_length": math.nan, "peak_waves": math.inf, "single_requests": 9.0}
    run = read_run(write_run(tmp_path / "run", measured(0, 90, 1400, figures=figures)))
    assert run.problems == ()
    assert run.outcome(0).figures == {"single_requests": 9.0}
    stored = RunDir(run.path).outcome_json(0)  # as one was written before
    stored.write_text(stored.read_text().replace("9.0", "null"))
    assert read_run(run.path).outcome(0).figures == {}


def test_a_run_that_is_being_written_is_never_half_read(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", baseline())
    place = RunDir(path)
    stop = threading.Event()

    def write() -> None:
        for number in itertools.cycle(range(1, 8)):
            if stop.is_set():
                return
            place.create_trial(number)
            write_json(place.outcome_json(number), measured(number, 90 + number, 1400))
            write_json(place.status_json, {"pid": os.getpid(), "trial": number})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        runs = [read_run(path)]
        while len(runs) < 60 or len(runs[-1].outcomes) < 2:
            runs.append(read_run(path))
    finally:
        stop.set()
        writer.join()
    assert [run.problems for run in runs if run.problems] == []


def test_a_run_that_has_just_begun_is_readable(tmp_path: Path) -> None:
    RunDir(tmp_path / "run").create()
    run = read_run(tmp_path / "run")
    assert (run.name, run.outcomes, run.front, run.baseline) == ("run", (), (), None)


def test_a_half_written_experiment_and_machine_are_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", baseline())
    RunDir(path).experiment_yaml.write_text("name: [a,\n")
    RunDir(path).machine_json.write_text('{"gpus": [')
    run = read_run(path)
    assert len(run.outcomes) == 1
    assert [problem.split(":")[0] for problem in run.problems] == [
        "experiment.yaml",
        "machine.json",
    ]


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: None, "does not exist; a run is a directory"),
        (lambda path: path.write_text(""), "is a file; a run is a directory"),
        (lambda path: path.mkdir(), "is not a run: it has no run.json"),
    ],
)
def test_what_is_no_run_is_said_in_one_line(tmp_path: Path, prepare, message: str) -> None:
    path = tmp_path / "run"
    prepare(path)
    with pytest.raises(InputError, match=message) as error:
        read_run(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_newer_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", baseline())
    write_json(RunDir(path).run_json, {"format": 2})
    with pytest.raises(InputError, match=r"newer autotune \(format 2.*upgrade autotune"):
        read_run(path)


def test_an_unknown_trial_is_answered_with_the_known(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", baseline(), measured(3, 90, 1400)))
    with pytest.raises(InputError, match="no trial 7 with an outcome; there is: 0, 3"):
        run.outcome(7)


def test_a_run_that_cannot_be_created_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="Not a directory"):
        RunDir(tmp_path / "file" / "run").create()
