"""A run as it is read back from disk, whole or not.

Everything that reads a run (`show`, `report`, `explain`, `export`, `compare`) reads only the
JSON and YAML files, so that a run can be copied, archived, and looked at while it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from autotune.errors import InputError
from autotune.foreign_json import foreign_json
from autotune.front import Point, baseline_of, front_of, points_of
from autotune.records import Outcome
from autotune.rundir import FORMAT, RunDir, explained


@dataclass(frozen=True, eq=False)
class Run:
    """A run as read from disk at one moment; it may still be growing. Equal to itself only.

    `experiment` is the experiment file as plain data, `machine`, `status` and `summary` the
    JSON of the same names, each empty if it is not there (yet). `problems` says in one line
    each what could not be read.
    """

    path: Path
    name: str
    experiment: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]
    baseline: int | None
    machine: Mapping[str, Any]
    status: Mapping[str, Any]
    summary: Mapping[str, Any]
    unfinished: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()
    points: tuple[Point, ...] = field(default=())

    @property
    def simulated(self) -> bool:
        """Whether its figures are those of simulated servers."""
        return any(outcome.simulated for outcome in self.outcomes)

    @property
    def front(self) -> tuple[int, ...]:
        """Numbers of the front's trials, from the fastest single stream to the highest peak."""
        return tuple(point.number for point in front_of(self.points))

    @property
    def live(self) -> bool:
        """Whether the driver that writes this run still lives on this host."""
        pid = self.status.get("pid")
        return isinstance(pid, int) and Path(f"/proc/{pid}").exists()

    @property
    def finished(self) -> bool:
        """Whether its last search came to its own end, confirmation included."""
        ended = self.summary.get("finished") is True and not self.status.get("running")
        return ended and not self.live

    def outcome(self, number: int) -> Outcome:
        """The outcome of one trial; an unknown number is an InputError that names the known."""
        if number in self._by_number:
            return self._by_number[number]
        numbers = sorted(self._by_number)
        known = ", ".join(map(str, numbers)) or "none yet"
        if len(numbers) > 12:
            known = f"{len(numbers)} from {numbers[0]} to {numbers[-1]}"
        raise InputError(f"no trial {number} with an outcome; there is: {known}", file=self.path)

    def point(self, number: int) -> Point | None:
        """The pooled figures of a trial; None if it could not be measured."""
        return self._points_by_number.get(number)

    @cached_property
    def _by_number(self) -> Mapping[int, Outcome]:
        return {outcome.number: outcome for outcome in self.outcomes}

    @cached_property
    def _points_by_number(self) -> Mapping[int, Point]:
        return {point.number: point for point in self.points}


def read_run(path: Path) -> Run:
    """Read a run, whole or not: finished, interrupted, or being written at this moment.

    Raises InputError, in one line, if the path is not a run or a newer autotune wrote it.
    """
    place = RunDir(path)
    with explained(path):
        _require_run(place)
        problems: list[str] = []
        experiment = _read_experiment(place.experiment_yaml, problems)
        machine = read_object(place.machine_json, problems)
        status = read_object(place.status_json, problems)
        summary = read_object(place.summary_json, problems)
        outcomes, unfinished = _read_trials(place, problems)
    return Run(
        path=path,
        name=str(experiment.get("name") or path.resolve().name),
        experiment=experiment,
        outcomes=outcomes,
        baseline=first.number if (first := baseline_of(outcomes)) else None,
        machine=machine,
        status=status,
        summary=summary,
        unfinished=unfinished,
        problems=tuple(problems),
        points=points_of(outcomes),
    )


def _require_run(place: RunDir) -> None:
    if not place.path.is_dir():
        wrong = "is a file" if place.path.exists() else "does not exist"
        raise InputError(f"{wrong}; a run is a directory such as runs/NAME", file=place.path)
    if not any(file.exists() for file in (place.run_json, place.experiment_yaml, place.trials)):
        raise InputError(
            "is not a run: it has no run.json, experiment.yaml or trials/; "
            "`autotune search SPACE.yaml` writes one",
            file=place.path,
        )
    refuse_newer(place)


def refuse_newer(place: RunDir) -> None:
    """Raise InputError if a newer autotune wrote the run, in a format that this one misreads."""
    written = read_object(place.run_json).get("format", FORMAT)
    if not isinstance(written, int) or written > FORMAT:
        raise InputError(
            f"was written by a newer autotune (format {written}, this one reads {FORMAT}); "
            "upgrade autotune to read it",
            file=place.path,
        )


def _read_experiment(path: Path, problems: list[str]) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problems.append(f"{path.name}: not readable: {_first_line(error)}")
        return {}
    return content if isinstance(content, dict) else {}


def read_object(path: Path, problems: list[str] | None = None) -> Mapping[str, Any]:
    """A JSON object; empty if it is not there or cannot be read, which is added to `problems`."""
    if not path.exists():
        return {}
    try:
        content = foreign_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        if problems is not None:
            problems.append(f"{path.name}: not readable: {_first_line(error)}")
        return {}
    return content if isinstance(content, dict) else {}


def _read_trials(place: RunDir, problems: list[str]) -> tuple[tuple[Outcome, ...], tuple[int, ...]]:
    """All outcomes by number, and the numbers of the trials that have none (yet)."""
    outcomes: list[Outcome] = []
    unfinished: list[int] = []
    folders = sorted(place.trials.iterdir()) if place.trials.is_dir() else []
    for folder in folders:
        if not (folder.name.isdigit() and folder.is_dir()):
            continue
        outcome = _read_outcome(folder / "outcome.json", problems)
        if outcome is None or outcome.state == "running":
            unfinished.append(int(folder.name))
        if outcome is not None:
            outcomes.append(outcome)
    return tuple(sorted(outcomes, key=lambda outcome: outcome.number)), tuple(unfinished)


def _read_outcome(path: Path, problems: list[str]) -> Outcome | None:
    try:
        return Outcome.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in wrong["loc"]) or "file"
        problems.append(f"{path.parent.name}/{path.name}: not readable: {place}: {wrong['msg']}")
        return None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
