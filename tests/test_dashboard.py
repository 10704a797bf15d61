"""optuna-dashboard on a run: what its pages show in a real browser, and what cannot be served."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest

from autotune.dashboard import prepare
from autotune.errors import InputError
from autotune.experiment import load_experiment
from autotune.records import OBJECTIVES
from autotune.run import read_run
from autotune.rundir import RunDir, write_json
from autotune.space import Space
from autotune.storage import open_storage, storage_url, study_url
from tests.patience import PATIENCE_SECONDS
from tests.runs import study, write_run

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=20000",
)


def run_with_study(path: Path, count: int = 12, storage: str | None = None) -> Path:
    """A run directory and its Optuna study, as a search leaves them."""
    write_run(path, *study(count))
    place, run = RunDir(path), read_run(path)
    for outcome in run.outcomes:
        (place.trial(outcome.number) / "server.log").write_text(f"log of {outcome.number}\n")
    distributions = Space(load_experiment(place.experiment_yaml)).distributions
    url = storage_url(storage, place.study_db)
    made = optuna.create_study(
        study_name="synthetic", storage=open_storage(url), directions=["maximize", "maximize"]
    )
    made.set_metric_names(list(OBJECTIVES))
    for outcome in run.outcomes:
        infeasible = outcome.failure is not None
        trial = optuna.trial.create_trial(
            params=outcome.params,
            distributions=distributions,
            values=[(outcome.values or {}).get(name, 1.0) for name in OBJECTIVES],
            system_attrs={"constraints": [float(infeasible)]},
        )
        made.add_trial(trial)
    write_json(path / "storage.json", {"url": url, "study": "synthetic"})
    return path


def attributes(path: Path) -> dict[str, Any]:
    storage = open_storage(study_url(path))
    (made,) = storage.get_all_studies()
    return storage.get_study_system_attrs(made._study_id)


def prepared(path: Path) -> Path:
    prepare(read_run(path), open_storage(study_url(path)), path / "artifacts")
    return path


@contextmanager
def served(path: Path, *options: str) -> Iterator[str]:
    """The dashboard as a person starts it; yields its address."""
    command = [sys.executable, "-m", "autotune", "dashboard", str(path), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.match(r"(http://127\.0\.0\.1:\d+)/dashboard", line)
            assert found, line
            yield found[1]
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(run_with_study(tmp_path_factory.mktemp("runs") / "run")) as url:
        yield url


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        return str(answer.read().decode())


def page(url: str, profile: Path) -> str:
    """What a browser shows at this address, as its final document."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", url]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=2 * PATIENCE_SECONDS
    ).stdout


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


@pytest.mark.browser
@needs_browser
def test_a_browser_shows_both_objectives_the_front_and_what_is_infeasible(
    address: str, tmp_path: Path
) -> None:
    seen = page(f"{address}/dashboard/studies/1", tmp_path / "profile")
    assert "Pareto Front" in seen
    assert all(name in seen for name in OBJECTIVES)
    assert "Infeasible" in seen
    assert "Best Trial" in seen


@pytest.mark.browser
@needs_browser
def test_a_browser_shows_a_trial_s_note_and_files(address: str, tmp_path: Path) -> None:
    seen = page(f"{address}/dashboard/studies/1/trials?numbers=0", tmp_path / "profile")
    assert "<strong>ok</strong> (baseline)" in seen
    assert "single stream:" in seen
    assert "server.log" in seen
    assert "--model-path acme/Tiny-1T" in seen


def test_a_trial_s_files_are_served(address: str) -> None:
    trial = json.loads(fetched(f"{address}/api/studies/1"))["trials"][3]
    files = {entry["filename"]: entry["artifact_id"] for entry in trial["artifacts"]}
    assert set(files) == {"server.log", "outcome.json"}
    place = f"{address}/artifacts/1/{trial['trial_id']}/{files['server.log']}"
    assert fetched(place) == "log of 3\n"


def test_preparing_twice_changes_nothing(tmp_path: Path) -> None:
    path = prepared(run_with_study(tmp_path / "run"))
    first = attributes(path)
    assert attributes(prepared(path)) == first
    assert first["dashboard:note_str:0"].startswith("synthetic: ")


def test_a_note_that_a_person_edited_stays(tmp_path: Path) -> None:
    from optuna_dashboard import save_note

    path = prepared(run_with_study(tmp_path / "run"))
    made = optuna.load_study(study_name=None, storage=open_storage(study_url(path)))
    save_note(made, "mine")
    prepared(path)
    assert attributes(path)["dashboard:note_str:0"] == "mine"


def test_a_run_that_moved_takes_its_study_along(tmp_path: Path) -> None:
    moved = run_with_study(tmp_path / "old").rename(tmp_path / "new")
    prepared(moved)
    assert not (tmp_path / "old").exists()
    assert (moved / "artifacts").is_dir()
    assert all(link.resolve().exists() for link in (moved / "artifacts").iterdir())


def test_a_journal_gets_notes_too(tmp_path: Path) -> None:
    path = run_with_study(tmp_path / "run", 3, f"journal:{tmp_path / 'study.journal'}")
    assert "dashboard:1:note_ver" in attributes(prepared(path))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (None, "has no study yet"),
        ("postgresql://***@db/optuna", "--storage: .*password was not stored"),
    ],
)
def test_a_run_whose_study_cannot_be_found_says_so(
    tmp_path: Path, url: str | None, says: str
) -> None:
    path = write_run(tmp_path / "run", *study(2))
    if url is not None:
        write_json(path / "storage.json", {"url": url, "study": "synthetic"})
    with pytest.raises(InputError, match=says):
        study_url(path)


def test_another_run_s_storage_is_refused(tmp_path: Path) -> None:
    path = run_with_study(tmp_path / "run", 2)
    write_json(path / "storage.json", {"url": "", "study": "another"})
    with pytest.raises(InputError, match="does not hold this run's study"):
        prepared(path)
