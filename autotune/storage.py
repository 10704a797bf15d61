"""Where the Optuna study is kept: SQLite in the run directory, or what `--storage` names."""

from __future__ import annotations

from pathlib import Path

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from autotune.errors import InputError

JOURNAL = "journal:"
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
    if url.startswith(JOURNAL):
        return JournalStorage(JournalFileBackend(url.removeprefix(JOURNAL)))
    is_sqlite = url.startswith("sqlite:")
    arguments = {"connect_args": {"timeout": _SQLITE_PATIENCE_S}} if is_sqlite else {}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
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
