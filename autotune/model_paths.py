"""Whether the models that an experiment names are on this host, before a trial is spent on it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.experiment import Experiment
from autotune.foreign_json import foreign_json
from autotune.templates import expand

_NAMES = re.compile(r"(^|[-_])(model|tokenizer|draft)([-_](path|name))?$|^served-model$")
# What these start sees other files than this host's, or another host's.
_ELSEWHERE = {"docker", "podman", "nerdctl", "apptainer", "singularity", "enroot", "ssh", "srun"}


def missing_models(experiment: Experiment) -> tuple[str, ...]:
    """`engines.sglang.args.model-path: /models/Kimi-K2.5` for each local path that is not here.

    Only absolute paths can be looked for: a name on a hub, and what a container or another
    host is to find, is left to the engine.
    """
    if any(_runs_elsewhere(section.command) for section in experiment.engines.values()):
        return ()
    found = dict(_named_paths(experiment))
    return tuple(f"{where}: {path}" for where, path in found.items() if not Path(path).exists())


def _runs_elsewhere(command: tuple[str, ...]) -> bool:
    return any(Path(word).name in _ELSEWHERE for word in command)


def _named_paths(experiment: Experiment) -> Iterator[tuple[str, str]]:
    for engine, section in experiment.engines.items():
        for index, word in enumerate(section.command[1:], 1):
            yield from _path(f"engines.{engine}.command[{index}]", "model", word)
        for name, value in section.args.items():
            yield from _path(f"engines.{engine}.args.{name}", name, value)
    for name, parameter in experiment.parameters.items():
        for value in parameter.choices or ():
            yield from _path(f"parameters.{name}", parameter.flag or "", value)
        for flag, template in parameter.args.items():
            yield from _path(f"parameters.{name}.args.{flag}", flag, template)


def _path(where: str, name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The path in a value of an argument that names a model; JSON may hold one inside."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):
            for key, inner in foreign_json(value).items():
                yield from _path(f"{where}.{key}", key, inner)
    elif isinstance(value, str) and _NAMES.search(name):
        path = expand(value)
        if path.startswith("/") and "{" not in path:
            yield where, path
