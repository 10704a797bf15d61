"""The sampler in Optuna studies of every kind it claims to serve."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState, create_trial

from autotune.sampler import ParetoSampler, Prior
from tests.benchmarks.landscapes.base import hypervolume
from tests.sampler.conftest import NewStudy, failed, launch


class TwoSpellings:
    """A hint: ``graph_bs`` means nothing without ``graph``, and "auto" is spelled "triton" too."""

    distributions: dict[str, BaseDistribution] = {  # noqa: RUF012  # a constant of the test
        "graph": CategoricalDistribution([True, False]),
        "graph_bs": CategoricalDistribution([8, 16, 32]),
        "backend": CategoricalDistribution(["auto", "triton", "fa3"]),
    }

    def active(self, params: dict[str, Any]) -> dict[str, Any]:
        kept = {n: v for n, v in params.items() if n != "graph_bs" or params.get("graph")}
        if kept.get("backend") == "auto":
            kept["backend"] = "triton"
        return kept

    def forbidden(self, params: dict[str, Any]) -> str | None:
        return "no image" if params.get("backend") == "fa3" and params.get("graph") else None


def test_beats_random_sampling_on_the_same_budget(new_study: NewStudy) -> None:
    def best(sampler: optuna.samplers.BaseSampler) -> float:
        study = new_study(sampler)
        study.optimize(launch, n_trials=25)
        return hypervolume([(t.values[0], t.values[1]) for t in study.best_trials])

    ours = sum(best(ParetoSampler(seed=seed)) for seed in range(3))
    random = sum(best(optuna.samplers.RandomSampler(seed=seed)) for seed in range(3))
    assert ours > 1.2 * random


def test_a_backend_that_always_crashes_is_given_up_after_three_crashes(
    new_study: NewStudy,
) -> None:
    late = 0
    for seed in range(3):
        study = new_study(ParetoSampler(seed=seed))
        study.optimize(launch, n_trials=30)
        assert sum(t.params.get("backend") == "fa3" for t in study.trials) <= 3
        late += sum(failed(t) for t in study.trials[10:])
    assert late <= 0.25 * 3 * 20


def test_trials_in_state_fail_teach_as_much_as_constraints(new_study: NewStudy) -> None:
    def crashing(trial: optuna.Trial) -> tuple[float, float]:
        values = launch(trial)
        if values == (0.0, 0.0):
            raise RuntimeError
        return values

    study = new_study()
    study.optimize(crashing, n_trials=30, catch=RuntimeError)
    assert sum(t.params.get("backend") == "fa3" for t in study.trials) <= 3


def test_lost_trials_teach_nothing(new_study: NewStudy) -> None:
    plain, with_lost = new_study(), new_study()
    for _ in range(6):
        trial = with_lost.ask()
        trial.suggest_categorical("choice", ["x", "y"])
        trial.set_user_attr("lost", True)
        with_lost.tell(trial, state=TrialState.FAIL)
    trial = with_lost.ask()
    trial.suggest_categorical("choice", ["x", "y"])
    with_lost.tell(trial, [1.0, 1.0])
    from autotune.sampler.observations import collect
    from autotune.sampler.space import learn_space

    space = learn_space(with_lost.trials, None)
    assert len(collect(with_lost.trials, space, ["0", "1"])) == 1
    assert collect(plain.trials, space, ["0", "1"]) == []


def test_the_same_seed_gives_the_same_study(new_study: NewStudy) -> None:
    def params(seed: int) -> list[dict[str, Any]]:
        study = new_study(ParetoSampler(seed=seed))
        study.optimize(launch, n_trials=12)
        return [t.params for t in study.trials]

    assert params(3) == params(3)
    assert params(3) != params(4)


def test_a_resumed_study_goes_on_as_if_it_had_not_stopped(
    new_study: NewStudy, tmp_path: Path
) -> None:
    whole = new_study(ParetoSampler(seed=5))
    whole.optimize(launch, n_trials=12)
    storage = f"sqlite:///{tmp_path}/study.db"
    new_study(ParetoSampler(seed=5), storage=storage, study_name="s").optimize(launch, n_trials=7)
    resumed = optuna.load_study(study_name="s", storage=storage, sampler=ParetoSampler(seed=5))
    resumed.optimize(launch, n_trials=5)
    assert [t.params for t in resumed.trials] == [t.params for t in whole.trials]


def test_enqueued_parameters_are_kept_and_the_rest_is_proposed(new_study: NewStudy) -> None:
    study = new_study()
    study.optimize(launch, n_trials=8)
    study.enqueue_trial({"engine": "a", "backend": "triton"})
    study.optimize(launch, n_trials=1)
    params = study.trials[-1].params
    assert (params["engine"], params["backend"]) == ("a", "triton")
    assert set(params) == {"engine", "batch", "fraction", "backend", "steps"}


def ask_levels(study: optuna.Study) -> list[int]:
    """A trial that goes on running, of ten ordinals."""
    trial = study.ask()
    return [trial.suggest_int(f"x{i}", 0, 7) for i in range(10)]


def changes(one: list[int], other: list[int]) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))


def test_before_any_result_a_known_good_launch_is_varied_and_a_random_one_is_not(
    new_study: NewStudy,
) -> None:
    for seed in range(5):
        study = new_study(ParetoSampler(seed=seed))
        study.enqueue_trial({f"x{i}": 3 for i in range(10)})
        known = ask_levels(study)
        assert all(1 <= changes(known, ask_levels(study)) <= 4 for _ in range(3))
        study = new_study(ParetoSampler(seed=seed))
        drawn = ask_levels(study)
        assert changes(drawn, ask_levels(study)) > 4


def test_nothing_is_measured_twice_by_parallel_workers(new_study: NewStudy) -> None:
    study = new_study(ParetoSampler(seed=1, space=TwoSpellings()))
    seen = []
    for _ in range(3):  # all allowed: triton with 3 sizes, triton and fa3 without graphs
        running = [study.ask() for _ in range(2 if len(seen) < 4 else 1)]
        for trial in running:
            params = suggest(trial)
            seen.append(tuple(sorted(TwoSpellings().active(params).items())))
        for trial in running:
            study.tell(trial, [1.0, 2.0])
    assert len(set(seen)) == len(seen) == 5
    assert not any(TwoSpellings().forbidden(dict(config)) for config in seen)
    assert study.sampler.exhausted(study)  # type: ignore[attr-defined]  # a ParetoSampler


def suggest(trial: optuna.Trial) -> dict[str, Any]:
    names = TwoSpellings.distributions
    return {
        n: trial.suggest_categorical(n, d.choices)
        for n, d in names.items()
        if isinstance(d, CategoricalDistribution)
    }


class OneLaunchPerGraph(TwoSpellings):
    def key(self, params: dict[str, Any]) -> str:
        return str(params["graph"])


def test_the_hints_own_key_decides_what_is_the_same_launch(new_study: NewStudy) -> None:
    study = new_study(ParetoSampler(seed=1, space=OneLaunchPerGraph()))
    study.optimize(lambda t: (1.0, float(suggest(t)["graph"])), n_trials=2)
    assert {t.params["graph"] for t in study.trials} == {True, False}
    assert study.sampler.exhausted(study)  # type: ignore[attr-defined]  # a ParetoSampler


def test_an_exhausted_space_says_so_and_still_answers(new_study: NewStudy) -> None:
    sampler = ParetoSampler(seed=0)
    study = new_study(sampler)

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        return float(trial.suggest_int("x", 0, 3)), float(trial.suggest_categorical("c", [1, 2]))

    assert not sampler.exhausted(study)
    study.optimize(objective, n_trials=8)
    assert len({tuple(t.params.items()) for t in study.trials}) == 8
    assert sampler.exhausted(study)
    study.optimize(objective, n_trials=2)
    assert len(study.trials) == 10


def test_a_continuous_space_is_never_exhausted(new_study: NewStudy) -> None:
    study = new_study()
    study.optimize(lambda t: (t.suggest_float("x", 0, 1), 1.0), n_trials=3)
    assert not study.sampler.exhausted(study)  # type: ignore[attr-defined]  # a ParetoSampler


@pytest.mark.parametrize("directions", [["minimize"], ["maximize"] * 3, ["maximize", "minimize"]])
def test_any_number_of_objectives_in_any_direction(
    new_study: NewStudy, directions: list[str]
) -> None:
    study = new_study(directions=directions)

    def objective(trial: optuna.Trial) -> list[float]:
        x = trial.suggest_float("x", 0.0, 10.0)
        y = trial.suggest_int("y", 0, 10, step=2)
        return [(x - 1) ** 2 + y + 0.1, x + y + 1.0, 3.0 - y][: len(directions)]

    study.optimize(objective, n_trials=14)
    if len(directions) == 1:
        assert study.best_value < 0.3


def test_values_that_are_not_finite_count_as_failures(new_study: NewStudy) -> None:
    study = new_study()
    for value in (math.inf, -math.inf, 1.0, 2.0, 3.0, 4.0):
        trial = study.ask()
        trial.suggest_float("x", 0, 1)
        study.tell(trial, [value, 1.0])
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    with pytest.warns(UserWarning, match="nan"):
        study.tell(trial, [math.nan, 1.0])
    assert study.trials[-1].state == TrialState.FAIL
    study.optimize(lambda t: (t.suggest_float("x", 0, 1), 1.0), n_trials=2)


def test_a_missed_limit_is_avoided_and_its_speed_is_learned_from(new_study: NewStudy) -> None:
    def limited(trial: optuna.Trial) -> tuple[float, float]:
        x = trial.suggest_float("x", 0, 1)
        slow = trial.suggest_categorical("mode", ["fast", "slow"]) == "slow"
        trial.set_constraint("limit", 0.2 if slow else 0.0)
        if slow:
            trial.set_user_attr("failure_kind", "limit_violated")
        return 1.1 - abs(x - 0.3), 1.0

    study = new_study(ParetoSampler(seed=0))
    for x in (0.0, 0.5, 0.7, 0.9, 1.0):
        study.enqueue_trial({"x": x, "mode": "slow"})
    study.enqueue_trial({"x": 1.0, "mode": "fast"})
    study.optimize(limited, n_trials=9)
    assert not any(failed(t) for t in study.trials[6:])
    assert all(abs(t.params["x"] - 0.3) < 0.1 for t in study.trials[7:])


def test_negative_objectives_are_not_logged_and_work(new_study: NewStudy) -> None:
    study = new_study(directions=["maximize"])
    study.optimize(lambda t: -((t.suggest_float("x", -5, 5) - 2.0) ** 2), n_trials=20)
    assert study.best_value > -0.1


def test_a_single_valued_space_and_an_empty_one_do_not_crash(new_study: NewStudy) -> None:
    single = new_study()
    single.optimize(
        lambda t: (t.suggest_categorical("c", [1]), t.suggest_int("i", 3, 3)), n_trials=3
    )
    assert single.sampler.exhausted(single)  # type: ignore[attr-defined]  # a ParetoSampler
    empty = new_study()
    empty.optimize(lambda t: (1.0, 2.0), n_trials=3)
    assert len(empty.trials) == 3


def test_another_samplers_trials_are_learned_from(new_study: NewStudy) -> None:
    study = new_study(optuna.samplers.RandomSampler(seed=0))
    study.optimize(launch, n_trials=30)
    study.sampler = ParetoSampler(seed=0)
    study.optimize(launch, n_trials=8)
    assert sum(failed(t) for t in study.trials[30:]) <= 1


def test_a_changed_range_is_followed(new_study: NewStudy) -> None:
    study = new_study()
    study.optimize(lambda t: (t.suggest_int("x", 0, 5), 1.0), n_trials=4)
    study.optimize(lambda t: (t.suggest_int("x", 10, 20), 1.0), n_trials=4)
    assert all(10 <= t.params["x"] <= 20 for t in study.trials[4:])


def test_choices_equal_in_python_are_kept_apart(new_study: NewStudy) -> None:
    study = new_study()
    choices = [True, 1, None, "1"]
    study.optimize(
        lambda t: (1.0 + choices.index(t.suggest_categorical("c", choices)), 1.0), n_trials=6
    )
    assert len(study.trials) == 6


def test_priors_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="probability"):
        Prior("x", weight=2.0)
    with pytest.raises(ValueError, match="above 0"):
        Prior(effects={"0": {"x": 0.0}})
    with pytest.raises(ValueError, match="history"):
        ParetoSampler(history=[(create_trial(value=1.0), 0.0)])


def test_the_end_of_a_budget_undoes_changes_of_the_front(new_study: NewStudy) -> None:
    study = new_study(ParetoSampler(seed=0, budget=20))
    study.enqueue_trial(
        {"engine": "a", "backend": "triton", "steps": 0, "batch": 32, "fraction": 0.5}
    )
    study.optimize(launch, n_trials=20)
    first, last = study.trials[0].params, study.trials[19].params
    front = optuna.create_study(directions=["maximize"] * 2)
    front.add_trials(study.trials[:19])
    changed = [{n for n in last if last[n] != t.params.get(n)} for t in front.best_trials]
    assert any(
        names and all(last[n] == first[n] for n in names)
        for names in changed
        if len(names) == 1 or names == {"engine", "backend", "steps"}
    )


def test_importing_needs_neither_scipy_nor_torch() -> None:
    code = "import sys, autotune.sampler; print({'scipy', 'sklearn', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_hint_distributions_are_used_before_any_trial(new_study: NewStudy) -> None:
    study = new_study(ParetoSampler(seed=2, space=TwoSpellings()))
    trial = study.ask()
    assert suggest(trial).keys() == TwoSpellings.distributions.keys()
    kinds = (IntDistribution, FloatDistribution)
    assert not any(isinstance(d, kinds) for d in trial.distributions.values())
