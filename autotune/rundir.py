"""A run on disk: where its files lie, and how they are written (`run.py` reads them back).

runs/NAME/run.json            format and version that wrote it, and what it copied
          lock                held by the search that writes it
          experiment.yaml     the search space as it was given
          prompts.jsonl       the user's prompts, if it names some
          machine.json        fingerprint of the host
          study.db            Optuna's storage
          status.json         what the driver does right now
          summary.json        how the study ended
          trials/0007/outcome.json, launch.sh, server.log, timeline.json, requests.jsonl
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, JsonValue

from autotune import __version__
from autotune.errors import InputError

FORMAT = 1
"""Raised when an older autotune could misread what a newer one wrote."""


@dataclass(frozen=True)
class RunDir:
    """Where the files of one run lie. Creates nothing until `create`."""

    path: Path

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def experiment_yaml(self) -> Path:
        return self.path / "experiment.yaml"

    @property
    def prompts(self) -> Path:
        return self.path / "prompts.jsonl"

    @property
    def machine_json(self) -> Path:
        return self.path / "machine.json"

    @property
    def study_db(self) -> Path:
        return self.path / "study.db"

    @property
    def status_json(self) -> Path:
        return self.path / "status.json"

    @property
    def summary_json(self) -> Path:
        return self.path / "summary.json"

    @property
    def report_html(self) -> Path:
        return self.path / "report.html"

    @property
    def trials(self) -> Path:
        return self.path / "trials"

    def trial(self, number: int) -> Path:
        """The folder of one trial; alone enough to run that trial again by hand."""
        return self.trials / f"{number:04d}"

    def outcome_json(self, number: int) -> Path:
        return self.trial(number) / "outcome.json"

    def create(self) -> None:
        """Make the directory, readable by its owner alone; an existing run is kept.

        Logs and environments of servers can hold what others must not see.
        """
        with explained(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.run_json.exists():  # first: it says that the directory is a run's
                write_json(self.run_json, {"format": FORMAT, "autotune": __version__})
            self.trials.mkdir(mode=0o700, exist_ok=True)

    def create_trial(self, number: int) -> Path:
        """Make the folder of one trial; returns it."""
        folder = self.trial(number)
        with explained(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder


def write_json(path: Path, content: BaseModel | JsonValue | Mapping[str, Any]) -> None:
    """Write JSON so that a reader, or a crash, sees the old file or the new one, never half."""
    if isinstance(content, BaseModel):
        text = content.model_dump_json(indent=1)
    else:
        text = json.dumps(content, indent=1, ensure_ascii=False)
    write_text(path, text + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step, private to its owner; raises InputError if it cannot."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file in one step, private to its owner; raises InputError if it cannot."""
    with explained(path):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:  # whatever it was: nothing half-written stays
            Path(temporary).unlink(missing_ok=True)
            raise


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into one line for the user."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(reason, file=error.filename or path) from error
