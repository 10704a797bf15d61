"""Which directory a search writes: never one that holds something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.placement import choose_fork, choose_run_dir
from autotune.rundir import RunDir
from tests.runs import baseline, write_run
from tests.searching import only_line, study_in


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_directory_that_is_a_file_is_refused_in_one_line(
    tmp_path: Path, resume: bool
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine")
    with pytest.raises(InputError, match=r"mine\.yaml: .*is a file") as error:
        choose_run_dir(file, "mine", resume)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["notes.txt"], "holds notes.txt, and no run"),
        (["a", "b", ".hidden"], "holds a and b, and no run"),
        (["a", "b", "c", "d"], "holds a, b and 2 more, and no run"),
    ],
)
def test_a_folder_that_holds_something_else_is_refused(
    tmp_path: Path, names: list[str], said: str
) -> None:
    for name in names:
        (tmp_path / name).write_text("")
    with pytest.raises(InputError, match=f"{tmp_path}: --run-dir: {said}; give a folder") as error:
        choose_run_dir(tmp_path, "mine", resume=False)
    assert "\n" not in str(error.value)


def test_a_folder_in_which_nobody_has_anything_is_taken(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".snapshot").write_text("")
    assert choose_run_dir(tmp_path, "mine", resume=False).path == tmp_path


def test_what_a_search_left_that_died_before_its_first_trial_is_taken(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.create()
    (tmp_path / "lock").write_text("")
    assert choose_run_dir(tmp_path, "mine", resume=False) == run


def test_a_run_without_its_format_is_continued(tmp_path: Path) -> None:
    run = RunDir(write_run(tmp_path / "run", baseline()))
    run.run_json.unlink()
    assert choose_run_dir(run.path, "mine", resume=True) == run


def test_nothing_is_written_into_a_folder_that_is_refused(tmp_path: Path) -> None:
    study = study_in(tmp_path / "study")
    study.run.mkdir()
    (study.run / "notes.txt").write_text("mine")
    status, output = study.search()
    assert status == 2
    assert "notes.txt" in only_line(output)
    assert [path.name for path in study.run.iterdir()] == ["notes.txt"]


def test_a_fork_goes_beside_the_run_and_the_forks_that_are_there(tmp_path: Path) -> None:
    old = RunDir(tmp_path / "run")
    for number in (2, 3):
        fork = choose_fork(old, resume=False)
        assert fork.path == tmp_path / f"run-{number}"
        fork.create()


def test_a_fork_is_not_continued_by_forking_again(tmp_path: Path) -> None:
    study = study_in(tmp_path / "study")
    for name in ("run", "run-2"):
        newest = write_run(study.folder / name, baseline())
        status, output = study.search("--fork", "--resume")
        assert status == 2
        assert f"--run-dir {newest} --resume" in only_line(output)
    assert not (study.folder / "run-3").exists()
