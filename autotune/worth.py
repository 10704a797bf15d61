"""What changing one parameter is worth, as far as all trials of a run together tell.

The sampler's own model answers (`sampler.importance`): it knows interactions, and it is silent
where the data does not support a statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import TYPE_CHECKING

from autotune.errors import InputError
from autotune.front import is_measured
from autotune.records import OBJECTIVES, Outcome
from autotune.run import Run
from autotune.rundir import RunDir
from autotune.verdict import value_text

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

    from autotune.sampler.importance import Effect
    from autotune.space import Space

MOST_TRIALS = 80
"""The newest that are modelled: time grows with the cube, and late trials are near the front."""


@lru_cache(maxsize=4)
def worth_of(run: Run) -> Mapping[str, Mapping[str, Effect]]:
    """Objective -> parameter -> effect, largest first; empty where nothing can be said."""
    from autotune.experiment import load_experiment
    from autotune.sampler.importance import MIN_WORKING, importance
    from autotune.space import Space

    nothing: dict[str, dict[str, Effect]] = {name: {} for name in OBJECTIVES}
    if len(run.points) < MIN_WORKING:
        return nothing
    try:
        space = Space(load_experiment(RunDir(run.path).experiment_yaml))
    except InputError:  # an experiment of another version; its figures are still good
        return nothing
    trials = [trial for o in run.outcomes if (trial := _as_trial(o, space)) is not None]
    with _one_thread():
        effects = importance(_study_of(trials[-MOST_TRIALS:]), space).values()
    return {
        name: {effect.parameter: effect for effect in found}
        for name, found in zip(OBJECTIVES, effects, strict=True)
    }


def _one_thread() -> AbstractContextManager[object]:
    """Matrices of this size lose by threads, and on a busy host by a factor of ten."""
    import scipy.linalg  # noqa: F401  # its own BLAS must be loaded to be limited
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # publishes none

    limits: AbstractContextManager[object] = threadpool_limits(limits=1, user_api="blas")
    return limits


def worth_text(effect: Effect) -> str:
    """`LL over unset: +12 % (11 to 13)`: the ratio and its 90 % interval."""
    low, high = ((ratio - 1) * 100 for ratio in (effect.low, effect.high))
    return (
        f"{value_text(effect.best)} over {value_text(effect.worst)}: "
        f"{(effect.ratio - 1) * 100:+.0f} % ({low:.0f} to {high:.0f})"
    )


def _as_trial(outcome: Outcome, space: Space) -> FrozenTrial | None:
    from optuna.trial import TrialState, create_trial

    from autotune.optuna_study import fitting_distributions

    distributions = fitting_distributions(space, outcome.params)
    if distributions is None or not is_measured(outcome) or outcome.values is None:
        return None
    return create_trial(
        state=TrialState.COMPLETE,
        params=dict(outcome.params),
        distributions=distributions,
        values=[outcome.values[name] for name in OBJECTIVES],
    )


def _study_of(trials: list[FrozenTrial]) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=["maximize"] * len(OBJECTIVES))
    study.add_trials(trials)
    return study
