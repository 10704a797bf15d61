"""Which file `workload.prompts` means, and the copy that a run keeps of it.

The copy is what trials and `replay` read: the user's own file may be edited while a study runs, and
the folder that it came in, a submitted job's for example, may be gone by the time of a replay.
Prompts are the same if they hold the same, whatever they are called.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import InputError
from autotune.experiment import SHIPPED, Experiment
from autotune.foreign_json import foreign_json
from autotune.prompts import prompt_bytes, read_prompts
from autotune.rundir import RunDir, write_bytes, write_json
from autotune.templates import expand


class NoPromptFile(InputError):
    """Nothing lies where the prompts could be."""


def prompt_file(written: str, file: Path) -> Path | None:
    """The absolute path of the prompts that the experiment file `file` names; None if shipped.

    `written` is its `workload.prompts`. Beside a run's experiment file lies the run's copy of the
    prompts: it is meant as long as the file names what the copy was made of. Elsewhere a relative
    path starts at the file's folder or, if it leads to nothing there, at the current directory.

    Raises:
        NoPromptFile: there is nothing at any of these places.
    """
    if written == SHIPPED:
        return None
    run = RunDir(file.parent)
    kept = _copy_of(written, run) if file.name == run.experiment_yaml.name else None
    if kept is not None:
        return kept
    named = Path(expand(written))
    places = list(dict.fromkeys(_absolute(file.parent / named, named)))
    for place in places:
        if not _is_missing(place):
            return place
    first, *others = places or [named]
    nor = "".join(f", nor is {other}" for other in others)
    raise NoPromptFile(f"{first} is not on this host{nor}", field="workload.prompts")


def with_readable_prompts(
    experiment: Experiment, file: Path, resumed: RunDir | None = None
) -> Experiment:
    """The same with the absolute path of its prompts, which are read now, not in a trial.

    Where they are gone, the copy that the run `resumed` made of them serves as well.

    Raises:
        InputError: they cannot be read, or a line is broken.
    """
    written = experiment.workload.prompts
    try:
        path = prompt_file(written, file)
    except NoPromptFile:
        path = _copy_of(written, resumed) if resumed is not None else None
        if path is None:
            raise
    if path is None:
        return experiment
    read_prompts(path)
    return experiment.with_prompts(path)


def refuse_other_prompts(experiment: Experiment, run: RunDir) -> None:
    """Raise InputError if the run keeps other prompts; `experiment` has the path of its own."""
    path = experiment.workload.prompts
    if path == SHIPPED or not run.prompts.exists():
        return
    if prompt_bytes(run.prompts) != prompt_bytes(Path(path)):
        raise InputError(
            f"holds other prompts than {path}: figures of the two would not compare. Undo what "
            "changed, or start another run, with --run-dir or with --fork",
            file=run.prompts,
        )


def with_kept_prompts(experiment: Experiment, run: RunDir, written: str) -> Experiment:
    """The same with the run's own copy of the prompts, made now if there is none.

    `experiment` has the path of the prompts, `written` is what the run's experiment file calls
    them. Only for a run that goes on with them: a copy stays for good.
    """
    path = experiment.workload.prompts
    if path == SHIPPED:
        return experiment
    if not run.prompts.exists():
        write_bytes(run.prompts, prompt_bytes(Path(path)))
    if _copied(run) != written:
        write_json(run.run_json, {**_document(run), "prompts": written})
    return experiment.with_prompts(run.prompts)


@dataclass(frozen=True)
class Prompts:
    """Prompts by what they hold; `digest` is None if they are shipped or cannot be read."""

    written: str
    digest: str | None

    def __str__(self) -> str:
        return self.written if self.digest is None else f"{self.written} ({self.digest[:8]})"

    def are(self, other: Prompts) -> bool:
        """Whether both hold the same or, where that cannot be known, are called the same."""
        if self.digest is None or other.digest is None:
            return self.written == other.written
        return self.digest == other.digest


def prompts_named(written: str, file: Path) -> Prompts:
    """The prompts that the experiment file `file` names."""
    path = None
    with contextlib.suppress(InputError):
        path = prompt_file(written, file)
    return Prompts(written, _digest(path))


def prompts_of(run: RunDir, written: str) -> Prompts:
    """What a run is measured with: its copy, or what its experiment file names."""
    if written != SHIPPED and run.prompts.exists():
        return Prompts(written, _digest(run.prompts))
    return prompts_named(written, run.experiment_yaml)


def _digest(path: Path | None) -> str | None:
    with contextlib.suppress(InputError):
        return None if path is None else hashlib.sha256(prompt_bytes(path)).hexdigest()
    return None


def _copy_of(written: str, run: RunDir) -> Path | None:
    """The run's copy, if it is one of what is called `written`."""
    if run.prompts.exists() and _copied(run) == written:
        return run.prompts.absolute()
    return None


def _copied(run: RunDir) -> object:
    """What the run's experiment file called the prompts as they were copied."""
    return _document(run).get("prompts")


def _document(run: RunDir) -> dict[str, object]:
    try:
        document = foreign_json(run.run_json.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _absolute(*paths: Path) -> Iterator[Path]:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # the current directory is gone
            yield path.absolute()


def _is_missing(path: Path) -> bool:
    """Whether nothing is there; what only cannot be looked at is there, and said so on reading."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
