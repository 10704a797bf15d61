"""Where the Optuna study is kept: SQLite in the run directory, or what `--storage` names.

Only the driver opens it. A password is used and never stored: what the run keeps of its storage
is the URL without it.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    ProgrammingError,
    SQLAlchemyError,
)

from autotune.errors import InputError, StorageLost
from autotune.masking import MASK, is_secret_name
from autotune.rundir import RunDir, write_json

JOURNAL = "journal:"
FILE = "storage.json"
_SQLITE = "sqlite:///"
# A busy dashboard may hold SQLite's lock for a while; seconds.
_SQLITE_PATIENCE_S = 60
# A database that restarts is back within seconds; a study that has run for hours waits for it.
_RESTART_PATIENCE_S = 30.0
_CONNECT_TIMEOUT_S = 10
_TABLES_MADE_TOGETHER = 10


def storage_url(requested: str | None, study_db: Path) -> str:
    """The URL to use: the requested one, with an absolute path, or SQLite in the run directory."""
    if requested is None:
        return f"{_SQLITE}{study_db.resolve()}"
    for scheme in (JOURNAL, _SQLITE):
        if requested.startswith(scheme):
            return scheme + str(Path(requested.removeprefix(scheme)).expanduser().absolute())
    return requested


def open_storage(url: str) -> BaseStorage:
    """Open `sqlite:///…`, `postgresql://…`, `mysql://…` or `journal:PATH`.

    Raises:
        InputError: the URL is malformed, its driver is missing or nothing answers there.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        if url.startswith(JOURNAL):
            return JournalStorage(_Journal(url.removeprefix(JOURNAL)))
        return _open_database(url)
    except ImportError as error:
        raise InputError(
            f"{error} For PostgreSQL: pip install 'autotune-llm[postgresql]'", field="--storage"
        ) from error
    except (ArgumentError, ValueError) as error:  # the URL is not repeated: it has the password
        raise InputError(
            f"{_reason(error)}; use sqlite:///FILE, postgresql://USER@HOST/DB or journal:FILE",
            field="--storage",
        ) from error
    except Exception as error:  # whatever the database's driver raises is about the URL
        raise InputError(
            f"{without_password(url)} cannot be opened: {_reason(error)}", field="--storage"
        ) from error


class _Journal(JournalFileBackend):
    """A journal whose lost disk is told as a lost database is."""

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        with _told_as_optuna_does():
            yield from super().read_logs(log_number_from)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        with _told_as_optuna_does():
            super().append_logs(logs)


@contextlib.contextmanager
def _told_as_optuna_does() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a line that is no JSON
        raise StorageInternalError(str(error)) from error


def _open_database(url: str) -> RDBStorage:
    storage = _made_database(url)
    if url.startswith(_SQLITE):
        _write_ahead(storage.engine)
    else:
        _wait_for_restarts(storage.engine)
    return storage


def _made_database(url: str) -> RDBStorage:
    """Optuna makes the tables of an empty database one after another, and stumbles over each
    that another driver makes at the same moment. The next time, that one is there."""
    for _ in range(_TABLES_MADE_TOGETHER):
        with contextlib.suppress(IntegrityError, ProgrammingError):
            return RDBStorage(_with_driver(url), engine_kwargs=_options(url))
    return RDBStorage(_with_driver(url), engine_kwargs=_options(url))


def _write_ahead(engine: sqlalchemy.Engine) -> None:
    """From now on, a commit waits for no disk, and readers do not wait for the writer.

    A trial is some forty commits. What a power cut may take of the last ones is in the trials'
    own files, from which a resumed study learns it again.
    """

    @sqlalchemy.event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    engine.dispose()  # what is open already was opened without it


def _options(url: str) -> dict[str, Any]:
    """What SQLAlchemy is told. A trial takes minutes, and idle connections get cut: each is
    looked at before its use."""
    if url.startswith("sqlite:"):
        return {"connect_args": {"timeout": _SQLITE_PATIENCE_S}}
    if not _with_driver(url).startswith("postgresql+psycopg:"):
        return {"pool_pre_ping": True}
    arguments = {
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "fallback_application_name": "autotune",
    }
    return {"pool_pre_ping": True, "connect_args": arguments}


def _with_driver(url: str) -> str:
    """psycopg 3 is the driver installed here; `postgres://` is what cloud consoles print."""
    return re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url)


def _wait_for_restarts(engine: sqlalchemy.Engine) -> None:
    """From now on, connecting is tried for a while: the database did answer when it was opened."""

    @sqlalchemy.event.listens_for(engine, "do_connect")
    def connect(dialect: Any, _record: Any, arguments: Any, options: Any) -> Any:
        end = time.monotonic() + _RESTART_PATIENCE_S
        while True:
            try:
                return dialect.connect(*arguments, **options)
            except dialect.dbapi.OperationalError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)


@contextlib.contextmanager
def loss_explained() -> Iterator[None]:
    """Tell a storage that fails while a study runs as one line.

    Raises:
        StorageLost: whatever Optuna or the database's driver raised inside.
    """
    try:
        yield
    except (StorageInternalError, SQLAlchemyError) as error:
        raise StorageLost(
            f"the study's storage failed: {_reason(error)}; what was measured is kept, "
            "--resume continues"
        ) from error


def _reason(error: BaseException) -> str:
    """What the database itself says, in one line and without SQLAlchemy's frame around it."""
    if isinstance(error, StorageInternalError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, DBAPIError) and error.orig is not None:
        error = error.orig
    lines = [line.strip(" -\t") for line in str(error).splitlines()]
    return " ".join(line for line in lines if line) or type(error).__name__


def without_password(url: str) -> str:
    """The URL with its password masked, whether it stands before the host or in the query."""
    if url.startswith((JOURNAL, _SQLITE)):
        return url
    parsed = sqlalchemy.make_url(url)
    secret = [name for name in parsed.query if "passw" in name or is_secret_name(name)]
    if secret:
        parsed = parsed.difference_update_query(secret)
        parsed = parsed.set(username=parsed.username or "", password=MASK)
    return parsed.render_as_string(hide_password=True)


def stored_storage(path: Path) -> dict[str, str]:
    """What a run keeps of its storage: the URL, its password masked, the study, its owner."""
    file = path / FILE
    document: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    return document


def remember(path: Path, **changes: str) -> None:
    """Keep for later commands where a run's study is: its `url`, `study` (the name), `owner`."""
    if "url" in changes:
        changes["url"] = without_password(changes["url"])
    write_json(path / FILE, {**stored_storage(path), **changes})


def study_url(path: Path) -> str:
    """The storage URL of a run, as it was searched with.

    A run directory that was moved takes its own database along.

    Raises:
        InputError: there is no study, or the URL was stored without its password.
    """
    database = RunDir(path).study_db
    if database.exists():
        return storage_url(None, database)
    url = stored_storage(path).get("url", "")
    if not url or url.endswith(f"/{database.name}"):
        raise InputError("has no study yet", file=path)
    if MASK in url:
        raise InputError(
            f"the study is kept in {url}, whose password was not stored; give the whole URL",
            field="--storage",
        )
    return url
