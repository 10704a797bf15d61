"""The storage that reads from memory: what it says is what the database holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from autotune.sole_writer import SoleWriterStorage
from autotune.storage import open_storage


def told(trial: FrozenTrial) -> tuple[Any, ...]:
    """What must be the same in both; times differ by the microseconds between two clocks."""
    return (
        trial.number,
        trial._trial_id,
        trial.state,
        trial.values,
        trial.params,
        trial.distributions,
        trial.user_attrs,
        trial.system_attrs,
        trial.intermediate_values,
        trial.datetime_start is None,
        trial.datetime_complete is None,
    )


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'study.db'}"


def new_study(url: str) -> optuna.Study:
    storage = SoleWriterStorage(open_storage(url))
    return optuna.create_study(
        storage=storage, study_name="s", directions=["maximize", "maximize"], load_if_exists=True
    )


def all_kinds_of_trials(study: optuna.Study) -> None:
    study.enqueue_trial({"backend": "triton", "steps": 2}, user_attrs={"purpose": "baseline"})
    study.enqueue_trial({"backend": "fa3"})
    for number, state in enumerate((None, TrialState.FAIL, None, "running")):
        trial = study.ask()
        trial.suggest_categorical("backend", ["triton", "fa3", None])
        trial.suggest_int("steps", 0, 5)
        trial.suggest_float("fraction", 0.5, 0.9)
        trial.set_user_attr("key", f"k{number}")
        trial.set_constraint("infeasible", float(number))
        if state is None:
            study.tell(trial, [1.0 + number, 2.0])
        elif state is TrialState.FAIL:
            study.tell(trial, state=TrialState.FAIL)
    study.enqueue_trial({"steps": 5})
    study.add_trial(
        optuna.trial.create_trial(
            state=TrialState.RUNNING,
            params={"steps": 1},
            distributions={"steps": optuna.distributions.IntDistribution(0, 5)},
        )
    )


def test_memory_and_database_agree(url: str) -> None:
    study = new_study(url)
    all_kinds_of_trials(study)
    stored = RDBStorage(url).get_all_trials(study._study_id)
    assert [told(trial) for trial in study.trials] == [told(trial) for trial in stored]
    assert {trial.state for trial in stored} == {
        TrialState.COMPLETE,
        TrialState.FAIL,
        TrialState.RUNNING,
        TrialState.WAITING,
    }


def test_a_second_driver_finds_what_the_first_left(url: str) -> None:
    first = new_study(url)
    all_kinds_of_trials(first)
    second = new_study(url)
    assert [told(trial) for trial in second.trials] == [told(trial) for trial in first.trials]
    running = next(trial for trial in second.trials if trial.state is TrialState.RUNNING)
    taken = optuna.trial.Trial(second, running._trial_id)
    second.tell(taken, [3.0, 4.0])
    assert RDBStorage(url).get_trial(running._trial_id).values == [3.0, 4.0]


def test_an_answer_stays_as_it_was_given(url: str) -> None:
    study = new_study(url)
    trial = study.ask()
    before = study.get_trials(deepcopy=True)[0]
    held = study._storage.get_trial(trial._trial_id)
    trial.suggest_int("steps", 0, 5)
    trial.set_user_attr("key", "k")
    study.tell(trial, [1.0, 2.0])
    assert (before.params, before.user_attrs, before.state) == ({}, {}, TrialState.RUNNING)
    assert (held.params, held.user_attrs, held.state) == ({}, {}, TrialState.RUNNING)


def test_looking_asks_the_database_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    study = new_study(url)
    all_kinds_of_trials(study)

    def fail(*arguments: object, **named: object) -> None:
        raise AssertionError("the database was read")

    for name in ("get_all_trials", "get_trial"):
        monkeypatch.setattr(RDBStorage, name, fail)
    assert len(study.get_trials(deepcopy=False)) == 6
    assert study._storage.get_trial(study.trials[0]._trial_id).number == 0
    assert len(study.get_trials(states=(TrialState.WAITING,))) == 1
