"""`autotune search`: open the study, find the slots, conduct it, say how it ended."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from autotune.admission import host_notes, refuse_missing, refuse_mixed, share_hosts
from autotune.budget import counted_causes
from autotune.cluster import ray_has_died, start_ray
from autotune.errors import InputError, Interrupted, NoFeasibleTrial, NoMachineLeft, StudyError
from autotune.experiment import Experiment, load_experiment
from autotune.hosts import Hosts
from autotune.launchable import idle_gpus, refuse_unlaunchable
from autotune.machine import open_machine
from autotune.mixed import Scales
from autotune.opening import Opened, check_machine, open_again, open_new
from autotune.placement import choose_fork, choose_run_dir, locked, taken_back_if_refused
from autotune.prompt_file import (
    refuse_other_prompts,
    with_kept_prompts,
    with_readable_prompts,
)
from autotune.run import Run, read_run
from autotune.rundir import RunDir, write_json
from autotune.sampler import ParetoSampler
from autotune.seeding import Earlier, earlier_study, priors_of
from autotune.snapshot import Snapshot, snapshot
from autotune.space import Space
from autotune.storage import loss_explained
from autotune.study import INTERRUPTED, TICK_SECONDS, Conductor
from autotune.workers import Slot, open_slots


@dataclass(frozen=True)
class SearchOptions:
    """What the command line says about a search."""

    space: Path
    run_dir: Path | None = None
    trials: int | None = None
    hours: float | None = None
    seed: int = 0
    simulate: bool = False
    resume: bool = False
    fork: bool = False
    from_runs: tuple[Path, ...] = ()
    address: str | None = None
    allow_mixed: bool = False
    storage: str | None = None


@dataclass(frozen=True)
class SearchEnd:
    """How a search ended."""

    run: RunDir
    reason: str
    last: Snapshot


def search(options: SearchOptions, show: Callable[[Snapshot], None]) -> SearchEnd:
    """Run a study to its end.

    Raises:
        InputError: the file, the run directory, the storage or the cluster do not fit.
        Interrupted: the user stopped it; everything was cleaned up.
        MachineNotClean: a trial left something behind.
        NoFeasibleTrial: not one configuration could be measured.
        NoMachineLeft: Ray or every host was lost.
        StorageLost: the study's database or journal failed.
    """
    experiment = _with_overrides(load_experiment(options.space), options)
    refuse_unlaunchable(experiment, options.space)
    if options.allow_mixed and not experiment.known_good:
        raise InputError(
            "hosts that differ are compared by the baseline, the first of known_good, of which "
            "there is none",
            field="--allow-mixed",
        )
    typed, options = _place(options, experiment)
    # Each once, however often and by which names it is given: a fork's own run is one of them.
    from_runs = {os.path.realpath(path): path for path in options.from_runs}
    earlier = [read_run(path) for path in from_runs.values()]
    # Absolute: the workers that Ray starts may be in another folder. Path.resolve would end in a
    # traceback where links go round in a circle; realpath leaves what it cannot follow.
    run = RunDir(Path(os.path.realpath(typed.path)))
    # Prompts that cannot be read are named before anything starts. The run keeps the experiment
    # file's own text: what is stored and compared on resume is the experiment as it was written.
    ready = with_readable_prompts(experiment, options.space, run if options.resume else None)
    if options.resume and not options.simulate and (run.path / "simulated").exists():
        raise InputError(
            "this run is one of simulated servers: add --simulate to continue it, or choose "
            "another --run-dir for the real ones",
            file=typed.path,
        )
    with locked(run), taken_back_if_refused(run):
        refuse_other_prompts(ready, run)
        opener = open_again if options.resume else open_new
        sampler = _sampler(options, experiment)
        with loss_explained():
            opened = opener(run, experiment, options.space, options.storage, sampler)
        return replace(asyncio.run(_conduct(options, opened, ready, earlier, show)), run=typed)


def _place(options: SearchOptions, experiment: Experiment) -> tuple[RunDir, SearchOptions]:
    """The run directory; a fork takes its knowledge from the run that it goes beside."""
    run = choose_run_dir(options.run_dir, experiment.name, options.resume or options.fork)
    if not options.fork:
        return run, options
    fork = choose_fork(run, options.resume)
    return fork, replace(options, run_dir=fork.path, from_runs=(*options.from_runs, run.path))


def _sampler(
    options: SearchOptions, experiment: Experiment, earlier: Sequence[Earlier] = ()
) -> ParetoSampler:
    space = Space(experiment)
    return ParetoSampler(
        options.seed,
        space=space,
        priors=priors_of(space),
        history=[(trial, study.weight) for study in earlier for trial in study.trials],
        budget=experiment.budget.trials,
    )


def _with_overrides(experiment: Experiment, options: SearchOptions) -> Experiment:
    changes = {"trials": options.trials, "hours": options.hours}
    given = {name: value for name, value in changes.items() if value is not None}
    budget = experiment.budget.model_copy(update=given)
    return experiment.model_copy(update={"budget": budget})


async def _conduct(
    options: SearchOptions,
    opened: Opened,
    experiment: Experiment,
    earlier: Sequence[Run],
    show: Callable[[Snapshot], None],
) -> SearchEnd:
    host = _simulated_host(options, opened)
    hosts = await _open_hosts(options, opened, experiment, host)
    # What an earlier run is worth depends on the hosts, which nobody knew before.
    known = [earlier_study(run, experiment, opened.space, hosts.machines) for run in earlier]
    hosts.notes += [f"--fork: this run is {options.run_dir}"] if options.fork else []
    hosts.notes += [str(study) for study in known]
    opened.ledger.study.sampler = _sampler(options, experiment, known)
    # Not before machine and file have been accepted: a copy made for a refused search would stay.
    experiment = with_kept_prompts(experiment, opened.run, opened.experiment.workload.prompts)
    conductor = Conductor(
        run=opened.run,
        experiment=experiment,
        space=opened.space,
        ledger=opened.ledger,
        hosts=hosts,
        seed=options.seed,
        simulated_host=host,
        show=lambda state: _show(opened.run, state, show),
        outcomes=opened.outcomes,
    )
    _stop_on_signals(conductor)
    reason, finished = "failed", False
    try:
        with loss_explained():
            reason = await conductor.conduct()
        finished = conductor.stopping is None
    except StudyError as error:
        reason = str(error)
        raise
    finally:
        last = snapshot(conductor)
        summary = {"reason": reason, "finished": finished, "seed": options.seed}
        write_json(opened.run.summary_json, summary | {"notes": hosts.notes})
        _show(opened.run, last, show)
        ray.shutdown()
    _raise_if_fruitless(conductor, reason)
    return SearchEnd(opened.run, reason, last)


def _show(run: RunDir, state: Snapshot, show: Callable[[Snapshot], None]) -> None:
    write_json(run.status_json, state)
    show(state)


def _simulated_host(options: SearchOptions, opened: Opened) -> Path | None:
    """The folder of the simulated machine, made for the experiment's own hardware.

    On a cluster it stays empty: each node makes a machine of its own in it.
    """
    if not options.simulate:
        return None
    from autotune.engines.simulated.adapter import create_host

    folder = opened.run.path / "simulated"
    if options.address is None:
        create_host(folder, opened.experiment)
    return folder


async def _open_hosts(
    options: SearchOptions, opened: Opened, experiment: Experiment, simulated: Path | None
) -> Hosts:
    """The slots of every host, once it is known that their figures can be compared."""
    start_ray(options.address, None if options.address else _local_gpus(simulated, experiment))
    opening = open_slots(experiment, opened.run.path, simulated)
    slots = share_hosts(await _unless_ray_dies(opening))
    refuse_missing(slots)
    if not options.allow_mixed:
        refuse_mixed(slots)
    reference = check_machine(opened.run, slots[0].facts.fingerprint, options.allow_mixed)
    scales = Scales(reference) if options.allow_mixed else None
    if scales is not None:
        scales.look_at(opened.outcomes)
    return Hosts(list(slots), scales, notes=[*idle_gpus(experiment), *host_notes(slots)])


async def _unless_ray_dies(opening: Coroutine[Any, Any, tuple[Slot, ...]]) -> tuple[Slot, ...]:
    """The slots; Ray itself would wait for those of a dead daemon for a long time."""
    task = asyncio.create_task(opening)
    while not task.done() and not ray_has_died():
        await asyncio.wait({task}, timeout=TICK_SECONDS)
    try:
        if task.done():
            return task.result()
    except RayTaskError as error:  # not Ray's fault, but what a node found wrong
        raise error.cause from error
    except RayError:
        pass
    task.cancel()
    raise NoMachineLeft("Ray died before the first trial; start again, with --resume")


def _local_gpus(host: Path | None, experiment: Experiment) -> tuple[int, ...]:
    return open_machine(host / "gpus.json" if host else None).gpus_for(experiment.gpus_per_trial)


def _stop_on_signals(conductor: Conductor) -> None:
    """Once: let each server stop in its own time. Twice: kill them now; still clean."""

    def stop() -> None:
        if conductor.stopping is None:
            conductor.stop(INTERRUPTED)
        else:
            conductor.abandon()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)


def _raise_if_fruitless(conductor: Conductor, reason: str) -> None:
    if reason == INTERRUPTED:
        raise Interrupted("stopped; everything was cleaned up, --resume continues")
    if any(outcome.state == "ok" for outcome in conductor.outcomes):
        return
    causes = counted_causes(conductor.outcomes) or "none"
    raise NoFeasibleTrial(f"not one configuration could be measured ({reason}): {causes}")
