"""Which run a study belongs to: two searches in one storage must never write one study.

The run keeps a mark of its own beside its storage's URL, and the study carries the same mark.
"""

from __future__ import annotations

import os
import secrets

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.trial import TrialState

from autotune.errors import InputError
from autotune.optuna_study import open_study
from autotune.rundir import RunDir
from autotune.sole_writer import SoleWriterStorage
from autotune.storage import (
    open_storage,
    remember,
    storage_url,
    stored_storage,
    study_url,
    without_password,
)

OWNER = "autotune_run"


def create_own(
    run: RunDir, url: str, name: str, sampler: optuna.samplers.BaseSampler
) -> optuna.Study:
    """Create the run's study: of several drivers that ask for one name, one gets it.

    What a driver of this run directory left before its first trial began is replaced.

    Raises:
        InputError: the storage does not open, or has another run's study of that name.
    """
    storage = SoleWriterStorage(open_storage(url))
    mark, place = secrets.token_hex(8), f"{os.uname().nodename}:{run.path.resolve()}"
    remember(run.path, url=url, study=name, owner=mark)  # first: a study must find its owner
    try:
        study = open_study(storage, name, sampler, new=True)
    except DuplicatedStudyError as error:
        old = open_study(storage, name, sampler)
        is_own = _owner_of(old).get("run") == place or url == storage_url(None, run.study_db)
        if not is_own or any(t.state is not TrialState.WAITING for t in old.get_trials()):
            raise InputError(
                f"already holds a study named {name}{_place_of(old)}; --resume continues it in "
                "its run directory, another `name:` in the experiment starts another",
                field="--storage",
            ) from error
        optuna.delete_study(study_name=name, storage=storage)
        study = open_study(storage, name, sampler, new=True)
    study.set_user_attr(OWNER, {"mark": mark, "run": place})
    return study


def find_own(
    run: RunDir, requested: str | None, name: str, sampler: optuna.samplers.BaseSampler
) -> optuna.Study:
    """The study that this run was searched with; `requested` names its storage anew.

    Raises:
        InputError: the storage does not open, or has no such study, or another run's.
    """
    stored = stored_storage(run.path)
    url = study_url(run.path) if requested is None else storage_url(requested, run.study_db)
    name = stored.get("study") or name
    try:
        storage = SoleWriterStorage(open_storage(url))
        study = optuna.load_study(study_name=name, storage=storage, sampler=sampler)
    except KeyError as error:
        raise InputError(
            f"{without_password(url)} holds no study named {name}; this run's study is in "
            f"{stored.get('url', run.study_db)}",
            field="--storage",
        ) from error
    mark = stored.get("owner")
    if mark is not None and _owner_of(study).get("mark", mark) != mark:
        raise InputError(
            f"{without_password(url)}: its study named {name} is not this run's{_place_of(study)}",
            field="--storage",
        )
    if requested is not None:
        remember(run.path, url=url)
    return study


def _owner_of(study: optuna.Study) -> dict[str, str]:
    owner: dict[str, str] = study.user_attrs.get(OWNER, {})
    return owner


def _place_of(study: optuna.Study) -> str:
    """` (of host:/folder)`, as far as it is known: the folder may have moved."""
    place = _owner_of(study).get("run")
    return f" (of {place})" if place else ""
