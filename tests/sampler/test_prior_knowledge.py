"""What the sampler was told before its first trial: used at first, and dropped when it is wrong."""

from __future__ import annotations

import numpy as np
import optuna
import pytest
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, create_trial

from autotune.sampler import ParetoSampler, Prior, capacity, surrogate
from autotune.sampler.credibility import credibility
from autotune.sampler.encoding import Array, axis
from autotune.sampler.expectation import expectation
from autotune.sampler.memo import Memo
from autotune.sampler.observations import Data, Observation, Scale, tabulate
from autotune.sampler.proposal import _parents
from autotune.sampler.space import KnownSpace
from tests.sampler.conftest import NewStudy, failed, launch

SPACE = KnownSpace(
    {
        "x": optuna.distributions.FloatDistribution(0, 1),
        "y": optuna.distributions.FloatDistribution(0, 1),
        "c": optuna.distributions.CategoricalDistribution(["v0", "v1"]),
    }
)
ORDINALS = np.zeros(3, dtype=bool)


def drawn(count: int, seed: int) -> Array:
    """Codes of ``SPACE``."""
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.random((count, 2)), rng.integers(0, 2, count)])


def table(*seen: Observation) -> Data:
    return tabulate(seen, SPACE, [StudyDirection.MAXIMIZE] * 2)


def test_a_preferred_value_is_tried_first(new_study: NewStudy) -> None:
    sampler = ParetoSampler(seed=0, priors={"c": Prior("v7", weight=1.0)})
    study = new_study(sampler)
    study.optimize(lambda t: (t.suggest_float("x", 1, 2), len(choice(t))), n_trials=1)
    assert study.trials[0].params["c"] == "v7"


def choice(trial: optuna.Trial) -> str:
    return str(trial.suggest_categorical("c", [f"v{i}" for i in range(10)]))


def values_tried(new_study: NewStudy, prior: Prior) -> list[str]:
    """Of a parameter that changes nothing, after four values without the prior's."""
    study = new_study(ParetoSampler(seed=0, priors={"c": prior}))
    for value in ("v0", "v1", "v2", "v3"):
        study.enqueue_trial({"c": value, "x": 1.5})
    study.optimize(lambda t: (t.suggest_float("x", 1, 2), 1.0 + 0 * len(choice(t))), n_trials=11)
    return [trial.params["c"] for trial in study.trials[4:]]


@pytest.mark.parametrize("prior", [Prior("v8"), Prior(effects={"0": {"v8": 2.0}})])
def test_what_is_expected_is_tried_first_and_unlearned(new_study: NewStudy, prior: Prior) -> None:
    tried = values_tried(new_study, prior)
    assert tried[0] == "v8"
    assert tried.count("v8") <= 3


def test_a_preferred_value_is_expected_to_be_good_in_either_direction() -> None:
    one = axis("c", optuna.distributions.CategoricalDistribution(["v0", "v1"]))
    scales = [Scale(1.0, log=True), Scale(-1.0, log=True), Scale(1.0, log=False)]
    told = expectation({"c": Prior("v1")}, [one], ["0", "1", "2"], scales)
    gains = told.effects(np.array([[0.0], [1.0]]))[:, :, 0]
    assert (gains[:, 0] == 0).all()
    assert gains[0, 1] == pytest.approx(gains[1, 1])
    assert gains[0, 1] > 0
    assert gains[2, 1] == 0


def test_foreign_trials_help_and_never_count_as_measured(new_study: NewStudy) -> None:
    other = new_study(optuna.samplers.RandomSampler(seed=1))
    other.optimize(launch, n_trials=40)
    sampler = ParetoSampler(seed=0, history=[(trial, 0.5) for trial in other.trials])
    study = new_study(sampler)
    study.optimize(launch, n_trials=10)
    assert not any(t.params.get("backend") == "fa3" for t in study.trials[1:])
    best = max(t.values[0] for t in study.trials)
    assert best >= max(t.values[0] for t in other.trials if not failed(t)) * 0.9


def fitted(there: Array, weight: float = 0.3) -> surrogate.Surrogate:
    """Of 8 own launches, of gain 2 x, and 20 of another study with these gains."""
    codes = np.concatenate([drawn(20, 0), drawn(8, 1)])
    gains = np.concatenate([there, 2 * drawn(8, 1)[:, 0]])
    study = np.repeat([1, 0], [20, 8])
    unknown = np.full(28, np.nan)
    return surrogate.fit(codes, gains, unknown, ORDINALS, study=study, given=np.array([weight]))


