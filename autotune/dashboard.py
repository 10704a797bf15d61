"""`autotune dashboard`: optuna-dashboard on a run, with notes and artifacts for each trial."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna

from autotune.errors import InputError
from autotune.notes import study_note, trial_note
from autotune.records import Outcome
from autotune.rundir import Run, RunDir, read_run
from autotune.storage import open_storage, storage_url

LOOPBACK = "127.0.0.1"
_ARTIFACTS = ("server.log", "timeline.json", "launch.sh", "outcome.json")
_NOTED = "autotune:noted"


def serve_dashboard(path: Path, port: int) -> None:
    """Prepare the run's study for optuna-dashboard and replace this process by it.

    Raises:
        InputError: the run has no study, or optuna-dashboard is not installed.
    """
    run, url = read_run(path), study_url(path)
    try:
        import optuna_dashboard  # noqa: F401  # is it there?
    except ImportError as error:
        raise InputError(
            "optuna-dashboard is not installed; pip install 'autotune-llm[dashboard]'"
        ) from error
    artifacts = path / "artifacts"
    if not run.live:  # only the driver writes a study that is under way
        prepare(run, url, artifacts)
    artifacts.mkdir(mode=0o700, exist_ok=True)
    print(f"http://{LOOPBACK}:{port}/dashboard", flush=True)
    program = Path(sys.executable).with_name("optuna-dashboard")
    arguments = ["--host", LOOPBACK, "--port", str(port), "--artifact-dir", str(artifacts)]
    os.execv(program, [str(program), url, *arguments])


def study_url(path: Path) -> str:
    """The storage URL of a run, as it was searched with."""
    stored = path / "storage.json"
    if stored.exists():
        return str(json.loads(stored.read_text())["url"])
    database = RunDir(path).study_db
    if not database.exists():
        raise InputError("has no study yet", file=path)
    return storage_url(None, database)


def prepare(run: Run, url: str, artifacts: Path) -> None:
    """Write a note for the study and each trial, and attach each trial's files; repeatable."""
    from optuna_dashboard import save_note

    artifacts.mkdir(mode=0o700, exist_ok=True)
    store = optuna.artifacts.FileSystemArtifactStore(base_path=str(artifacts))
    study = optuna.load_study(study_name=_study_name(run.path), storage=open_storage(url))
    save_note(study, study_note(run))
    trials = {trial.number: trial for trial in study.get_trials(deepcopy=False)}
    for outcome in run.outcomes:
        trial = trials.get(outcome.number)
        if trial is None or trial.system_attrs.get(_NOTED):
            continue
        live = optuna.trial.Trial(study, trial._trial_id)
        save_note(live, trial_note(outcome))
        for file in _files(run.path, outcome):
            optuna.artifacts.upload_artifact(
                artifact_store=store, file_path=str(file), study_or_trial=live
            )
        study._storage.set_trial_system_attr(trial._trial_id, _NOTED, True)


def _study_name(path: Path) -> str | None:
    stored = path / "storage.json"
    document: dict[str, Any] = json.loads(stored.read_text()) if stored.exists() else {}
    return document.get("study")


def _files(path: Path, outcome: Outcome) -> Iterator[Path]:
    folder = RunDir(path).trial(outcome.number)
    return (folder / name for name in _ARTIFACTS if (folder / name).exists())
