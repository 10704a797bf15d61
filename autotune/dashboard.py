"""`autotune dashboard`: optuna-dashboard on a run, with notes and artifacts for each trial."""

from __future__ import annotations

import json
import mimetypes
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import optuna
import sqlalchemy
from optuna.storages import BaseStorage, RDBStorage

from autotune.errors import InputError
from autotune.notes import study_note, trial_note
from autotune.run import Run, read_run
from autotune.rundir import RunDir
from autotune.storage import open_storage, stored_storage, study_url

LOOPBACK = "127.0.0.1"
_ARTIFACTS = ("server.log", "timeline.json", "launch.sh", "outcome.json")
# optuna-dashboard keeps a note in pieces, for the sake of MySQL's short columns.
_NOTE_PIECE = 2045
_ATTRIBUTES = sqlalchemy.table(
    "study_system_attributes",
    *(sqlalchemy.column(name) for name in ("study_id", "key", "value_json")),
)


def serve_dashboard(path: Path, port: int, storage: str | None = None) -> None:
    """Prepare the run's study for optuna-dashboard and serve it until Ctrl-C.

    Args:
        path: the run directory.
        port: on loopback.
        storage: the study's URL, where the stored one has no password in it.

    Raises:
        InputError: the run has no study, its storage does not open, the port is taken, or
            optuna-dashboard is not installed.
    """
    try:
        from optuna_dashboard import wsgi
    except ImportError as error:
        raise InputError(
            "optuna-dashboard is not installed; pip install 'autotune-llm[dashboard]'"
        ) from error
    run, artifacts = read_run(path), path / "artifacts"
    opened = open_storage(storage or study_url(path))
    store = optuna.artifacts.FileSystemArtifactStore(base_path=str(artifacts))
    application = wsgi(opened, artifact_store=store)
    try:
        server = make_server(LOOPBACK, port, application, _Server, _Quiet)
    except (OSError, OverflowError) as error:
        raise InputError(f"port {port} cannot be used: {error}", field="--port") from error
    with server:
        prepare(run, opened, artifacts)
        print(f"http://{LOOPBACK}:{server.server_port}/dashboard (Ctrl-C ends it)", flush=True)
        server.serve_forever()


class _Server(ThreadingMixIn, WSGIServer):
    """A page asks for several things at once; none of them keeps the process."""

    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    """Does not print each request."""

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


def prepare(run: Run, storage: BaseStorage, artifacts: Path) -> None:
    """Write a note for the study and each trial, and attach each trial's files; repeatable.

    A note that a person edited in the dashboard stays as it is.

    Raises:
        InputError: the storage does not hold this run's study.
    """
    try:
        study = optuna.load_study(study_name=stored_storage(run.path).get("study"), storage=storage)
    except (KeyError, ValueError) as error:
        raise InputError("the storage does not hold this run's study", file=run.path) from error
    ids = {trial.number: trial._trial_id for trial in study.get_trials(deepcopy=False)}
    stored = storage.get_study_system_attrs(study._study_id)
    wanted = _note_attributes(stored, "dashboard:", study_note(run))
    artifacts.mkdir(mode=0o700, exist_ok=True)
    for outcome in run.outcomes:
        if outcome.number in ids:
            prefix = f"dashboard:{ids[outcome.number]}:"
            wanted |= _note_attributes(stored, prefix, trial_note(outcome))
            wanted |= dict(_attached(run.path, outcome.number, ids[outcome.number], artifacts))
    changed = {key: value for key, value in wanted.items() if stored.get(key) != value}
    _write(storage, study._study_id, changed)


def _note_attributes(stored: Mapping[str, Any], prefix: str, note: str) -> dict[str, Any]:
    """A note as optuna-dashboard keeps it; nothing if somebody edited the stored one."""
    version, piece = f"{prefix}note_ver", f"{prefix}note_str:"
    if stored.get(version, 0) > 1:
        return {}
    left_over = {key: "" for key in stored if key.startswith(piece)}
    starts = range(0, len(note), _NOTE_PIECE)
    pieces = {f"{piece}{i}": note[at : at + _NOTE_PIECE] for i, at in enumerate(starts)}
    return {version: 1} | left_over | pieces


def _attached(path: Path, number: int, trial_id: int, artifacts: Path) -> Iterator[tuple[str, str]]:
    """Link a trial's files into the artifact folder; yield what names them in the study.

    optuna's own upload refuses a finished trial and copies; a link shows a log that grows, too.
    """
    folder = RunDir(path).trial(number)
    for name in _ARTIFACTS:
        if not (folder / name).exists():
            continue
        artifact = str(uuid.uuid5(uuid.NAMESPACE_URL, f"autotune:{number}/{name}"))
        link = artifacts / artifact
        if not link.is_symlink():
            link.symlink_to(Path("..") / folder.relative_to(path) / name)
        mimetype = mimetypes.guess_type(name)[0] or "text/plain"
        document = {"artifact_id": artifact, "filename": name, "mimetype": mimetype}
        document["encoding"] = ""
        yield f"dashboard:artifacts:{trial_id}:{artifact}", json.dumps(document)


def _write(storage: BaseStorage, study_id: int, attributes: Mapping[str, Any]) -> None:
    """Set attributes of a study: in a database in one transaction, hundreds take one commit."""
    backend = getattr(storage, "_backend", storage)  # optuna wraps a database in a cache
    if not isinstance(backend, RDBStorage):
        for key, value in attributes.items():
            storage.set_study_system_attr(study_id, key, value)
        return
    if not attributes:
        return
    rows = [
        {"study_id": study_id, "key": key, "value_json": json.dumps(value)}
        for key, value in attributes.items()
    ]
    old = _ATTRIBUTES.c.study_id == study_id, _ATTRIBUTES.c.key == sqlalchemy.bindparam("old")
    with backend.engine.begin() as connection:
        delete = sqlalchemy.delete(_ATTRIBUTES).where(*old)
        connection.execute(delete, [{"old": key} for key in attributes])
        connection.execute(sqlalchemy.insert(_ATTRIBUTES), rows)
