"""The parts: gradients, expectations, culprits and boundaries against what is known to be true."""

from __future__ import annotations

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from autotune.sampler import capacity, feasibility, importance, surrogate
from autotune.sampler.acquisition import (
    Prediction,
    expected_improvement,
    goodness,
    pareto_mask,
    yardstick,
)
from autotune.sampler.encoding import axis
from autotune.sampler.kernel import Additive, Kernel, Product, distances
from autotune.sampler.memo import Memo
from autotune.sampler.space import KnownSpace, keys, learn_space
from tests.sampler.conftest import NewStudy, launch

MIXED = np.array([False, True, False, False])


def points(rng: np.random.Generator, count: int = 12) -> surrogate.Points:
    codes = rng.random((count, 4))
    codes[:, 1] = rng.integers(0, 3, count)
    codes[3, 1:3] = np.nan
    study = np.where(np.arange(count) < 3, 1, np.where(np.arange(count) < 5, 2, 0))
    given, trend = np.array([0.5, 0.8]), rng.normal(size=(count, 2))
    return surrogate.Points(codes, rng.normal(size=count), np.zeros(count), study, given, trend)


@pytest.mark.parametrize("kernel", surrogate.KERNELS)
def test_the_likelihoods_gradient_is_its_slope(kernel: Kernel) -> None:
    from scipy.optimize import approx_fprime

    data = points(np.random.default_rng(0))
    gaps = distances(data.codes, data.codes, MIXED).dense
    likelihood = surrogate.Likelihood(kernel, gaps, data)
    at = likelihood.prior()[0] + np.random.default_rng(1).normal(size=len(likelihood.prior()[0]))
    numeric = approx_fprime(at, lambda x: likelihood(x)[0], 1e-6)
    np.testing.assert_allclose(likelihood(at)[1], numeric, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kernel", [Additive(), Product()])
def test_kernels_stay_positive_definite_with_inactive_parameters(kernel: Kernel) -> None:
    rng = np.random.default_rng(2)
    codes = rng.random((60, 4))
    codes[:, 1] = rng.integers(0, 7, 60)
    codes[rng.random((60, 4)) < 0.3] = np.nan
    theta = kernel.prior(4)[0]
    covariance = kernel.cross(distances(codes, codes, MIXED), theta)
    assert np.linalg.eigvalsh(covariance).min() > -1e-8


@pytest.mark.parametrize("kernel", [Additive(), Product()])
def test_a_covariance_is_the_same_with_and_without_its_gradient(kernel: Kernel) -> None:
    data = points(np.random.default_rng(9))
    gaps = distances(data.codes, data.codes, MIXED)
    theta = kernel.prior(4)[0] + np.random.default_rng(1).normal(size=len(kernel.prior(4)[0]))
    np.testing.assert_allclose(kernel.cross(gaps, theta), kernel.forward(gaps.dense, theta)[0])


def test_gaps_know_inactive_parameters() -> None:
    left = np.array([[0.2, 1.0], [np.nan, np.nan]])
    right = np.array([[0.6, 1.0], [0.6, 2.0], [np.nan, np.nan]])
    gaps = distances(left, right, np.array([False, True])).dense
    np.testing.assert_allclose(gaps[0], [[0.4, 0.4, 0.3], [0.1, 0.1, 0.0]])
    np.testing.assert_allclose(gaps[1], [[0.0, 2.0, 2**0.5], [2**0.5, 2**0.5, 0.0]])


def test_a_surrogate_finds_a_multiplicative_effect_again() -> None:
    rng = np.random.default_rng(3)
    codes = np.stack([rng.random(30), rng.integers(0, 3, 30), rng.random(30), rng.random(30)], 1)
    gains = codes[:, 0] + 0.5 * (codes[:, 1] == 2) + 0.02 * rng.normal(size=30)
    model = surrogate.fit(codes, gains, np.full(30, np.nan), MIXED)
    new = np.array([[0.9, 2, 0.5, 0.5], [0.1, 0, 0.5, 0.5]])
    mean, sd = model.predict(new)
    np.testing.assert_allclose(mean, [1.4, 0.1], atol=0.12)
    assert sd.max() < 0.2


def test_believing_a_running_trial_leaves_nothing_to_learn_there() -> None:
    rng = np.random.default_rng(4)
    data = points(rng)
    model = surrogate.fit(data.codes, data.target, np.full(12, np.nan), MIXED)
    there = np.array([[0.5, 1.0, 0.5, 0.5]])
    before, after = model.predict(there), model.believing(there).predict(there)
    assert after[0] == pytest.approx(before[0], abs=0.2)
    assert after[1] < before[1]


def test_believing_several_at_once_is_believing_them_one_after_another() -> None:
    rng = np.random.default_rng(10)
    data = points(rng)
    told = {"study": data.study, "given": data.given, "trend": data.trend}
    model = surrogate.fit(data.codes, data.target, np.full(12, np.nan), MIXED, **told)
    running, elsewhere = points(rng, 5), points(rng, 6)
    one_by_one = model
    for at in range(5):
        one_by_one = one_by_one.believing(running.codes[at : at + 1], running.trend[at : at + 1])
    together = model.believing(running.codes, running.trend)
    for mine, theirs in zip(one_by_one.processes, together.processes, strict=True):
        np.testing.assert_allclose(mine.inverse, theirs.inverse, atol=1e-6)
        rows = distances(elsewhere.codes, theirs.points.codes, MIXED), elsewhere.trend
        np.testing.assert_allclose(mine.predict(*rows)[1], theirs.predict(*rows)[1], atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 60])
