"""No launch may get a flag or an environment variable from two places."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from autotune import conditions
from autotune.effects import arguments, deciding, variables
from autotune.experiment_errors import Problem
from autotune.records import Value
from autotune.yaml_lines import Where

if TYPE_CHECKING:
    from autotune.experiment import Experiment

Writer = tuple[Where, str | None, str]
"""What sets a flag or variable: its place, the parameter or None for an engine, which engine."""


def nothing_is_given_twice(experiment: Experiment) -> Iterator[Problem]:
    """Flags and variables that two places would set in one launch."""
    for (kind, name), writers in _writers(experiment).items():
        for first, second in itertools.combinations(writers, 2):
            if _can_meet(experiment, first, second):
                place = ".".join(str(part) for part in first[0])
                yield second[0], f"the {kind} {name} is given twice, also by {place}: keep one"
                break


def _writers(experiment: Experiment) -> dict[tuple[str, str], list[Writer]]:
    """(flag or variable, its name) -> everything that sets it."""
    writers: dict[tuple[str, str], list[Writer]] = {}

    def add(kind: str, name: str, where: Where, parameter: str | None, engine: str = "") -> None:
        writers.setdefault((kind, name), []).append((where, parameter, engine))

    for engine, section in experiment.engines.items():
        for flag in section.args:
            add("flag", flag, ("engines", engine, "args", flag), None, engine)
        for variable in section.env:
            add("variable", variable, ("engines", engine, "env", variable), None, engine)
    for name, parameter in experiment.parameters.items():
        where: Where = ("parameters", name)
        for key in ("flag", "flag_when_false"):
            if getattr(parameter, key) is not None:
                add("flag", getattr(parameter, key), (*where, key), name)
        for flag in parameter.args:
            add("flag", flag, (*where, "args", flag), name)
        variables = [parameter.env] if isinstance(parameter.env, str) else parameter.env or ()
        for variable in variables:
            add("variable", variable, (*where, "env", variable), name)
    return writers


def _can_meet(experiment: Experiment, first: Writer, second: Writer) -> bool:
    """Whether both can write in one launch."""
    if first[1] is None and second[1] is None:
        return first[2] == second[2]
    if first[1] == second[1]:
        return True
    wanted, texts = deciding(experiment.parameters, (first[1] or "", second[1] or "", "engine"))
    order = conditions.in_order(experiment.parameters)
    for values in conditions.combinations(experiment.parameters, wanted, texts):
        active = conditions.active(experiment.parameters, order, values)
        engine = active.get("engine", next(iter(experiment.engines)))
        if all(_writes(experiment, writer, active, engine) for writer in (first, second)):
            return True
    return False


def _writes(
    experiment: Experiment, writer: Writer, active: Mapping[str, Value], engine: Value
) -> bool:
    where, name, own_engine = writer
    if name is None:
        return engine == own_engine
    if name not in active:
        return False
    parameter, target = experiment.parameters[name], str(where[-1])
    if "env" in where:
        return target in dict(variables(parameter, active[name], active))
    flag = getattr(parameter, target) if target in ("flag", "flag_when_false") else target
    return dict(arguments(parameter, active[name], active)).get(flag) is not None
