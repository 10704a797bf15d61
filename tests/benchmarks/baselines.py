"""The samplers compared, each built for one seed, and the one-at-a-time baseline."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler

from tests.benchmarks.landscapes.base import Landscape, random_value

Build = Callable[[int, Landscape, int], BaseSampler]


@dataclass(frozen=True)
class Contender:
    """``build(seed, landscape, trials)``; ``flat`` asks for inactive parameters too."""

    build: Build
    flat: bool = False
    slow: bool = False


class OneAtATime(BaseSampler):
    """Changes one random parameter of a random member of the front, or starts at random."""

    def __init__(self, seed: int, landscape: Landscape) -> None:
        self._rng = np.random.default_rng([seed, 31])
        self._landscape = landscape

    def infer_relative_search_space(
        self, study: optuna.Study, trial: optuna.trial.FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return dict(self._landscape.distributions)

    def sample_relative(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        fresh = {n: random_value(d, self._rng) for n, d in search_space.items()}
        front = study.best_trials
        if not front:
            return fresh
        parent = front[int(self._rng.integers(len(front)))].params
        child = fresh | parent
        name = list(parent)[int(self._rng.integers(len(parent)))]
        child[name] = fresh[name]
        return child

    def sample_independent(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        return random_value(param_distribution, self._rng)


def _pareto(seed: int, landscape: Landscape, trials: int) -> BaseSampler:
    from autotune.sampler import ParetoSampler

    return ParetoSampler(seed=seed)


def _pareto_hint(seed: int, landscape: Landscape, trials: int) -> BaseSampler:
    from autotune.sampler import ParetoSampler

    return ParetoSampler(seed=seed, space=landscape)


def _tpe_multivariate(seed: int, landscape: Landscape, trials: int) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optuna.samplers.TPESampler(seed=seed, multivariate=True)


CONTENDERS: dict[str, Contender] = {
    "pareto": Contender(_pareto),
    "pareto-hint": Contender(_pareto_hint),
    "tpe": Contender(lambda seed, *_: optuna.samplers.TPESampler(seed=seed)),
    "tpe-multivariate": Contender(_tpe_multivariate, flat=True),
    "gp": Contender(lambda seed, *_: optuna.samplers.GPSampler(seed=seed), flat=True, slow=True),
    "nsga2": Contender(lambda seed, *_: optuna.samplers.NSGAIISampler(seed=seed)),
    "one-at-a-time": Contender(lambda seed, landscape, _: OneAtATime(seed, landscape)),
    "random": Contender(lambda seed, *_: optuna.samplers.RandomSampler(seed=seed)),
}
