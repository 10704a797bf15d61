"""The ledger on a real SQLite storage: what is asked, what is told, what survives."""

from __future__ import annotations

from pathlib import Path

import optuna
from optuna.trial import TrialState

from autotune.experiment import Experiment
from autotune.ledger import Asked, Ledger
from autotune.optuna_study import copy_study, open_study
from autotune.records import OBJECTIVES, Failure, FailureKind, Outcome, Phase
from autotune.sampler import ParetoSampler
from autotune.space import Space
from autotune.storage import open_storage
from tests.runs import bare_outcome


def experiment(backends: tuple[str, ...] = ("triton", "fa3")) -> Experiment:
    return Experiment.model_validate(
        {
            "name": "ledger",
            "engines": {"sglang": {"command": ["python", "-m", "sglang.launch_server"]}},
            "parameters": {
                "backend": {"choices": list(backends), "flag": "attention-backend"},
                "steps": {"int": {"low": 0, "high": 2}, "flag": "speculative-num-steps"},
            },
            "forbid": [{"if": "backend == 'fa3' and steps == 2", "because": "no kernel"}],
            "known_good": [{"backend": "triton", "steps": 0}, {"backend": "triton", "steps": 1}],
        }
    )


def new_ledger(folder: Path, of: Experiment | None = None) -> Ledger:
    space = Space(of or experiment())
    storage = open_storage(f"sqlite:///{folder / 'study.db'}")
    return Ledger(open_study(storage, "ledger", ParetoSampler(0, space=space)), space)


def outcome_of(asked: Asked, single: float | None, cause: str = "no image") -> Outcome:
    failure = Failure(kind=FailureKind.UNSUPPORTED, phase=Phase.LOAD, cause=cause)
    return bare_outcome(
        asked.number,
        asked.key,
        state="infeasible" if single is None else "ok",
        params=asked.params,
        failure=failure if single is None else None,
        values=None
        if single is None
        else dict(zip(OBJECTIVES, (single, single * 10), strict=True)),
    )


def ask(ledger: Ledger) -> Asked:
    asked = ledger.ask()
    assert asked is not None
    return asked


def test_known_good_configurations_are_asked_first_and_in_order(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    ledger.plan({"backend": "triton", "steps": 0}, "baseline")
    ledger.plan({"backend": "triton", "steps": 1}, "known_good")
    first, second = ask(ledger), ask(ledger)
    assert (first.number, first.purpose, first.params["steps"]) == (0, "baseline", 0)
    assert (second.number, second.purpose, second.params["steps"]) == (1, "known_good", 1)


def test_a_failed_launch_is_complete_with_a_constraint_and_the_worst_values(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    ledger.tell(outcome_of(ask(ledger), 80.0))
    ledger.tell(outcome_of(ask(ledger), 60.0))
    failed = ask(ledger)
    ledger.tell(outcome_of(failed, None))
    trial = ledger.study.trials[failed.number]
    assert trial.state is TrialState.COMPLETE
    assert trial.values == [60.0, 600.0]
    assert trial.constraints["infeasible"] > 0
    assert trial.system_attrs["constraints"] == [1.0]  # what optuna-dashboard draws
    assert trial.user_attrs["failure_cause"] == "no image"
    assert failed.number not in [best.number for best in ledger.study.best_trials]


def test_every_configuration_is_launched_once_and_forbidden_ones_never(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    launched = []
    while (asked := ledger.ask()) is not None:
        launched.append((asked.params["backend"], asked.params["steps"]))
        ledger.tell(outcome_of(asked, None if asked.params["backend"] == "fa3" else 50.0))
    allowed = {("triton", 0), ("triton", 1), ("triton", 2), ("fa3", 0), ("fa3", 1)}
    assert sorted(launched) == sorted(allowed)


def test_a_random_sampler_is_told_of_duplicates_and_forbidden_ones(tmp_path: Path) -> None:
    space = Space(experiment())
    storage = open_storage(f"sqlite:///{tmp_path / 'study.db'}")
    sampler = optuna.samplers.RandomSampler(seed=1)
    ledger = Ledger(open_study(storage, "random", sampler), space)
    launched = []
    while (asked := ledger.ask()) is not None:
        launched.append(asked.key)
        ledger.tell(outcome_of(asked, 50.0))
    assert len(launched) == len(set(launched)) == 5
    told = [trial.user_attrs for trial in ledger.study.trials]
    assert any("duplicate_of" in attrs for attrs in told)
    assert any(attrs.get("forbidden") == "no kernel" for attrs in told)


def test_a_lost_trial_teaches_nothing_and_can_be_planned_again(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    ledger.plan({"backend": "triton", "steps": 0}, "baseline")
    asked = ask(ledger)
    ledger.tell(outcome_of(asked, None).model_copy(update={"state": "lost", "failure": None}))
    assert ledger.study.trials[0].state is TrialState.FAIL
    ledger.plan(asked.params, asked.purpose)
    again = ask(ledger)
    assert (again.purpose, again.key, again.number) == ("baseline", asked.key, 1)


def test_a_finalist_is_launched_again_although_its_configuration_is_known(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    asked = ask(ledger)
    ledger.tell(outcome_of(asked, 70.0))
    ledger.plan(asked.params, "finalist", repeats=asked.number)
    again = ask(ledger)
    assert (again.purpose, again.repeats) == ("finalist", asked.number)


def test_what_was_planned_is_not_launched_if_it_is_forbidden_by_now(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    for purpose in ("drift", "finalist", "baseline"):
        ledger.plan({"backend": "fa3", "steps": 2}, purpose, 0)
    assert ask(ledger).params != {"backend": "fa3", "steps": 2}
    assert ledger.planned == 0


def test_new_choices_continue_with_the_same_numbers(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    numbers = [ask(ledger).number for _ in range(3)]
    for trial, number in zip(list(ledger._open.values()), numbers, strict=True):
        ledger.tell(outcome_of(Asked(number, trial.params, str(number), "search", None), 50.0))
    wider = Space(experiment(("triton", "fa3", "flashinfer")))
    copied = copy_study(ledger.study, "ledger@2", wider, ParetoSampler(0, space=wider))
    assert [trial.number for trial in copied.trials] == numbers
    assert [trial.params for trial in copied.trials] == [t.params for t in ledger.study.trials]
    proposed = [copied.ask() for _ in range(6)]
    assert "flashinfer" in {
        trial.suggest_categorical("backend", ["triton", "fa3", "flashinfer"]) for trial in proposed
    }


def test_a_removed_choice_keeps_the_trial_numbers(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    ledger.plan({"backend": "fa3", "steps": 0}, "baseline")
    ledger.tell(outcome_of(ask(ledger), None))
    ledger.tell(outcome_of(ask(ledger), 50.0))
    narrower = Space(experiment(("triton", "flashinfer")))
    copied = copy_study(ledger.study, "ledger@2", narrower, ParetoSampler(0, space=narrower))
    assert copied.trials[0].state is TrialState.FAIL
    assert len(copied.trials) == 2
