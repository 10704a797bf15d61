"""A small launch space shared by the sampler's tests: conditional, and failing for a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import optuna
import pytest
from optuna.study import Study

from autotune.sampler import ParetoSampler

Objective = Callable[[optuna.Trial], tuple[float, float]]
NewStudy = Callable[..., Study]


@pytest.fixture(autouse=True)
def quiet_optuna() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


@pytest.fixture
def new_study() -> NewStudy:
    """A study that maximises two objectives with a ParetoSampler, unless told otherwise."""

    def build(sampler: Any = None, **options: Any) -> Study:
        options.setdefault("directions", ["maximize", "maximize"])
        return optuna.create_study(sampler=sampler or ParetoSampler(seed=0), **options)

    return build


def launch(trial: optuna.Trial) -> tuple[float, float]:
    """Two engines, one with a backend that crashes and speculation that trades the objectives."""
    engine = trial.suggest_categorical("engine", ["a", "b"])
    batch = trial.suggest_int("batch", 8, 512, log=True)
    fraction = trial.suggest_float("fraction", 0.5, 0.95, step=0.05)
    single, peak = 50.0 * fraction, 10.0 * batch**0.5
    if engine == "a":
        backend = trial.suggest_categorical("backend", ["fa3", "triton", "flashinfer"])
        steps = trial.suggest_int("steps", 0, 4)
        if backend == "fa3":
            return fail(trial, "unsupported")
        single *= 1 + 0.3 * steps + (0.2 if backend == "flashinfer" else 0.0)
        peak /= 1 + 0.1 * steps
    if batch * fraction > 300:
        return fail(trial, "out_of_memory")
    trial.set_constraint("failed", 0.0)
    return single, peak


def fail(trial: optuna.Trial, kind: str) -> tuple[float, float]:
    trial.set_user_attr("failure_kind", kind)
    trial.set_constraint("failed", 1.0)
    return 0.0, 0.0


def failed(trial: optuna.trial.FrozenTrial) -> bool:
    return any(value > 0 for value in trial.constraints.values())