def test_the_front_is_what_nothing_beats(count: int) -> None:
    points = np.random.default_rng(count).integers(0, 6, size=(count, 2)).astype(float)
    beaten = [any((p >= q).all() and (p > q).any() for p in points) for q in points]
    assert pareto_mask(points).tolist() == [not one for one in beaten]


@pytest.mark.parametrize("log", [True, False])
def test_expected_improvement_agrees_with_simulation(log: bool) -> None:
    rng = np.random.default_rng(5)
    observed = rng.normal(size=(8, 2)) * 0.3
    by = yardstick(observed, [log, log])
    front = goodness(observed, by)
    mean, sd = np.array([[0.3, 0.2]]), np.array([[0.3, 0.2]])
    samples = goodness(mean + sd * rng.normal(size=(4000, 2)), by)
    simulated = np.mean([area(np.vstack([front, s])) for s in samples]) - area(front)
    exact = expected_improvement(Prediction(mean, sd), front[pareto_mask(front)], by)[0]
    assert exact == pytest.approx(simulated, rel=0.1)


def area(points: np.ndarray) -> float:
    from tests.benchmarks.landscapes.base import hypervolume

    return hypervolume([(float(a), float(b)) for a, b in points])


def test_more_than_two_objectives_prefer_what_dominates() -> None:
    observed = np.random.default_rng(6).normal(size=(6, 3))
    by = yardstick(observed, [True] * 3)
    means = np.stack([observed.max(axis=0) + 0.5, observed.min(axis=0) - 0.5])
    gain = expected_improvement(Prediction(means, np.full((2, 3), 0.1)), goodness(observed, by), by)
    assert gain[0] > 0.01
    assert gain[1] == pytest.approx(0.0, abs=1e-3)


AXES = [axis(n, CategoricalDistribution([f"{n}{i}" for i in range(4)])) for n in "abc"]


def learned(codes: list[list[float]], ok: list[bool], kind: str) -> feasibility.Feasibility:
    kinds = ["" if good else kind for good in ok]
    return feasibility.learn(AXES, np.array(codes), np.array(ok), kinds, np.ones(len(ok)), Memo())


def test_a_value_that_crashed_three_times_and_never_worked_is_guilty() -> None:
    codes = [[0, 0, 0], [0, 1, 1], [0, 2, 2], [1, 0, 1], [1, 1, 2], [2, 2, 0]]
    model = learned(codes, [False] * 3 + [True] * 3, "unsupported")
    guilty, fine = model.probability(np.array([[0.0, 3, 3], [1, 0, 0]]))
    assert guilty < 0.15
    assert fine > 0.7


def test_a_success_acquits_and_leaves_the_other_suspect() -> None:
    model = learned([[0, 0, 0], [0, 1, 1], [1, 1, 0]], [False, True, True], "unsupported")
    suspect, acquitted = model.probability(np.array([[1.0, 0, 1], [0, 1, 0]]))
    assert suspect < acquitted - 0.2


