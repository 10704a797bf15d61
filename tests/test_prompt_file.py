"""Which file `workload.prompts` means, wherever the command is typed, and the copy of a run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.check import check_lines
from autotune.errors import InputError
from autotune.experiment import load_experiment
from autotune.prompt_file import prompt_file, with_kept_prompts
from autotune.rundir import RunDir
from tests.searching import Study

QUESTION = json.dumps({"prompt": "Tell me how a bridge is built. " * 40}) + "\n"


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """An experiment with prompts beside it, and a current directory elsewhere."""
    elsewhere, study = tmp_path / "elsewhere", Study(tmp_path / "experiments")
    for folder in (elsewhere, study.folder, study.folder / "data"):
        folder.mkdir()
    (study.folder / "data" / "mine.jsonl").write_text(QUESTION)
    write(study, "data/mine.jsonl")
    monkeypatch.chdir(elsewhere)
    return study


def write(study: Study, prompts: str) -> Path:
    study.write(trials=1)
    file = study.folder / "small.yaml"
    file.write_text(file.read_text().replace("workload: {", f'workload: {{prompts: "{prompts}", '))
    return file


def found(file: Path) -> Path:
    path = prompt_file(load_experiment(file), file)
    assert path is not None
    return path


def test_a_relative_path_starts_at_the_experiment_file_s_folder(study: Study) -> None:
    Path("data").mkdir()
    Path("data/mine.jsonl").write_text(QUESTION)
    assert found(study.folder / "small.yaml") == study.folder / "data" / "mine.jsonl"
    assert found(Path("../experiments/small.yaml")).samefile(study.folder / "data" / "mine.jsonl")


def test_what_lies_in_the_current_directory_alone_is_found_there(study: Study) -> None:
    Path("here.jsonl").write_text(QUESTION)
    assert found(write(study, "here.jsonl")) == Path("here.jsonl").absolute()


def test_what_is_nowhere_is_named_in_the_experiment_file_s_folder(study: Study) -> None:
    file = write(study, "gone.jsonl")
    assert any(f"{study.folder / 'gone.jsonl'} is not on this host" in x for x in check_lines(file))


def test_check_has_nothing_to_say_of_prompts_beside_the_experiment_file(study: Study) -> None:
    assert not any("workload.prompts" in x for x in check_lines(study.folder / "small.yaml"))


def test_an_absolute_path_and_a_variable_are_taken_as_they_are(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMPTS_OF_MINE", str(study.folder / "data"))
    expected = study.folder / "data" / "mine.jsonl"
    assert found(write(study, "${PROMPTS_OF_MINE}/mine.jsonl")) == expected
    assert found(write(study, str(expected))) == expected


def test_a_run_measures_with_a_copy_and_refuses_other_prompts(study: Study) -> None:
    source, run = study.folder / "data" / "mine.jsonl", RunDir(study.run)
    run.create()
    ready = load_experiment(study.folder / "small.yaml").with_prompts(source)
    for _ in range(2):  # begun, resumed
        assert with_kept_prompts(ready, run).workload.prompts == str(run.prompts)
    source.write_text(QUESTION * 2)
    with pytest.raises(InputError, match=r"holds other prompts than .*mine\.jsonl"):
        with_kept_prompts(ready, run)
    assert run.prompts.read_text() == QUESTION


def test_a_search_resumes_and_is_replayed_from_another_folder(study: Study) -> None:
    """The replay also where the folder that the experiment came in has gone, as a job's does."""
    status, output = study.search()
    assert status == 0, output
    (outcome,) = study.outcomes()
    assert outcome["state"] == "ok", outcome
    status, output = study.search("--resume")
    assert status == 0, output
    (study.folder / "data" / "mine.jsonl").write_text(QUESTION * 2)
    status, output = study.search("--resume")
    assert (status, output.count("\n")) == (2, 1), output
    assert "holds other prompts" in output

    shutil.rmtree(study.folder / "data")
    command = [sys.executable, "-m", "autotune", "replay", str(study.run), "--trial", "0"]
    replay = subprocess.run(command, capture_output=True, text=True, check=False)
    assert replay.returncode == 0, replay.stdout + replay.stderr
    (first, *_) = (study.run / "replays" / "0000-1" / "requests.jsonl").read_text().splitlines()
    assert json.loads(first)["prompts"] == str(study.run / "prompts.jsonl")
