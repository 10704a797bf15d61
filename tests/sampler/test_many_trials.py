"""A study of many trials: what an ask reads, models and remembers stays bounded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest
import threadpoolctl
from optuna.distributions import BaseDistribution
from optuna.study import StudyDirection

from autotune.sampler import ParetoSampler, importance, surrogate
from autotune.sampler.encoding import encode
from autotune.sampler.memo import Memo
from autotune.sampler.observations import Data, Observation, tabulate
from autotune.sampler.space import KnownSpace
from autotune.sampler.subset import MAX_POINTS, conditioned, settled
from tests.sampler.conftest import NewStudy, launch

SPACE = KnownSpace(
    {
        "x": optuna.distributions.FloatDistribution(0, 1),
        "y": optuna.distributions.FloatDistribution(0, 1),
    }
)


def data(count: int, foreign: int = 0) -> Data:
    """Launches at random; every tenth failed. The first ``foreign`` are of a faster machine."""
    rng = np.random.default_rng(0)
    rows = encode(SPACE.axes, [{"x": rng.random(), "y": rng.random()} for _ in range(count)])
    seen = [
        Observation(row, None, "crash") if i % 10 == 0 else Observation(row, tuple(row + 1))
        for i, row in enumerate(rows)
    ]
    for i in range(foreign):
        faster = None if seen[i].values is None else (9.0, 9.0)
        seen[i] = replace(seen[i], values=faster, weight=0.3)
    return tabulate(seen, SPACE, [StudyDirection.MAXIMIZE] * 2)


def test_few_launches_are_all_modelled() -> None:
    few = data(150)
    assert conditioned(few).tolist() == np.flatnonzero(few.ok).tolist()


def test_of_many_launches_the_front_and_the_latest_are_modelled() -> None:
    many = data(2000)
    chosen = conditioned(many)
    assert len(chosen) == MAX_POINTS
    assert many.ok[chosen].all() and (np.diff(chosen) > 0).all()
    best = max(np.flatnonzero(many.ok), key=lambda row: many.gains[row].sum())
    assert {int(best), 1999, 1998} <= set(chosen.tolist())
    assert (chosen < 1000).sum() > 20  # and some of the time before


def test_a_long_history_leaves_the_own_front_in_the_model() -> None:
    mixed = data(1000, foreign=700)
    chosen = conditioned(mixed)
    own = np.flatnonzero(mixed.ok & (mixed.study == 0))
    assert len(chosen) == MAX_POINTS and (np.diff(chosen) > 0).all()
    assert max(own, key=lambda row: mixed.gains[row].sum()) in chosen
    assert (mixed.study[chosen] > 0).sum() == MAX_POINTS // 4


def test_hyperparameters_are_fitted_anew_only_now_and_then() -> None:
    assert [settled(count) for count in (0, 7, 100)] == [0, 7, 100]
    decisive = [settled(count) for count in range(100, 2001)]
    assert decisive == sorted(decisive)
    assert len(set(decisive)) < 60
    assert all(one <= 100 + i <= 1.08 * one for i, one in enumerate(decisive))


def test_a_memo_tells_arrays_apart() -> None:
    memo, calls = Memo(), []

    def of(*values: float) -> float:
        array = np.array(values)
        return float(memo.of(lambda: calls.append(0) or array * 2, "twice", array)[0])  # type: ignore[func-returns-value]  # counts

    assert [of(1.0), of(2.0), of(1.0)] == [2.0, 4.0, 2.0]
    assert len(calls) == 2


class Counting:
    """A hint that counts how often it is asked."""

    distributions: dict[str, BaseDistribution] = dict(SPACE.distributions)  # noqa: RUF012  # constant
    asked = 0

    def active(self, params: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        return params

    def forbidden(self, params: dict[str, Any]) -> str | None:
        return None


def test_finished_trials_are_read_once(new_study: NewStudy) -> None:
    space = Counting()
    study = new_study(ParetoSampler(seed=0, space=space))
    for number in range(300):
        trial = optuna.trial.create_trial(
            params={"x": number / 300, "y": 0.5},
            distributions=dict(SPACE.distributions),
            state=optuna.trial.TrialState.FAIL,
        )
        study.add_trial(trial)
    asked = []
    for _ in range(3):
        before = space.asked
        study.ask().suggest_float("x", 0, 1)
        asked.append(space.asked - before)
    assert asked[0] - asked[2] > 250


@pytest.mark.parametrize("workers", [1, 5])
def test_a_new_sampler_proposes_what_one_that_remembers_does(
    new_study: NewStudy, workers: int
) -> None:
    study = new_study(ParetoSampler(seed=3))
    study.add_trials(working(130))
    for trial in [study.ask() for _ in range(workers)]:
        launch(trial)
    study.tell(trial, [40.0, 40.0])
    fresh = new_study(ParetoSampler(seed=3))
    fresh.add_trials(study.trials)
    for one in (study, fresh):
        launch(one.ask())
    assert study.trials[-1].params == fresh.trials[-1].params
    assert study.trials[-1].params != study.trials[-2].params


def working(count: int) -> list[optuna.trial.FrozenTrial]:
    other = optuna.create_study(
        directions=["maximize"] * 2, sampler=optuna.samplers.RandomSampler(seed=0)
    )
    while len(other.best_trials) == 0 or sum(ok(t) for t in other.trials) < count:
        other.optimize(launch, n_trials=10)
    return other.trials


def ok(trial: optuna.trial.FrozenTrial) -> bool:
    return not any(value > 0 for value in trial.constraints.values())


def test_importance_uses_one_thread_by_itself(
    new_study: NewStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def seen(*arguments: Any, **named: Any) -> surrogate.Surrogate:
        info = threadpoolctl.threadpool_info()
        threads.extend(one["num_threads"] for one in info if one["user_api"] == "blas")
        return fit(*arguments, **named)

    fit = surrogate.fit
    monkeypatch.setattr(surrogate, "fit", seen)
    study = new_study(optuna.samplers.RandomSampler(seed=0))
    study.optimize(launch, n_trials=30)
    with threadpoolctl.threadpool_limits(limits=2, user_api="blas"):
        importance(study)
    assert set(threads) == {1}
