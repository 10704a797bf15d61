"""The search space: from an Optuna trial to one configuration, and to what is launched for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from autotune import conditions
from autotune.effects import arguments, variables
from autotune.errors import InputError
from autotune.experiment import Experiment, Parameter
from autotune.records import PEAK, SINGLE, Value
from autotune.space_change import SpaceChange, space_changes
from autotune.templates import Arg, canonical_text, expand

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

__all__ = ["LaunchSettings", "PriorHint", "Space", "SpaceChange", "space_changes"]

T = TypeVar("T")

ENGINE = "engine"
"""The parameter that chooses the engine."""


@dataclass(frozen=True)
class LaunchSettings:
    """What is launched, before the place (port, host, folder) is known."""

    engine: str
    command: tuple[str, ...]
    args: dict[str, Arg] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PriorHint:
    """What the file expects of one parameter.

    `effects`: objective -> value -> factor on the tokens per second.
    """

    prefer: Value
    weight: float
    effects: dict[str, dict[Value, float]]


class Space:
    """The parameters of an experiment, what they mean for a launch, and which may be combined."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self._parameters = experiment.parameters
        self._order = conditions.in_order(experiment.parameters)

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Every parameter for Optuna, each after those that its `when` refers to."""
        return {name: _distribution(self._parameters[name]) for name in self._order}

    @cached_property
    def known_good(self) -> tuple[dict[str, Value], ...]:
        """The known good configurations, completed with defaults, without repeats.

        The first is the baseline. A file that lists none has one: every default.
        """
        entries = self.experiment.known_good or ({},)
        whole = [conditions.completed(self._parameters, self._order, entry) for entry in entries]
        first_of_each: dict[str, dict[str, Value]] = {}
        for params in whole:
            first_of_each.setdefault(self.key(params), params)
        return tuple(first_of_each.values())

    @property
    def priors(self) -> dict[str, PriorHint]:
        """Expectations of the parameters that have any."""
        given = {name: p for name, p in self._parameters.items() if p.prior is not None}
        return {name: _prior_hint(parameter) for name, parameter in given.items()}

    def suggest(self, trial: Trial) -> dict[str, Value]:
        """Ask the trial for the parameters that apply; each decides which others do."""
        chosen: dict[str, Value] = {}
        for name in self._order:
            if conditions.applies(self._parameters[name], chosen):
                chosen[name] = _suggested(trial, name, self.distributions[name])
        return self.active(chosen)

    def active(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """The parameters that apply, in the file's order. Others, and unknown ones, are dropped."""
        return conditions.active(self._parameters, self._order, params)

    def completed(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """`params` with each missing parameter that applies at its default.

        The default is the `prior`, else the first choice, else the smallest value.
        """
        return conditions.completed(self._parameters, self._order, params)

    def forbidden(self, params: Mapping[str, Value]) -> str | None:
        """Why this combination is never launched, or None."""
        return conditions.forbidden(self.experiment.forbid, self.active(params))

    def invalid(self, params: Mapping[str, Value]) -> str | None:
        """Why `params` is no configuration of this space, or None."""
        return conditions.invalid(self.experiment, params)

    def size(self) -> int | None:
        """How many configurations there are, `forbid` left aside; None if they are countless."""
        return conditions.configurations(self._parameters)

    def settings(self, params: Mapping[str, Value]) -> LaunchSettings:
        """What is launched for `params`.

        Raises:
            InputError: a flag would be given twice, or an environment variable is not set.
        """
        return self._settings(params, expand)

    def key(self, params: Mapping[str, Value]) -> str:
        """Digest of the canonical launch: configurations that launch alike have one key.

        Environment variables of the host are not expanded in it: no secret enters the digest.
        """
        settings = self._settings(params, str)
        args = {f: canonical_text(v) for f, v in settings.args.items() if v not in (None, False)}
        parts = [settings.engine, settings.command, args, settings.env]
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _settings(
        self, params: Mapping[str, Value], expanded: Callable[[str], str]
    ) -> LaunchSettings:
        active = self.active(params)
        engine = str(active.get(ENGINE, next(iter(self.experiment.engines))))
        section = self.experiment.engines[engine]  # type: ignore[index]  # checked at load
        args: dict[str, Arg] = dict(section.args)
        env: dict[str, str] = dict(section.env)
        for name, value in active.items():
            _merge(args, arguments(self._parameters[name], value, active), "flag")
            _merge(env, variables(self._parameters[name], value, active), "variable")
        return LaunchSettings(
            engine=engine,
            command=tuple(expanded(word) for word in section.command),
            args={flag: _expanded(value, expanded) for flag, value in args.items()},
            env={variable: expanded(value) for variable, value in env.items()},
        )


def _merge(whole: dict[str, T], part: Iterable[tuple[str, T]], kind: str) -> None:
    for name, value in part:
        if name in whole:
            raise InputError(f"the {kind} {name} would be given twice: keep one")
        whole[name] = value


def _expanded(value: Arg, expanded: Callable[[str], str]) -> Arg:
    if isinstance(value, list):
        return [expanded(part) if isinstance(part, str) else part for part in value]
    return expanded(value) if isinstance(value, str) else value


def _distribution(parameter: Parameter) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if parameter.choices is not None:
        return CategoricalDistribution(parameter.choices)
    high = conditions.highest(parameter)
    if parameter.int_ is not None:
        span = parameter.int_
        return IntDistribution(span.low, int(high), log=span.log, step=span.step)
    assert parameter.float_ is not None, "a parameter has choices, an int or a float"
    spread = parameter.float_
    return FloatDistribution(spread.low, high, log=spread.log, step=spread.step)


def _suggested(trial: Trial, name: str, distribution: BaseDistribution) -> Value:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match distribution:
        case CategoricalDistribution(choices=choices):
            return trial.suggest_categorical(name, choices)
        case IntDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_int(name, low, high, step=step, log=log)
        case FloatDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_float(name, low, high, step=step, log=log)
    raise AssertionError(f"{distribution} is none that _distribution makes")


def _prior_hint(parameter: Parameter) -> PriorHint:
    prior = parameter.prior
    assert prior is not None
    values = {conditions.spelled(v): v for v in conditions.representatives(parameter)}
    tables = {SINGLE: prior.single, PEAK: prior.peak}
    effects = {
        objective: {values[text]: factor for text, factor in table.items()}
        for objective, table in tables.items()
        if table
    }
    return PriorHint(prior.default, prior.weight, effects)