def test_a_pair_is_found_where_both_values_worked_alone() -> None:
    codes = [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 0], [1, 0, 1], [0, 2, 2], [2, 0, 2]]
    model = learned(codes, [False] * 3 + [True] * 4, "bad_flags")
    together, alone = model.probability(np.array([[0.0, 0, 3], [0, 1, 3]]))
    assert together < 0.3
    assert alone > together + 0.3


def test_one_unsupported_crash_accuses_values_more_than_one_unknown_crash() -> None:
    codes, ok = [[0, 0, 0], [1, 0, 0], [1, 1, 1]], [False, True, True]
    there = np.array([[0.0, 1, 1]])
    by_cause = learned(codes, ok, "unsupported").probability(there)
    assert by_cause <= learned(codes, ok, "unknown").probability(there) + 1e-9


def test_memory_has_a_boundary_through_the_ordinals() -> None:
    rng = np.random.default_rng(7)
    codes = rng.random((40, 3))
    failed = codes[:, 0] + 2 * codes[:, 1] > 1.6
    model = capacity.fit(codes, failed, np.ones(40), np.zeros(3, dtype=bool), Memo())
    fresh = rng.random((300, 3))
    right = (model.probability(fresh) < 0.5) == (fresh[:, 0] + 2 * fresh[:, 1] > 1.6)
    assert right.mean() > 0.9


def test_conditions_are_learned_from_values_not_from_siblings(new_study: NewStudy) -> None:
    study = new_study(optuna.samplers.RandomSampler(seed=2))
    study.optimize(launch, n_trials=6)
    conditions = learn_space(study.trials, None).conditions or {}
    assert {name: condition.parent for name, condition in conditions.items()} == {
        "backend": "engine",
        "steps": "engine",
    }


def test_equal_configurations_have_equal_keys() -> None:
    space = KnownSpace(
        {
            "graph": CategoricalDistribution([True, False]),
            "size": IntDistribution(1, 1000, log=True),
            "rate": FloatDistribution(0.0, 1.0, step=0.1),
        }
    )
    drawn = space.snap(np.random.default_rng(8).random((50, 3)))
    again = space.encode(space.decode(drawn))
    assert keys(again) == keys(drawn)


def test_every_value_is_encoded_and_decoded_to_itself() -> None:
    for distribution, values in (
        (IntDistribution(8, 512, log=True), [8, 9, 100, 512]),
        (IntDistribution(0, 100, step=5), [0, 55, 100]),
        (FloatDistribution(0.5, 0.95, step=0.05), [0.5, 0.7, 0.95]),
        (CategoricalDistribution([256, 64, 128]), [256, 64, 128]),
        (CategoricalDistribution([None, 8, "8", True]), [None, 8, "8", True]),
    ):
        one = axis("p", distribution)
        decoded = [one.decode(one.encode(value)) for value in values]
        assert decoded == pytest.approx(values) if not one.categorical else decoded == values


def test_importance_names_what_mattered_and_nothing_else(new_study: NewStudy) -> None:
    study = new_study(optuna.samplers.RandomSampler(seed=0))
    study.optimize(with_a_dummy, n_trials=40)
    found = importance(study)
    single, peak = ({e.parameter for e in found[name]} for name in ("0", "1"))
    assert {"steps", "fraction"} <= single
    assert "batch" in peak
    assert "dummy" not in single | peak
    assert all(e.low > 1 and e.low <= e.ratio <= e.high for e in found["0"])


def test_importance_says_nothing_from_few_launches(new_study: NewStudy) -> None:
    study = new_study(optuna.samplers.RandomSampler(seed=0))
    study.optimize(launch, n_trials=6)
    assert importance(study) == {"0": [], "1": []}


def test_importance_says_nothing_about_noise(new_study: NewStudy) -> None:
    study = new_study(optuna.samplers.RandomSampler(seed=0))
    rng = np.random.default_rng(0)
    study.optimize(lambda t: (noise(t, rng), noise(t, rng)), n_trials=30)
    assert importance(study) == {"0": [], "1": []}


def noise(trial: optuna.Trial, rng: np.random.Generator) -> float:
    trial.suggest_categorical("c", ["x", "y"])
    trial.suggest_int("i", 0, 9)
    return float(np.exp(rng.normal()))


def with_a_dummy(trial: optuna.Trial) -> tuple[float, float]:
    trial.suggest_categorical("dummy", ["x", "y"])
    return launch(trial)
