"""An Optuna storage for the only process that writes a study: it reads from memory.

Optuna's own cache reads every unfinished trial from the database again, at each look, because
another process may have written it; with 64 trials under way that is most of a driver's work.
Here each write goes to the database first and then to the copy in memory.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Container, Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.study._frozen import FrozenStudy
from optuna.study._study_direction import StudyDirection
from optuna.trial import FrozenTrial, TrialState


class SoleWriterStorage(BaseStorage):
    """`backend`, as long as nobody else writes the studies that are read here."""

    def __init__(self, backend: BaseStorage) -> None:
        self._backend = backend
        self._trials: dict[int, list[FrozenTrial]] = {}  # study id -> its trials by number
        self._by_id: dict[int, FrozenTrial] = {}

    # -- trials -----------------------------------------------------------------------------
    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        trials = self._loaded(study_id)
        trial_id = self._backend.create_new_trial(study_id, template_trial)
        trials.append(self._keep(self._backend.get_trial(trial_id)))
        return trial_id

    def set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
    ) -> None:
        self._backend.set_trial_param(trial_id, param_name, param_value_internal, distribution)
        trial = self._known(trial_id)
        value = distribution.to_external_repr(param_value_internal)
        # Whoever holds an earlier answer of `get_trial` keeps it as it was.
        trial.params = {**trial.params, param_name: value}
        trial.distributions = {**trial.distributions, param_name: distribution}

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        trial = self._known(trial_id)
        if not self._backend.set_trial_state_values(trial_id, state, values):
            return False
        trial.state = state
        if values is not None:
            trial.values = [float(value) for value in values]
        if state is TrialState.RUNNING:
            trial.datetime_start = datetime.datetime.now()
        elif state.is_finished():
            trial.datetime_complete = datetime.datetime.now()
        return True

    def set_trial_intermediate_value(
        self, trial_id: int, step: int, intermediate_value: float
    ) -> None:
        self._backend.set_trial_intermediate_value(trial_id, step, intermediate_value)
        trial = self._known(trial_id)
        trial.intermediate_values = {**trial.intermediate_values, step: intermediate_value}

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._backend.set_trial_user_attr(trial_id, key, value)
        trial = self._known(trial_id)
        trial.user_attrs = {**trial.user_attrs, key: value}

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._backend.set_trial_system_attr(trial_id, key, value)
        trial = self._known(trial_id)
        trial.system_attrs = {**trial.system_attrs, key: value}

    def get_trial(self, trial_id: int) -> FrozenTrial:
        found = copy.copy(self._known(trial_id))
        # Optuna's Trial writes into what it was given.
        for name in ("params", "distributions", "user_attrs", "system_attrs"):
            setattr(found, name, dict(getattr(found, name)))
        return found

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        trials = self._loaded(study_id)
        wanted = [trial for trial in trials if states is None or trial.state in states]
        return copy.deepcopy(wanted) if deepcopy else wanted

    def _loaded(self, study_id: int) -> list[FrozenTrial]:
        if study_id not in self._trials:
            stored = self._backend.get_all_trials(study_id, deepcopy=True)
            self._trials[study_id] = [self._keep(trial) for trial in stored]
        return self._trials[study_id]

    def _keep(self, trial: FrozenTrial) -> FrozenTrial:
        self._by_id[trial._trial_id] = trial
        return trial

    def _known(self, trial_id: int) -> FrozenTrial:
        if trial_id not in self._by_id:
            self._backend.get_trial(trial_id)  # raises KeyError if there is none
            for study in self._backend.get_all_studies():
                self._loaded(study._study_id)
        return self._by_id[trial_id]

    # -- studies ----------------------------------------------------------------------------
    def create_new_study(
        self, directions: Sequence[StudyDirection], study_name: str | None = None
    ) -> int:
        return self._backend.create_new_study(directions, study_name)

    def delete_study(self, study_id: int) -> None:
        for trial in self._trials.pop(study_id, []):
            del self._by_id[trial._trial_id]
        self._backend.delete_study(study_id)

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        self._backend.set_study_user_attr(study_id, key, value)

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        self._backend.set_study_system_attr(study_id, key, value)

    def get_study_id_from_name(self, study_name: str) -> int:
        return self._backend.get_study_id_from_name(study_name)

    def get_study_name_from_id(self, study_id: int) -> str:
        return self._backend.get_study_name_from_id(study_id)

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        return self._backend.get_study_directions(study_id)

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        return self._backend.get_study_user_attrs(study_id)

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return self._backend.get_study_system_attrs(study_id)

    def get_all_studies(self) -> list[FrozenStudy]:
        return self._backend.get_all_studies()

    def remove_session(self) -> None:
        self._backend.remove_session()
