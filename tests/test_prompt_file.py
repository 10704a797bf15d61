"""Which file `workload.prompts` means, wherever the command is typed, and the copy of a run."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.check import check_lines
from autotune.errors import InputError
from autotune.experiment import load_experiment
from autotune.opening import open_new
from autotune.placement import choose_run_dir, locked
from autotune.prompt_file import (
    NoPromptFile,
    prompt_file,
    prompts_named,
    prompts_of,
    refuse_other_prompts,
    with_kept_prompts,
    with_readable_prompts,
)
from autotune.rundir import RunDir
from autotune.sampler import ParetoSampler
from autotune.space import Space
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
    path = prompt_file(load_experiment(file).workload.prompts, file)
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


def test_what_is_nowhere_is_named_at_both_places(study: Study) -> None:
    file = write(study, "gone.jsonl")
    beside, here = study.folder / "gone.jsonl", Path("gone.jsonl").absolute()
    said = f"note: workload.prompts: {beside} is not on this host, nor is {here}"
    assert said in list(check_lines(file))


@pytest.mark.parametrize(
    ("name", "said"),
    [("n" * 300, "File name too long"), ("data", "no regular file")],
)
def test_what_cannot_be_read_is_said_in_one_line(study: Study, name: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        next(check_lines(write(study, name)))  # before it says that the file is valid
    assert "\n" not in str(caught.value)


def test_a_folder_that_may_not_be_entered_is_said_to_be_one(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not passed over for a file of that name in the current directory."""
    Path("data").mkdir()
    Path("data/mine.jsonl").write_text(QUESTION)
    stat, closed = Path.stat, study.folder / "data"

    def refused(path: Path, **options: bool) -> os.stat_result:
        if path.parent == closed:  # root may enter every folder
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refused)
    with pytest.raises(InputError, match=rf"{closed}.*: cannot be read: Permission denied"):
        list(check_lines(study.folder / "small.yaml"))


def test_a_current_directory_that_is_gone_is_not_looked_at(study: Study) -> None:
    Path.cwd().rmdir()
    assert found(study.folder / "small.yaml") == study.folder / "data" / "mine.jsonl"
    with pytest.raises(NoPromptFile, match=r"gone\.jsonl is not on this host$"):
        found(write(study, "gone.jsonl"))
    with pytest.raises(InputError, match="No such file or directory"):
        choose_run_dir(None, "small", resume=False)


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
    source.write_bytes(b"\xef\xbb\xbf" + QUESTION.encode() + b"\r\n")  # kept to the byte
    ready = load_experiment(study.folder / "small.yaml").with_prompts(source)
    for _ in range(2):  # begun, resumed
        refuse_other_prompts(ready, run)
        kept = with_kept_prompts(ready, run, "data/mine.jsonl")
        assert kept.workload.prompts == str(run.prompts)
    assert run.prompts.read_bytes() == source.read_bytes()
    source.write_text(QUESTION * 2)
    with pytest.raises(InputError, match=r"holds other prompts than .*mine\.jsonl"):
        refuse_other_prompts(ready, run)


def test_a_copy_is_meant_only_where_its_original_is_named(study: Study) -> None:
    """A run's experiment file that was edited names other prompts than the run was made with."""
    file, run = study.folder / "small.yaml", RunDir(study.run)
    run.create()
    ready = with_readable_prompts(load_experiment(file), file)
    with_kept_prompts(ready, run, "data/mine.jsonl")
    shutil.copy(file, run.experiment_yaml)
    (study.folder / "data" / "mine.jsonl").write_text(QUESTION * 2)
    assert found(run.experiment_yaml) == run.prompts

    other = study.folder / "data" / "other.jsonl"
    other.write_text(QUESTION * 3)
    text = run.experiment_yaml.read_text()
    run.experiment_yaml.write_text(text.replace("data/mine.jsonl", str(other)))
    assert found(run.experiment_yaml) == other


def test_prompts_are_the_same_if_they_hold_the_same(study: Study) -> None:
    file, run = study.folder / "small.yaml", RunDir(study.run)
    run.create()
    source, moved = study.folder / "data" / "mine.jsonl", study.folder / "moved.jsonl"
    with_kept_prompts(with_readable_prompts(load_experiment(file), file), run, "data/mine.jsonl")
    of_run = prompts_of(run, "data/mine.jsonl")
    shutil.copy(source, moved)
    assert prompts_named("moved.jsonl", file).are(of_run)
    source.write_text(QUESTION * 2)
    assert not prompts_named("data/mine.jsonl", file).are(of_run)
    source.unlink()
    assert prompts_named("data/mine.jsonl", file).are(of_run)  # what it held is not known any more
    assert not prompts_named("shipped", file).are(of_run)


def test_a_search_resumes_and_is_replayed_from_another_folder(study: Study) -> None:
    """Also where the folder that the experiment came in has gone, as a job's does."""
    status, output = study.search()
    assert status == 0, output
    (outcome,) = study.outcomes()
    assert outcome["state"] == "ok", outcome
    kept = study.run / "prompts.jsonl"

    refused(study, "holds other prompts", write(study, "data/mine.jsonl"), QUESTION * 2)
    moved = study.folder / "moved.jsonl"
    shutil.copy(kept, moved)
    shutil.rmtree(study.folder / "data")
    write(study, "moved.jsonl")  # called otherwise, it holds the same
    status, output = study.search("--resume")
    assert status == 0, output
    moved.unlink()
    with locked(RunDir(study.run)):  # which is looked at after the prompts
        assert "is writing this run" in study.search("--resume")[1]

    command = [sys.executable, "-m", "autotune", "replay", str(study.run), "--trial", "0"]
    replay = subprocess.run(command, capture_output=True, text=True, check=False)
    assert replay.returncode == 0, replay.stdout + replay.stderr
    (first, *_) = (study.run / "replays" / "0000-1" / "requests.jsonl").read_text().splitlines()
    assert json.loads(first)["prompts"] == str(kept)


def refused(study: Study, why: str, file: Path, prompts: str) -> None:
    """A resume with these prompts in the file's place is refused and changes nothing."""
    named = file.parent / load_experiment(file).workload.prompts
    named.write_text(prompts)
    before = files_of(study)
    status, output = study.search("--resume")
    assert (status, output.count("\n")) == (2, 1), output
    assert why in output
    assert files_of(study) == before


def files_of(study: Study) -> dict[str, bytes]:
    """What a run holds, but for the lock that each search takes."""
    paths = [path for path in study.run.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(study.run)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("old_prompts", ["data/mine.jsonl", "shipped"])
def test_a_refused_resume_leaves_no_copy(study: Study, old_prompts: str) -> None:
    """Of a run without one: it would be taken for what the run was measured with."""
    run, file = RunDir(study.run), write(study, old_prompts)
    run.create()
    old = load_experiment(file)
    space = Space(old)
    with locked(run):
        open_new(run, old, file, None, ParetoSampler(0, space=space, priors={}, budget=1))
    other = write(study, "data/other.jsonl")
    refused(study, "workload.prompts: was", other, QUESTION * 2)
    assert not run.prompts.exists()