def likeness(model: surrogate.Surrogate) -> float:
    return float(np.mean([process.likeness[0] for process in model.processes]))


def test_how_much_another_study_resembles_this_one_is_learned() -> None:
    same = 2 * drawn(20, 0)[:, 0]
    opposite = 2 * drawn(20, 0)[:, 1] - same
    assert likeness(fitted(same)) > 0.6
    assert likeness(fitted(opposite)) < 0.3


def test_another_machine_may_be_faster_throughout() -> None:
    there, new = 2 * drawn(20, 0)[:, 0], drawn(50, 2)
    mean, _ = fitted(there).predict(new)
    shifted, _ = fitted(there + 1.5).predict(new)
    np.testing.assert_allclose(shifted, mean, atol=0.1)
    np.testing.assert_allclose(shifted, 2 * new[:, 0], atol=0.3)


def test_the_front_of_a_slower_machine_still_has_mutants() -> None:
    slow, fast, faster = drawn(3, 0)
    data = table(
        Observation(fast, (90.0, 90.0), weight=0.5),
        Observation(faster, (100.0, 100.0), weight=0.5),
        Observation(slow, (1.0, 1.0)),
    )
    np.testing.assert_array_equal(_parents(data), [fast, faster, slow])


def test_studies_of_equal_weight_are_told_apart() -> None:
    codes = drawn(3, 0)
    seen = [
        Observation(codes[i], (1.0, 1.0), weight=0.5, study=name) for i, name in enumerate("ba")
    ]
    data = table(*seen, Observation(codes[2], (1.0, 1.0)))
    assert data.study.tolist() == [2, 1, 0]
    assert data.given.tolist() == [0.5, 0.5]


def launches(culprit: int, count: int, seed: int, weight: float) -> list[Observation]:
    """They crash where c has the value of that index."""
    return [
        Observation(code, None, "unsupported", weight=weight)
        if code[2] == culprit
        else Observation(code, (1.0, 1.0), weight=weight)
        for code in drawn(count, seed)
    ]


def test_another_studys_failures_are_believed_as_far_as_they_foretell_ours() -> None:
    def believed(culprit: int) -> Array:
        data = table(*launches(culprit, 20, 0, weight=0.3), *launches(1, 6, 1, weight=1.0))
        return credibility(data, SPACE.axes, Memo())

    assert believed(1)[:20].min() > 0.8
    assert believed(0)[:20].max() < 0.05
    assert (believed(0)[20:] == 1).all()


def test_a_launch_of_no_weight_moves_no_boundary() -> None:
    codes = drawn(40, 3)
    failing = codes[:, 0] > 0.6
    weight = np.ones(40)
    wrong = np.concatenate([failing, np.ones(10, dtype=bool)])
    beside = np.concatenate([codes, drawn(10, 4) * [0.3, 1, 1]])
    ignored = capacity.fit(beside, wrong, np.append(weight, np.zeros(10)), ORDINALS, Memo())
    without = capacity.fit(codes, failing, weight, ORDINALS, Memo())
    new = drawn(30, 5)
    np.testing.assert_allclose(ignored.probability(new), without.probability(new), atol=1e-6)


def opposite(trial: FrozenTrial) -> FrozenTrial:
    """It worked where the launch failed, and else it ran out of memory."""
    works = failed(trial)
    return create_trial(
        params=trial.params,
        distributions=trial.distributions,
        values=[10.0, 10.0] if works else [0.0, 0.0],
        constraints={"failed": 0.0 if works else 1.0},
        user_attrs={} if works else {"failure_kind": "out_of_memory"},
    )


def test_an_unrelated_study_does_not_make_launches_fail(new_study: NewStudy) -> None:
    other = new_study(optuna.samplers.RandomSampler(seed=1))
    other.optimize(launch, n_trials=30)
    history = [(opposite(trial), 0.9) for trial in other.trials]
    study = new_study(ParetoSampler(seed=0, history=history))
    study.optimize(launch, n_trials=20)
    assert sum(failed(trial) for trial in study.trials[10:]) <= 3
