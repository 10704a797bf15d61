"""Where the Optuna study is kept: SQLite in the run directory, or what `--storage` names."""

from __future__ import annotations

import json
from pathlib import Path

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from autotune.errors import InputError
from autotune.masking import MASK, mask_text
from autotune.rundir import RunDir, write_json

JOURNAL = "journal:"
FILE = "storage.json"
# A busy dashboard may hold SQLite's lock for a while; seconds.
_SQLITE_PATIENCE_S = 60


def storage_url(requested: str | None, study_db: Path) -> str:
    """The URL to use: the requested one, or SQLite in the run directory."""
    return requested if requested is not None else f"sqlite:///{study_db.resolve()}"


def open_storage(url: str) -> BaseStorage:
    """Open `sqlite:///…`, `postgresql://…`, `mysql://…` or `journal:PATH`.

    Raises:
        InputError: the URL is malformed, its driver is missing or nothing answers there.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if url.startswith(JOURNAL):
        return JournalStorage(JournalFileBackend(url.removeprefix(JOURNAL)))
    is_sqlite = url.startswith("sqlite:")
    arguments = {"connect_args": {"timeout": _SQLITE_PATIENCE_S}} if is_sqlite else {}
    try:
        return RDBStorage(_with_driver(url), engine_kwargs=arguments)
    except ImportError as error:
        raise InputError(
            f"{error}; pip install 'autotune-llm[postgresql]'", field="--storage"
        ) from error
    except Exception as error:  # whatever the database's driver raises is about the URL
        reason = str(error).splitlines()[0]
        raise InputError(
            f"cannot be opened: {reason}; use sqlite:///FILE, postgresql://USER@HOST/DB "
            "or journal:FILE",
            field="--storage",
        ) from error


def _with_driver(url: str) -> str:
    """SQLAlchemy's default PostgreSQL driver is psycopg2; the one installed here is psycopg 3."""
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


def stored_storage(path: Path) -> dict[str, str]:
    """What a run keeps of its storage: the URL, its password masked, and the study's name."""
    file = path / FILE
    document: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    return document


def remember(path: Path, url: str, study: str) -> None:
    """Keep for later commands where a run's study is."""
    write_json(path / FILE, {"url": mask_text(url), "study": study})


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
