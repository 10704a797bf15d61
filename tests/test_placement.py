"""Which directory a search writes: never one that holds something else."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.placement import choose_fork, choose_run_dir, locked, taken_back_if_refused
from autotune.rundir import FORMAT, RunDir, write_json
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


def test_a_folder_with_a_file_named_as_ours_is_not_taken_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"speed": 3}')
    with pytest.raises(InputError, match=r"holds run\.json, and no run"):
        choose_run_dir(tmp_path, "mine", resume=False)


def test_what_a_newer_autotune_began_is_refused_before_a_night_is_spent(tmp_path: Path) -> None:
    write_json(RunDir(tmp_path).run_json, {"format": FORMAT + 1})
    with pytest.raises(InputError, match="newer autotune"):
        choose_run_dir(tmp_path, "mine", resume=False)


def test_a_link_that_leads_to_itself_is_refused_in_one_line(tmp_path: Path) -> None:
    study = study_in(tmp_path / "study")
    study.run.symlink_to(study.run)
    status, output = study.search()
    assert status == 2
    assert str(study.run) in only_line(output)


def test_a_search_that_is_refused_takes_nothing_of_the_one_that_runs(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    with locked(run):
        files = sorted(run.path.iterdir())
        with (
            pytest.raises(InputError, match="another `autotune search`"),
            locked(run),
            taken_back_if_refused(run),
        ):
            pass
        assert sorted(run.path.iterdir()) == files


def test_of_searches_that_start_at_once_none_loses_its_directory(tmp_path: Path) -> None:
    begin, refused = threading.Barrier(3), threading.Semaphore(0)

    def search(run: RunDir) -> bool | None:
        """Whether the directory is there at its end; None if it is another's."""
        begin.wait()
        try:
            with locked(run), taken_back_if_refused(run):
                run.experiment_yaml.write_text("name: mine")
                for _ in range(2):
                    refused.acquire()
                return run.experiment_yaml.exists()
        except InputError:
            refused.release()
            return None

    with ThreadPoolExecutor(3) as pool:
        for number in range(10):
            ends = pool.map(search, [RunDir(tmp_path / str(number))] * 3)
            assert Counter(ends) == {True: 1, None: 2}


def test_a_new_directory_is_taken_back_with_all_that_was_written(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    with pytest.raises(InputError, match="wrong"), locked(run), taken_back_if_refused(run):
        (run.path / "simulated").mkdir()
        run.experiment_yaml.write_text("name: mine")
        raise InputError("wrong")
    assert not run.path.exists()


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "experiment.yaml"])
def test_a_directory_that_holds_something_is_kept(tmp_path: Path, name: str) -> None:
    run = RunDir(tmp_path)
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match="wrong"), locked(run), taken_back_if_refused(run):
        raise InputError("wrong")
    assert (tmp_path / name).read_text() == "mine"


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
