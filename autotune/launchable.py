"""What an experiment asks of its host before anything starts: variables that are set, and as many
GPUs as its servers use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from autotune.conditions import combinations, spelled
from autotune.effects import deciding
from autotune.engines.launch import flag_of, rendered
from autotune.engines.registry import engine_named
from autotune.errors import InputError
from autotune.experiment import Experiment
from autotune.experiment_errors import joined
from autotune.records import Value
from autotune.space import ENGINE, Space
from autotune.templates import expand
from autotune.yaml_lines import Data, Where, load_yaml

_MOST_NAMED = 3


@dataclass(frozen=True)
class Demand:
    """GPUs that the servers of some configurations use; `sizes` says what they come of."""

    of: str  # "tp = 8, pp = 2", or "engines.sglang" where no parameter decides
    gpus: int
    sizes: str  # "tp_size 8 x pp_size 2"


def refuse_unlaunchable(experiment: Experiment, path: Path) -> None:
    """Refuse an experiment, read from `path`, that has configurations which cannot be launched.

    Raises:
        InputError: a variable is not set, or a server needs more GPUs than a trial gets.
    """
    refuse_unset_variables(path)
    large = [d for d in _demands(experiment) if d.gpus > experiment.gpus_per_trial]
    if large:
        most, *others = sorted(large, key=lambda demand: -demand.gpus)
        named = [f", {d.of} {d.gpus} ({d.sizes})" for d in others[: _MOST_NAMED - 1]]
        more = f", and {left} more" if (left := len(others) - len(named)) else ""
        raise load_yaml(path).error(
            ("gpus_per_trial",),
            f"is {experiment.gpus_per_trial}, but {most.of} needs {most.gpus} GPUs ({most.sizes})"
            f"{''.join(named)}{more}: raise it, or leave out or forbid what does not fit",
        )


def refuse_unset_variables(path: Path) -> None:
    """Raise InputError, a line for each `${NAME}` of an experiment file that has no value."""
    document = load_yaml(path)
    data = document.data if isinstance(document.data, dict) else {}
    errors = [
        document.error(where, problem)
        for section in ("engines", "parameters", "workload")
        for where, text in _texts(data.get(section), (section,))
        if (problem := _unset(text)) is not None
    ]
    if errors:
        raise joined(errors)


def _texts(data: Data, where: Where) -> Iterator[tuple[Where, str]]:
    if isinstance(data, str):
        yield where, data
    elif isinstance(data, dict | list):
        items = data.items() if isinstance(data, dict) else enumerate(data)
        for key, value in items:
            yield from _texts(value, (*where, key))


def _unset(text: str) -> str | None:
    try:
        expand(text)
    except InputError as problem:
        return str(problem)
    return None


def idle_gpus(experiment: Experiment) -> list[str]:
    """At most one line: which configurations leave GPUs of their trial without work."""
    small = [d for d in _demands(experiment) if d.gpus < experiment.gpus_per_trial]
    if not small:
        return []
    named = "; ".join(f"{demand.of} uses {demand.gpus}" for demand in small[:_MOST_NAMED])
    more = f"; and {len(small) - _MOST_NAMED} more" if len(small) > _MOST_NAMED else ""
    return [
        f"of {experiment.gpus_per_trial} GPUs a trial, {named}{more} by its flags: the others "
        "stay idle"
    ]


def _demands(experiment: Experiment) -> Sequence[Demand]:
    """One for each combination of what decides how many GPUs are used; none without GPUs."""
    if experiment.gpus_per_trial == 0:
        return ()
    space, parameters = Space(experiment), experiment.parameters
    names, texts = deciding(parameters, [ENGINE, *_size_parameters(experiment)])
    found: dict[str, Demand] = {}
    for params in (*space.known_good, *combinations(parameters, names, texts)):
        whole = space.completed(params)
        if space.forbidden(whole) is None:
            said = [f"{name} = {spelled(v)}" for name, v in whole.items() if name in names]
            demand = _demand(space, whole, ", ".join(said))
            if demand is not None:
                found.setdefault(demand.of, demand)
    return tuple(found.values())


def _demand(space: Space, params: dict[str, Value], said: str) -> Demand | None:
    settings = space.settings(params)
    words = (*settings.command, *rendered(settings.args))
    sizes = engine_named(settings.engine).parallel_sizes(words)
    if sizes is None:
        return None
    factors = [f"{name} {size}" for name, size in sizes.items() if size != 1]
    return Demand(
        of=said or f"engines.{settings.engine}",
        gpus=prod(sizes.values()),
        sizes=" x ".join(factors),
    )


def _size_parameters(experiment: Experiment) -> Iterator[str]:
    """Parameters that give a flag which changes how many GPUs a server uses."""
    engines = [engine_named(name) for name in experiment.engines]
    for name, parameter in experiment.parameters.items():
        flags = (parameter.flag, parameter.flag_when_false, *parameter.args)
        given = [(flag_of(flag), "2") for flag in flags if flag is not None]
        if any(e.parallel_sizes(words) != e.parallel_sizes(()) for e in engines for words in given):
            yield name
