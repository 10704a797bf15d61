"""The Optuna study: made, loaded, or copied for a changed space; and what a space can express."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import optuna
from optuna.distributions import BaseDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.records import OBJECTIVES, Value
from autotune.space import Space


def open_study(
    storage: optuna.storages.BaseStorage,
    name: str,
    sampler: optuna.samplers.BaseSampler,
    *,
    new: bool = False,
) -> optuna.Study:
    """Create the two-objective study, or load it if the storage has it.

    Raises:
        DuplicatedStudyError: the storage has it, and `new` asks for one that nobody else writes.
    """
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        sampler=sampler,
        directions=[StudyDirection.MAXIMIZE, StudyDirection.MAXIMIZE],
        load_if_exists=not new,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(list(OBJECTIVES))
    return study


def copy_study(
    old: optuna.Study, name: str, space: Space, sampler: optuna.samplers.BaseSampler
) -> optuna.Study:
    """The same trials under a changed space, because Optuna fixes a category's choices.

    Numbers are kept. A trial whose parameters the new space no longer has becomes a FAIL
    without parameters; what waits to be asked waits on, if the new space can express it.

    Raises:
        DuplicatedStudyError: the storage has a study of that name.
    """
    new = open_study(old._storage, name, sampler, new=True)
    for key, value in old.user_attrs.items():
        new.set_user_attr(key, value)
    for trial in old.get_trials(deepcopy=False):
        if trial.state is not TrialState.WAITING:
            new.add_trial(_moved(trial, space))
        elif fitting_distributions(space, planned := trial.system_attrs["fixed_params"]):
            new.enqueue_trial(planned, user_attrs=trial.user_attrs)
    return new


def fitting_distributions(
    space: Space, params: Mapping[str, Value]
) -> dict[str, BaseDistribution] | None:
    """The space's distributions of these parameters, or None if it cannot express a value."""
    fitting = {}
    for name, value in params.items():
        distribution = space.distributions.get(name)
        try:
            fits = distribution is not None and distribution._contains(
                distribution.to_internal_repr(value)
            )
        except ValueError:  # how a category says that it has no such choice
            fits = False
        if not fits or distribution is None:
            return None
        fitting[name] = distribution
    return fitting


def _moved(trial: FrozenTrial, space: Space) -> FrozenTrial:
    distributions = fitting_distributions(space, trial.params)
    if distributions is None or not trial.state.is_finished():
        return optuna.trial.create_trial(
            state=TrialState.FAIL, user_attrs={**trial.user_attrs, "lost": True}
        )
    return optuna.trial.create_trial(
        state=trial.state,
        params=trial.params,
        distributions=distributions,
        values=trial.values,
        user_attrs=trial.user_attrs,
        system_attrs=trial.system_attrs,
    )
