"""Opening a study: a new run directory, or one that an earlier driver left, whatever it died of."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.trial import FrozenTrial, TrialState

from autotune import masking
from autotune.engines.launch import rendered
from autotune.errors import InputError
from autotune.experiment import Experiment, load_experiment
from autotune.fingerprint import Fingerprint
from autotune.leash import end_leftovers
from autotune.ledger import Asked, Ledger
from autotune.losses import MAX_OF_A_CONFIGURATION, unmeasured
from autotune.mixed import Scales
from autotune.optuna_study import copy_study
from autotune.ownership import create_own, find_own
from autotune.prompt_file import prompts_named, prompts_of
from autotune.records import Outcome
from autotune.run import Run, read_run
from autotune.rundir import RunDir, write_json, write_text
from autotune.space import Space, space_changes
from autotune.storage import remember, storage_url
from autotune.trial import write_outcome

_FINISHED = (TrialState.COMPLETE, TrialState.FAIL)


@dataclass
class Opened:
    """A study ready to run."""

    run: RunDir
    experiment: Experiment
    space: Space
    ledger: Ledger
    outcomes: list[Outcome] = field(default_factory=list)


def open_new(
    run: RunDir,
    experiment: Experiment,
    file: Path,
    storage: str | None,
    sampler: optuna.samplers.BaseSampler,
) -> Opened:
    """Create the run's files and study, and plan the known-good configurations.

    `file` is the experiment file as the user wrote it; it is stored with its secrets masked.
    """
    space = Space(experiment)
    study = create_own(run, storage_url(storage, run.study_db), experiment.name, sampler)
    write_text(run.experiment_yaml, _masked(file, experiment))
    opened = Opened(run, experiment, space, Ledger(study, space))
    _plan_known_good(opened)
    return opened


def _plan_known_good(opened: Opened) -> None:
    for index, params in enumerate(opened.space.known_good):
        opened.ledger.plan(params, "baseline" if index == 0 else "known_good")


def open_again(
    run: RunDir,
    experiment: Experiment,
    file: Path,
    storage: str | None,
    sampler: optuna.samplers.BaseSampler,
) -> Opened:
    """Continue a run: finished trials stay, the one that was running is asked again.

    Raises:
        InputError: the experiment changed in a way that makes old and new figures incomparable.
    """
    old = load_experiment(run.experiment_yaml)
    prompts = prompts_named(experiment.workload.prompts, file)
    same_prompts = prompts.are(prompts_of(run, old.workload.prompts))
    changes = space_changes(old, experiment, same_prompts=same_prompts)
    if changes.incompatible:
        raise InputError(
            "the experiment changed, and old figures would not compare with new ones: "
            + "; ".join(changes.incompatible)
            + ". Undo this, or use --fork to start a new study seeded with the old results",
            file=run.path,
        )
    space, old_space = Space(experiment), Space(old)
    study = find_own(run, storage, experiment.name, sampler)
    if old_space.distributions != space.distributions:
        _reconcile(Opened(run, old, old_space, Ledger(study, old_space)))
        study = _study_for_changed_space(study, space, sampler)
        remember(run.path, study=study.study_name)
    opened = Opened(run, experiment, space, Ledger(study, space))
    if not study.get_trials(deepcopy=False):  # the first driver died before it planned anything
        _plan_known_good(opened)
    _reconcile(opened)
    for params in space.known_good:
        if params not in old_space.known_good:
            opened.ledger.plan(params, "known_good")
    if changes.compatible:  # last: what has not been planned is still new to the next driver
        write_text(run.experiment_yaml, _masked(file, experiment))
    return opened


def check_machine(run: RunDir, fingerprint: Fingerprint, allow_mixed: bool = False) -> str:
    """Store the host's fingerprint, or refuse a host that differs from the stored one.

    Returns the digest of the fingerprint that is stored: the one all figures are told in.
    """
    stored = run.machine_json
    if stored.exists():
        document = json.loads(stored.read_text())
        document.pop("digest", None)
        first = Fingerprint.model_validate(document)
        if allow_mixed:
            return first.digest
        differences = first.differences(fingerprint)
        if differences:
            raise InputError(
                "the machine changed since this run began: " + "; ".join(differences) + ". "
                "Figures of different machines do not mix: start another run with --run-dir",
                file=run.path,
            )
    write_json(stored, {"digest": fingerprint.digest, **fingerprint.model_dump(mode="json")})
    return fingerprint.digest


def _masked(file: Path, experiment: Experiment) -> str:
    """The experiment file without the secrets that its servers are given."""
    secrets = [
        secret
        for section in experiment.engines.values()
        for secret in masking.secrets_of((*section.command, *rendered(section.args)), section.env)
    ]
    return masking.mask_text(file.read_text(encoding="utf-8"), secrets)


def _study_for_changed_space(
    study: optuna.Study, space: Space, sampler: optuna.samplers.BaseSampler
) -> optuna.Study:
    """Optuna fixes the choices of a category for good, so a changed space needs a new study."""
    base, _, number = study.study_name.partition("@")
    for next_one in count(int(number or 1) + 1):
        with contextlib.suppress(DuplicatedStudyError):  # of a driver that died as it copied
            return copy_study(study, f"{base}@{next_one}", space, sampler)
    raise AssertionError("unreachable")


def _reconcile(opened: Opened) -> None:
    """Bring ledger and run directory together after any death of the driver.

    A trial that finished while nobody listened is told now; one that was under way becomes
    `interrupted` and is asked again.
    """
    run = read_run(opened.run.path)
    stored = {outcome.number: outcome for outcome in _in_the_first_hosts_figures(run)}
    for trial in opened.ledger.study.get_trials(deepcopy=False):
        outcome = stored.get(trial.number)
        if trial.state is TrialState.RUNNING:
            outcome = _settle(opened, trial, outcome)
        if outcome is not None:
            opened.outcomes.append(outcome)
            opened.ledger.remember(outcome)
    _ask_again(opened)


def _ask_again(opened: Opened) -> None:
    """Plan what has no result although it was launched: what was lost as its driver ended, and
    what finished but cannot be read any more. Launches that only repeat another are left out.
    """
    read = {outcome.number for outcome in opened.outcomes}
    lost = Counter(outcome.key for outcome in opened.outcomes if outcome.state == "lost")
    for trial in opened.ledger.study.get_trials(deepcopy=False, states=_FINISHED):
        attrs = trial.user_attrs
        # A host's own baseline belongs to the host, and is asked there.
        if "key" not in attrs or "repeats" in attrs or attrs.get("purpose") == "host_baseline":
            continue
        if trial.number in read and lost[attrs["key"]] not in range(1, MAX_OF_A_CONFIGURATION + 1):
            continue
        params = opened.space.active(trial.params)
        if opened.ledger.result_of(params) is None:
            opened.ledger.plan(params, attrs.get("purpose", "search"))


def _in_the_first_hosts_figures(run: Run) -> list[Outcome]:
    """What hosts of other kinds finished while nobody listened, told as it would have been."""
    scales = Scales(str(run.machine.get("digest", "")))
    scales.look_at(run.outcomes)
    return [scales.scaled(outcome) for outcome in run.outcomes]


def _settle(opened: Opened, trial: FrozenTrial, outcome: Outcome | None) -> Outcome | None:
    opened.ledger.adopt(trial.number)
    end_leftovers(opened.run.trial(trial.number))
    if outcome is not None and outcome.state in ("ok", "infeasible"):
        write_outcome(outcome, opened.run.trial(trial.number))
        opened.ledger.tell(outcome)
        return outcome
    interrupted = _interrupted(opened, trial)
    if interrupted is None:
        opened.ledger.forget(trial.number)
        return None
    write_outcome(interrupted, opened.run.create_trial(trial.number))
    opened.ledger.tell(interrupted)
    if interrupted.purpose != "host_baseline":  # which belongs to a host, and is asked there
        opened.ledger.plan(interrupted.params, interrupted.purpose, interrupted.repeats)
    return interrupted


def _interrupted(opened: Opened, trial: FrozenTrial) -> Outcome | None:
    """The outcome of a trial that nobody finished; None if it had no configuration yet."""
    key = trial.user_attrs.get("key")
    if key is None:
        return None
    attrs = trial.user_attrs
    asked = Asked(
        number=trial.number,
        params=dict(opened.space.active(trial.params)),
        key=key,
        purpose=attrs.get("purpose", "search"),
        repeats=attrs.get("repeats"),
    )
    return unmeasured(asked, opened.space, "interrupted")
