"""What a sampler may be told before its first trial, right and wrong, drawn from the truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from autotune.sampler import ParetoSampler, Prior
from autotune.sampler.encoding import Axis, axis
from tests.benchmarks.baselines import CONTENDERS, Contender
from tests.benchmarks.bench_sampler import Job, Run
from tests.benchmarks.landscapes import make
from tests.benchmarks.landscapes.base import Config, Landscape, random_config
from tests.benchmarks.landscapes.simulated import Simulated
from tests.benchmarks.landscapes.synthetic import Synthetic

TOLD = 3  # parameters that something is said about
LISTABLE = 64  # values; of a parameter with more, a file can name the ends only
SAMPLE = 6_000  # random configurations from which effects are read
HISTORY = 20  # trials of the earlier study
WEIGHT = 0.32  # that `--from` gives to a study of another machine
EARLIER = 1_000  # added to the seed, for the earlier study

Effects = Mapping[Any, np.ndarray]  # value -> mean log gain per objective, against all values


@cache
def important(name: str) -> dict[str, Effects]:
    """Effects of the parameters that matter most, the first most, on the mean configuration."""
    landscape, rng = make(name), np.random.default_rng(17)
    drawn = [random_config(landscape, rng) for _ in range(SAMPLE)]
    truths = [(config, landscape.truth(config).values) for config in drawn]
    works = [(config, np.log(values)) for config, values in truths if values is not None]
    axes = [axis(name, one) for name, one in landscape.distributions.items()]
    told = {one.name: _effects(one, works) for one in axes if 2 <= one.levels <= LISTABLE}
    ranking = sorted(told, key=lambda name: -_strength(told[name]))
    return {name: told[name] for name in ranking[:TOLD]}


def _effects(one: Axis, works: Sequence[tuple[Config, np.ndarray]]) -> Effects:
    there = [(config[one.name], gain) for config, gain in works if one.name in config]
    mean = np.mean([gain for _, gain in there], axis=0)
    groups = {value: [gain for v, gain in there if v == value] for value in one.choices}
    return {value: np.mean(rows, axis=0) - mean for value, rows in groups.items() if rows}


def _strength(effects: Effects) -> float:
    return float(np.var(list(effects.values()), axis=0).sum())


def effects(landscape: Landscape, sign: float) -> dict[str, Prior]:
    """Expected ratios of the important parameters, of opposite effect for a ``sign`` of -1."""
    return {
        name: Prior(
            effects={
                str(i): {value: float(np.exp(sign * gain[i])) for value, gain in told.items()}
                for i in range(2)
            }
        )
        for name, told in important(landscape.name).items()
    }


def defaults(landscape: Landscape, sign: float) -> dict[str, Prior]:
    """The value that is best for both objectives together; the worst for a ``sign`` of -1."""
    return {
        name: Prior(prefer=max(told, key=lambda value: sign * float(told[value].sum())))
        for name, told in important(landscape.name).items()
    }


def elsewhere(landscape: Landscape, seed: int) -> list[tuple[FrozenTrial, float]]:
    """An earlier study of the same landscape on another machine."""
    assert isinstance(landscape, Synthetic | Simulated)
    return _earlier(landscape.elsewhere(seed), seed)


def unrelated(landscape: Landscape, seed: int) -> list[tuple[FrozenTrial, float]]:
    """An earlier study in which the same parameters did something else."""
    assert isinstance(landscape, Synthetic), "no other physics fits a simulated machine's space"
    return _earlier(landscape.unrelated(seed), seed)


def _earlier(landscape: Landscape, seed: int) -> list[tuple[FrozenTrial, float]]:
    job = Job(landscape.name, "pareto", "warm", 1, EARLIER + seed, HISTORY)
    study = Run(job, landscape, CONTENDERS["pareto"])
    study(best=1.0)
    return [(trial, WEIGHT) for trial in study.study.trials]


def _told(priors: Callable[[Landscape, float], dict[str, Prior]], sign: float) -> Contender:
    def build(seed: int, landscape: Landscape, trials: int) -> BaseSampler:
        return ParetoSampler(seed=seed, priors=priors(landscape, sign))

    return Contender(build)


def _seeded(history: Callable[[Landscape, int], list[tuple[FrozenTrial, float]]]) -> Contender:
    def build(seed: int, landscape: Landscape, trials: int) -> BaseSampler:
        return ParetoSampler(seed=seed, history=history(landscape, seed))

    return Contender(build)


INFORMED: dict[str, Contender] = {
    "pareto": CONTENDERS["pareto"],
    "tpe": CONTENDERS["tpe"],
    "right effects": _told(effects, 1.0),
    "wrong effects": _told(effects, -1.0),
    "right defaults": _told(defaults, 1.0),
    "wrong defaults": _told(defaults, -1.0),
    "other machine": _seeded(elsewhere),
    "unrelated study": _seeded(unrelated),
}
