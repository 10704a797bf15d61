"""Which directory a search writes, and that no other search does."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from itertools import count, takewhile
from pathlib import Path
from typing import TextIO

from autotune.errors import InputError
from autotune.run import read_object, refuse_newer
from autotune.rundir import RunDir, explained


def choose_run_dir(requested: Path | None, name: str, resume: bool) -> RunDir:
    """The run directory to use.

    Raises:
        InputError: it holds a run and `resume` is not set, or the other way round; it is a file,
            a folder that holds something else, or what a newer autotune wrote.
    """
    path = requested if requested is not None else Path("runs") / name
    with explained(path):  # a relative path in a current directory that is gone leads nowhere
        parts = path.absolute().parts
        exists = (path / "experiment.yaml").exists()
        is_file = path.exists() and not path.is_dir()
        others = [] if is_file or exists or not path.exists() else _others_in(path)
        refuse_newer(RunDir(path))
    if is_file:
        raise InputError(
            "is a file; a run directory is a folder of its own, such as runs/NAME",
            file=path,
            field="--run-dir",
        )
    if "working_dir_files" in parts:
        raise InputError(
            "lies in Ray's copy of the job's working directory, which Ray deletes some time; give "
            "an absolute path on a disk that stays",
            file=path,
            field="--run-dir",
        )
    if exists and not resume:
        raise InputError(
            "holds a run already; --resume continues it, --run-dir D starts another", file=path
        )
    if resume and not exists:
        raise InputError("holds no run to resume; leave --resume out to start one", file=path)
    if others:
        raise InputError(
            f"holds {' and '.join(others)}, and no run; give a folder that is new or empty",
            file=path,
            field="--run-dir",
        )
    return RunDir(path)


def _others_in(path: Path) -> list[str]:
    """What a folder holds that no search wrote: two names of it, and how many there are more.

    Hidden files and a file system's own `lost+found` are nobody's work: a mounted disk is empty.
    """
    if "format" in read_object(RunDir(path).run_json):  # a search died before its first trial
        return []
    names = sorted(file.name for file in path.iterdir() if not file.name.startswith("."))
    names = [name for name in names if name != "lost+found"]
    more = len(names) - 2
    return names if more <= 0 else [", ".join(names[:2]), f"{more} more"]


def choose_fork(old: RunDir, resume: bool) -> RunDir:
    """The directory of a new run beside the old one: `NAME-2`, or the next that is free.

    Raises:
        InputError: `resume` is set, which would continue a run.
    """
    numbered = (old.path.with_name(f"{old.path.name}-{number}") for number in count(2))
    forks = list(takewhile(Path.exists, numbered))
    if resume:
        raise InputError(
            "starts a new run, and --resume continues one: leave out one of them. The newest of "
            f"these runs is continued by --run-dir {forks[-1] if forks else old.path} --resume",
            field="--fork",
        )
    return RunDir(old.path.with_name(f"{old.path.name}-{len(forks) + 2}"))


@contextlib.contextmanager
def taken_back_if_refused(run: RunDir) -> Iterator[None]:
    """Remove a new run directory if the search is refused before its first trial.

    So the same command works once what was wrong has been put right. Only under `locked`: what
    another search has just begun looks new as well.
    """
    ours = {run.run_json, run.trials, run.lock}
    is_new = ours.issuperset(run.path.iterdir()) and not any(run.trials.iterdir())
    try:
        yield
    except InputError:
        if is_new and not any(run.trials.glob("*")):
            _remove(run)
        raise


def _remove(run: RunDir) -> None:
    """The lock last: until then nobody else writes what would be removed with the rest."""
    with contextlib.suppress(OSError):
        for file in run.path.iterdir():
            if file.is_dir():
                shutil.rmtree(file, ignore_errors=True)
            elif file != run.lock:
                file.unlink()
        run.lock.unlink()
        run.path.rmdir()


@contextlib.contextmanager
def locked(run: RunDir) -> Iterator[None]:
    """Hold the run directory, made if it is not there, against a second driver.

    The lock dies with this process.
    """
    with _locked_file(run) as file:
        run.create()  # once more: one that was refused may have taken its own back meanwhile
        file.truncate(0)
        # A node that reads the same text there sees this folder, not another of its name.
        file.write(f"{os.getpid()} {uuid.uuid4().hex}")
        file.flush()
        yield


def _locked_file(run: RunDir) -> TextIO:
    while True:
        run.create()
        with explained(run.path):
            file = run.lock.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            owner = file.read().partition(" ")[0] or "?"
            file.close()
            raise InputError(
                f"another `autotune search` (process {owner}) is writing this run; "
                "wait for it, or choose another --run-dir",
                file=run.path,
            ) from error
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), run.lock.stat()):
                return file
        file.close()  # a search that was refused took it away between these lines
