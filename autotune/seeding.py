"""What a new study knows before its first trial: the file's priors and earlier studies.

Earlier results shape the sampler's model and never count as measured: only figures of this
study, on this machine, can be on its front.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.errors import InputError
from autotune.experiment import Experiment, load_experiment
from autotune.fingerprint import Fingerprint
from autotune.ledger import CONSTRAINT, fitting_distributions
from autotune.prompt_file import prompts_named, prompts_of
from autotune.records import OBJECTIVES, Outcome
from autotune.rundir import Run, RunDir, read_run
from autotune.sampler import Prior
from autotune.space import Space

# How much a result of another study counts before the sampler has learned it, multiplied for each
# thing that differs. The order is what matters: another host can flip the sign of a flag's effect,
# a version seldom does.
OTHER_MACHINE, OTHER_COMMAND, OTHER_WORKLOAD = 0.4, 0.5, 0.7
ANY_OTHER_STUDY = 0.8


def priors_of(space: Space) -> dict[str, Prior]:
    """The `prior:` entries of the parameters, as the sampler takes them."""
    return {
        name: Prior(prefer=hint.prefer, weight=hint.weight, effects=hint.effects)
        for name, hint in space.priors.items()
    }


def history_of(
    paths: Sequence[Path], experiment: Experiment, space: Space, here: Fingerprint | None
) -> list[tuple[FrozenTrial, float]]:
    """Earlier outcomes that this space can express, each with its weight in (0, 1]."""
    history = []
    for path in paths:
        run = read_run(path)
        weight = weight_of(run, experiment, here)
        trials = (_as_trial(outcome, space, str(path)) for outcome in run.outcomes)
        history += [(trial, weight) for trial in trials if trial is not None]
    return history


def weight_of(run: Run, experiment: Experiment, here: Fingerprint | None) -> float:
    """How much an earlier run's results say about this study.

    `experiment` is this study's, with the absolute path of its prompts.
    """
    weight = ANY_OTHER_STUDY
    if here is None or run.machine.get("digest") != here.digest:
        weight *= OTHER_MACHINE
    then = _experiment_of(run)
    if then is None or then.engines != experiment.engines:
        weight *= OTHER_COMMAND
    if then is None or not _same_workload(run, then, experiment):
        weight *= OTHER_WORKLOAD
    return weight


def _same_workload(run: Run, then: Experiment, now: Experiment) -> bool:
    """Prompts are compared by what they hold, not by what they are called."""
    name = now.workload.prompts
    prompts = prompts_of(RunDir(run.path), then.workload.prompts)
    renamed = then.with_prompts(name)
    return renamed.workload == now.workload and prompts.are(prompts_named(name, Path()))


def _experiment_of(run: Run) -> Experiment | None:
    """The run's experiment as it is read today; None if it cannot be, so that all may differ."""
    try:
        return load_experiment(RunDir(run.path).experiment_yaml)
    except InputError:
        return None


def _as_trial(outcome: Outcome, space: Space, study: str) -> FrozenTrial | None:
    if outcome.state not in ("ok", "infeasible"):
        return None
    distributions = fitting_distributions(space, outcome.params)
    if distributions is None or set(outcome.params) != set(space.active(outcome.params)):
        return None
    return create_trial(
        state=TrialState.COMPLETE,
        params=dict(outcome.params),
        distributions=distributions,
        values=[(outcome.values or {}).get(name, 0.0) for name in OBJECTIVES],
        constraints={CONSTRAINT: 0.0 if outcome.state == "ok" else 1.0},
        user_attrs={"study": study, **_cause(outcome)},
    )


def _cause(outcome: Outcome) -> dict[str, str]:
    return {} if outcome.failure is None else {"failure_kind": outcome.failure.kind}
