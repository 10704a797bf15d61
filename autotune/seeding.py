"""What a new study knows before its first trial: the file's priors and earlier studies.

Earlier results shape the sampler's model and never count as measured: only figures of this
study, on this machine, can be on its front.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.errors import InputError
from autotune.experiment import Experiment, load_experiment
from autotune.front import telling
from autotune.ledger import CONSTRAINT
from autotune.optuna_study import fitting_distributions
from autotune.prompt_file import prompts_named, prompts_of
from autotune.records import OBJECTIVES, Outcome
from autotune.run import Run
from autotune.rundir import RunDir
from autotune.sampler import Prior
from autotune.space import Space

# How much a result of another study counts before the sampler has learned it, multiplied for each
# thing that differs. The order is what matters: another host can flip the sign of a flag's effect,
# a version seldom does.
OTHER_MACHINE, OTHER_COMMAND, OTHER_WORKLOAD = 0.4, 0.5, 0.7
ANY_OTHER_STUDY = 0.8
_WEIGHTS = {"machine": OTHER_MACHINE, "command": OTHER_COMMAND, "workload": OTHER_WORKLOAD}
_CONCLUSIVE = ("ok", "infeasible")


def priors_of(space: Space) -> dict[str, Prior]:
    """The `prior:` entries of the parameters, as the sampler takes them."""
    return {
        name: Prior(prefer=hint.prefer, weight=hint.weight, effects=hint.effects)
        for name, hint in space.priors.items()
    }


@dataclass(frozen=True)
class Earlier:
    """What an earlier run says about this study.

    `trials` are those that this study's space can express, `of` how many there were to express,
    `weight` in (0, 1] how much they count, `differs` what takes weight from them.
    """

    path: Path
    trials: tuple[FrozenTrial, ...]
    of: int
    weight: float
    differs: tuple[str, ...]

    def __str__(self) -> str:
        if not self.trials:
            return (
                f"{self.path}: none of its {self.of} trials fits this space; it says nothing here"
            )
        differs = f": another {', another '.join(self.differs)}" if self.differs else ""
        return (
            f"{self.path}: {len(self.trials)} of {self.of} trials fit this space; each counts as "
            f"{self.weight:.2f} of one of this study's, until those say more{differs}"
        )


def earlier_study(
    run: Run, experiment: Experiment, space: Space, machines: Collection[str]
) -> Earlier:
    """What a run says about this study, before anything is launched.

    Args:
        experiment: this study's, with the absolute path of its prompts.
        machines: fingerprints' digests of all hosts that this study runs on.
    """
    outcomes = telling(run.outcomes)
    trials = [_as_trial(outcome, space, str(run.path)) for outcome in outcomes]
    differs = tuple(_differences(run, experiment, machines))
    return Earlier(
        path=run.path,
        trials=tuple(trial for trial in trials if trial is not None),
        of=sum(1 for outcome in outcomes if outcome.state in _CONCLUSIVE),
        weight=ANY_OTHER_STUDY * prod(_WEIGHTS[what] for what in differs),
        differs=differs,
    )


def _differences(run: Run, experiment: Experiment, machines: Collection[str]) -> Iterator[str]:
    """What an earlier run did otherwise; what cannot be read may have been anything."""
    if not machines or _machines_of(run) != set(machines):
        yield "machine"
    then = _experiment_of(run)
    if then is None or then.engines != experiment.engines:
        yield "command"
    if then is None or not _same_workload(run, then, experiment):
        yield "workload"


def _machines_of(run: Run) -> set[str]:
    """The digests of all its hosts: where they differ, what is true of one may not be of all."""
    digests = [run.machine.get("digest"), *(outcome.machine for outcome in run.outcomes)]
    return {digest for digest in digests if isinstance(digest, str) and digest}


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
    if outcome.state not in _CONCLUSIVE:
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
