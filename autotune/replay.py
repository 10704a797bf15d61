"""`autotune replay`: launch and measure one trial again, on GPUs as many as it had."""

from __future__ import annotations

import asyncio
from pathlib import Path

from autotune.compare import ReplayComparison, compare_replay
from autotune.errors import InputError, NoFeasibleTrial
from autotune.experiment import load_experiment
from autotune.gpus import visible_note
from autotune.machine import Machine, open_machine
from autotune.placement import locked
from autotune.prompt_file import refuse_other_prompts, with_readable_prompts
from autotune.run import Run
from autotune.rundir import RunDir
from autotune.trial import TrialPlan, run_trial


def replay_trial(run: Run, number: int) -> ReplayComparison:
    """Fresh launch, same measurement; the result is kept in `RUN/replays/NNNN-k/`.

    No Ray is needed for one trial: it runs in this process, on the first GPUs of those
    that CUDA_VISIBLE_DEVICES names.

    Raises:
        InputError: the run has no such trial, its experiment file holds masked secrets, or a
            search is writing it; there are not enough GPUs.
        NoFeasibleTrial: the launch failed this time.
    """
    with locked(RunDir(run.path)):  # a search that runs has the GPUs, and may be measuring
        return _replay(run, number)


def _replay(run: Run, number: int) -> ReplayComparison:
    file, path = RunDir(run.path).experiment_yaml, run.path.resolve()
    old = run.outcome(number)
    experiment = with_readable_prompts(load_experiment(file), file)
    refuse_other_prompts(experiment, RunDir(run.path))  # if the run's file was edited
    if old.values is None:
        raise InputError(f"trial {number} was not measured: nothing to compare with", file=run.path)
    simulated = path / "simulated" if old.simulated else None
    folder = _free_folder(path / "replays", number)
    plan = TrialPlan(
        experiment=experiment,
        number=number,
        params=old.params,
        trial_dir=folder,
        purpose="replay",
        repeats=number,
        reference_answers=old.answers,
        simulated_host=simulated,
    )
    machine = open_machine(simulated / "gpus.json" if simulated else None)
    gpus = _gpus(machine, experiment.gpus_per_trial)
    new = asyncio.run(run_trial(plan, gpus))
    if new.values is None:
        why = new.failure.cause if new.failure is not None else "; ".join(new.warnings)
        raise NoFeasibleTrial(f"trial {number} failed this time: {why or new.state}")
    return compare_replay(old, new, run.point(number))


def _gpus(machine: Machine, wanted: int) -> tuple[int, ...]:
    gpus = machine.gpus_for(wanted)
    if len(gpus) < wanted:
        raise InputError(f"the trial ran on {wanted} GPUs; here are {len(gpus)}{visible_note()}")
    return gpus[:wanted]


def _free_folder(parent: Path, number: int) -> Path:
    count = len(list(parent.glob(f"{number:04d}-*"))) + 1
    return parent / f"{number:04d}-{count}"
