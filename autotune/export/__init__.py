"""A chosen trial as something to take home: script, container, manifest, config file, JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.errors import InputError
from autotune.export.choice import PICKS, choose
from autotune.export.command import ServeCommand, serve_command
from autotune.export.config_file import config_file
from autotune.export.container import docker, kubernetes
from autotune.export.header import Header, header_of
from autotune.export.plain import as_json, shell
from autotune.records import Outcome
from autotune.run import Run

FORMATS: Mapping[str, Callable[[ServeCommand, Outcome, Header], str]] = {
    "shell": shell,
    "docker": docker,
    "k8s": kubernetes,
    "json": as_json,
    "config": config_file,
}


ELSEWHERE = ("docker", "k8s", "config")
"""Formats that start the engine itself on another machine, which no simulated trial ever did."""


@dataclass(frozen=True)
class Exported:
    """`text` is for standard output, `warnings` for standard error; `text` has them too."""

    text: str
    warnings: tuple[str, ...]


def export(run: Run, trial: int, format: str = "shell") -> Exported:
    """The launch of a trial (see `choose`) in one of FORMATS. No secret is ever in it.

    Raises:
        InputError: an unknown trial or format, or one of ELSEWHERE for a simulated trial.
    """
    if format not in FORMATS:
        raise InputError(
            f"unknown format {format!r}: one of {', '.join(FORMATS)}", field="--format"
        )
    outcome = run.outcome(trial)
    if outcome.simulated and format in ELSEWHERE:
        raise InputError(
            f"trial {trial} is simulated: only a real study can be exported as {format}; "
            "--format shell starts the simulated server",
            field="--format",
        )
    command = serve_command(run, outcome)
    header = header_of(run, outcome, command)
    return Exported(FORMATS[format](command, outcome, header), command.warnings)


def export_text(
    run: Run,
    pick: str | None,
    trial: int | None,
    best: str | None,
    where: str | None,
    format: str,
) -> tuple[str, tuple[str, ...]]:
    """Choose and export: the text and its warnings."""
    exported = export(run, choose(run, pick=pick, trial=trial, best=best, where=where), format)
    return exported.text, exported.warnings


__all__ = ["ELSEWHERE", "FORMATS", "PICKS", "Exported", "choose", "export", "export_text"]
