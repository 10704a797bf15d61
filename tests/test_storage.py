"""Where a study is kept: journals, URLs, and whose study it is."""

from __future__ import annotations

import json
from pathlib import Path

import optuna
import pytest

from autotune import storage
from autotune.errors import InputError, StorageLost
from autotune.ownership import OWNER, create_own, find_own
from autotune.rundir import RunDir
from autotune.storage import loss_explained, open_storage, remember, storage_url
from tests.searching import study_in
from tests.test_dashboard import fetched, served


# -- a journal -------------------------------------------------------------------------------
def test_a_journal_is_searched_resumed_and_shown(tmp_path: Path) -> None:
    study, journal = study_in(tmp_path), tmp_path / "study.journal"
    status, output = study.search("--storage", f"journal:{journal}")
    assert status == 0, output
    status, output = study.search("--resume", "--trials", "3")
    assert status == 0, output
    assert len(study.outcomes()) == 3
    assert not (study.run / "study.db").exists()
    with served(study.run) as address:
        trials = json.loads(fetched(f"{address}/api/studies/0"))["trials"]
    assert [trial["state"] for trial in trials] == ["Complete"] * 3


def test_a_journal_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"journal:.*cannot be opened: .*No such file"):
        open_storage(f"journal:{tmp_path / 'nowhere' / 'study.journal'}")


def test_a_journal_whose_file_is_broken_or_gone_stops_the_study(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    opened = open_storage(f"journal:{path}")
    path.write_text("no JSON\nat all\n")
    with pytest.raises(StorageLost, match="--resume continues"), loss_explained():
        opened.get_all_studies()
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageLost, match="Is a directory"), loss_explained():
        opened.create_new_study([optuna.study.StudyDirection.MAXIMIZE], "one")


# -- URLs ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("url", "stored"),
    [
        ("postgresql://me:secret@db/optuna", "postgresql://me:***@db/optuna"),
        ("postgresql://me:se/cr@db:5433/optuna", "postgresql://me:***@db:5433/optuna"),
        ("postgresql://me@db/optuna", "postgresql://me@db/optuna"),
        ("postgresql://db/optuna?user=me&password=secret", "postgresql://:***@db/optuna?user=me"),
        ("postgresql://db/optuna?passfile=/a/b", "postgresql://db/optuna?passfile=%2Fa%2Fb"),
        ("mysql+pymysql://me:secret@db/optuna", "mysql+pymysql://me:***@db/optuna"),
        ("journal:/data/a:b@c.journal", "journal:/data/a:b@c.journal"),
    ],
)
def test_a_run_keeps_its_url_without_the_password(tmp_path: Path, url: str, stored: str) -> None:
    remember(tmp_path, url=url)
    assert json.loads((tmp_path / "storage.json").read_text()) == {"url": stored}


def test_a_relative_file_is_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database = tmp_path / "run" / "study.db"
    assert storage_url("journal:a.journal", database) == f"journal:{tmp_path}/a.journal"
    assert storage_url("sqlite:///a.db", database) == f"sqlite:///{tmp_path}/a.db"
    assert storage_url("sqlite:////data/a.db", database) == "sqlite:////data/a.db"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql:/me:secret@db", "use sqlite:///FILE, postgresql://USER@HOST/DB"),
        ("postgresql://me:secret@db:port/optuna", "use sqlite:///FILE"),
        ("oracel://me:secret@db/optuna", "use sqlite:///FILE"),
        ("sqlite:////nowhere/at/all/study.db", "sqlite:////nowhere/at/all/study.db cannot be op"),
        ("postgresql://me:secret@127.0.0.1:1/optuna", "me:...@127.0.0.1:1/optuna cannot be op"),
    ],
)
def test_a_storage_that_does_not_open_is_one_line(url: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as told:
        open_storage(url)
    assert "secret" not in str(told.value)
    assert "\n" not in str(told.value)


def test_a_database_that_never_answered_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: pytest.fail("waited"))
    with pytest.raises(InputError):
        open_storage("postgresql://me@127.0.0.1:1/optuna")


# -- whose study -----------------------------------------------------------------------------
def made(path: Path, url: str, name: str = "one") -> RunDir:
    run = RunDir(path)
    run.create()
    create_own(run, url, name, optuna.samplers.RandomSampler())
    return run


def test_resume_does_not_start_a_study_in_a_storage_that_lacks_it(tmp_path: Path) -> None:
    run = made(tmp_path / "run", f"journal:{tmp_path / 'mine'}")
    other = f"journal:{tmp_path / 'other'}"
    with pytest.raises(InputError, match=f"holds no study named one; .*journal:{tmp_path}/mine"):
        find_own(run, other, "one", optuna.samplers.RandomSampler())
    assert open_storage(other).get_all_studies() == []


def test_resume_refuses_another_run_s_study_of_the_same_name(tmp_path: Path) -> None:
    run = made(tmp_path / "run", f"journal:{tmp_path / 'mine'}")
    made(tmp_path / "other", f"journal:{tmp_path / 'theirs'}")
    with pytest.raises(InputError, match=f"is not this run's .of .*{tmp_path}/other"):
        find_own(run, f"journal:{tmp_path / 'theirs'}", "one", optuna.samplers.RandomSampler())


def test_a_study_that_moved_is_found_at_its_new_place_from_then_on(tmp_path: Path) -> None:
    run = made(tmp_path / "run", f"journal:{tmp_path / 'old'}")
    (tmp_path / "old").rename(tmp_path / "new")
    sampler = optuna.samplers.RandomSampler()
    found = find_own(run, f"journal:{tmp_path / 'new'}", "one", sampler)
    assert find_own(run, None, "one", sampler).user_attrs == found.user_attrs
    assert found.user_attrs[OWNER]["run"].endswith(f":{run.path}")


def test_what_was_left_before_the_first_trial_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    url, sampler = f"journal:{tmp_path / 'study'}", optuna.samplers.RandomSampler()
    first = made(tmp_path / "run", url)
    find_own(first, None, "one", sampler).enqueue_trial({"steps": 1})
    again = create_own(first, url, "one", sampler)
    assert again.get_trials() == []
    again.ask()
    with pytest.raises(InputError, match="already holds a study named one"):
        create_own(first, url, "one", sampler)
