"""One trial, from a configuration to an outcome: launch, wait, measure, stop, drained.

This is the only place where a failure of any kind becomes an `Outcome`. What it may not
swallow is `MachineNotClean`: a machine with leftovers must stop the study.
"""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune import masking
from autotune.engines.base import Effective, Engine, Place
from autotune.engines.launch import build_launch, write_launch_script
from autotune.engines.preflight import preflight
from autotune.engines.registry import engine_named
from autotune.errors import TrialFailed, TrialLost
from autotune.experiment import Experiment
from autotune.limits import violated, worst_violation
from autotune.machine import Machine, free_port, open_machine
from autotune.measure import Target, measure
from autotune.observe import with_cause
from autotune.records import (
    Failure,
    Launch,
    Measurement,
    Outcome,
    Override,
    Phase,
    Progress,
    Purpose,
    State,
    Value,
)
from autotune.server import Server, running
from autotune.space import Space
from autotune.timeline import Timeline
from autotune.turn import turn

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class TrialPlan:
    """What the driver asks of a slot; travels to the node that owns the GPUs.

    `experiment` has the absolute path of its prompts, unless they are the shipped ones.
    `front` holds (single-stream, peak) pairs in tokens/s measured so far, `reference_answers`
    the baseline's answers to the fixed questions, `simulated_host` the folder of a simulated
    machine, or None for the real one. Where other trials may run on the same host, `neighbours`
    is how many, `cores` are the CPUs left to this one, and `turn` names the turn to be measured,
    None if they are measured side by side. `machine` and `host` are the fingerprint's digest and
    the name of where it runs: an outcome has to tell them if its driver dies meanwhile.
    """

    experiment: Experiment
    number: int
    params: Mapping[str, Value]
    trial_dir: Path
    purpose: Purpose = "search"
    repeats: int | None = None
    front: tuple[tuple[float, float], ...] = ()
    reference_answers: tuple[str, ...] = ()
    simulated_host: Path | None = None
    neighbours: int = 0
    cores: tuple[int, ...] = ()
    turn: str | None = None
    machine: str = ""
    host: str = ""


@dataclass
class _Findings:
    """What is known about a trial so far; kept when a later phase fails."""

    effective: Effective = field(default_factory=Effective)
    overrides: tuple[Override, ...] = ()
    warnings: list[str] = field(default_factory=list)


async def run_trial(
    plan: TrialPlan, gpus: tuple[int, ...] = (), listener: Callable[[Progress], None] | None = None
) -> Outcome:
    """Launch and measure one configuration on the GPUs given (physical indices).

    Writes `launch.sh`, `server.log`, `timeline.json`, `requests.jsonl` and `outcome.json` into
    the trial's folder. Cancelling the task stops the server, waits until it is drained and
    returns an `interrupted` outcome.

    Raises:
        MachineNotClean: processes, ports or GPU memory were left behind.
    """
    started_at = _utc_now()
    engine, machine = _engine_for(plan), _machine_for(plan)
    plan.trial_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    launch = _build(plan, engine, gpus)
    timeline = Timeline(
        plan.number,
        clock=engine.clock(launch),
        path=plan.trial_dir / "timeline.json",
        **({} if listener is None else {"listener": listener}),
    )
    timeline.enter(Phase.PREPARE)
    findings = _Findings()
    state: State = "ok"
    failure: Failure | None = None
    measurement: Measurement | None = None
    try:
        measurement = await _serve_and_measure(plan, launch, engine, machine, timeline, findings)
        failure = violated(plan.experiment.constraints, measurement)
        measurement = _with_violation(plan, measurement)
    except TrialFailed as error:
        failure = error.failure
        measurement = error.partial
    except TrialLost as error:
        state = "lost"
        findings.warnings.append(str(error))
    except asyncio.CancelledError:
        state = "interrupted"
    if failure is not None:
        state = "infeasible"
    outcome = _outcome(plan, launch, state, failure, measurement, findings, timeline).model_copy(
        update={"started_at": started_at, "finished_at": _utc_now()}
    )
    write_outcome(outcome, plan.trial_dir)
    return outcome


def write_outcome(outcome: Outcome, folder: Path) -> None:
    """Write `outcome.json` so that a reader never sees half of it."""
    partial = folder / "outcome.json.partial"
    partial.write_text(outcome.model_dump_json(indent=1) + "\n")
    partial.replace(folder / "outcome.json")


def _engine_for(plan: TrialPlan) -> Engine:
    engine = engine_named(Space(plan.experiment).settings(plan.params).engine)
    if plan.simulated_host is None:
        return engine
    from autotune.engines.simulated.adapter import SimulatedEngine

    return SimulatedEngine(engine, plan.simulated_host)


def _machine_for(plan: TrialPlan) -> Machine:
    ledger = plan.simulated_host / "gpus.json" if plan.simulated_host else None
    return open_machine(ledger)


def _build(plan: TrialPlan, engine: Engine, gpus: tuple[int, ...]) -> Launch:
    place = Place(
        host=LOOPBACK,
        port=free_port(LOOPBACK),
        served_name=f"autotune-{plan.number:04d}",
        trial_dir=plan.trial_dir,
        gpus=gpus,
        cores=plan.cores,
    )
    settings = Space(plan.experiment).settings(plan.params)
    launch = build_launch(settings, engine, place, plan.number)
    write_launch_script(launch, plan.trial_dir / "launch.sh")
    return launch


async def _serve_and_measure(
    plan: TrialPlan,
    launch: Launch,
    engine: Engine,
    machine: Machine,
    timeline: Timeline,
    findings: _Findings,
) -> Measurement:
    experiment = plan.experiment
    if experiment.startup.preflight and (refused := await preflight(engine, launch)) is not None:
        raise TrialFailed(refused)
    async with running(
        launch,
        engine,
        startup=experiment.startup,
        stop=experiment.stop,
        machine=machine,
        timeline=timeline,
    ) as server:
        findings.warnings += server.notes
        findings.effective = await server.guard(engine.effective(server.http, server.log_text()))
        settings = Space(experiment).settings(plan.params)
        findings.overrides = tuple(engine.overrides(settings.args, findings.effective))
        findings.warnings += [_override_warning(override) for override in findings.overrides]
        if plan.neighbours and plan.turn is None:
            findings.warnings.append(_neighbours_warning(plan))
        return await server.guard(_measure_in_turn(plan, server, timeline))


async def _measure_in_turn(plan: TrialPlan, server: Server, timeline: Timeline) -> Measurement:
    experiment = plan.experiment
    if plan.turn is not None:
        timeline.enter(Phase.TURN)
    async with turn(plan.turn):
        return await measure(
            _target(server),
            experiment.workload,
            experiment.measure,
            constraints=experiment.constraints,
            timeline=timeline,
            reference_answers=plan.reference_answers,
            front=plan.front,
            folder=plan.trial_dir,
        )


def _neighbours_warning(plan: TrialPlan) -> str:
    return (
        f"up to {plan.neighbours} other trials ran on this host while it was measured "
        "(exclusive_peak: false)"
    )


def _with_violation(plan: TrialPlan, measurement: Measurement) -> Measurement:
    """The measurement with what the sampler learns of missed limits: by how much."""
    share = worst_violation(plan.experiment.constraints, measurement)
    figures = {**measurement.figures, **({"worst_violation": share} if share > 0 else {})}
    return measurement.model_copy(update={"figures": figures})


def _target(server: Server) -> Target:
    return Target(
        base_url=server.base_url,
        model=server.launch.served_name,
        clock=server.clock,
        engine=server.engine,
        http=server.http,
        log_text=server.log_text,
        headers=server.headers,
    )


def _override_warning(override: Override) -> str:
    return (
        f"{override.setting}: asked {json.dumps(override.asked)}, "
        f"the server runs {json.dumps(override.effective)} ({override.source})"
    )


def _outcome(
    plan: TrialPlan,
    launch: Launch,
    state: State,
    failure: Failure | None,
    measurement: Measurement | None,
    findings: _Findings,
    timeline: Timeline,
) -> Outcome:
    effective = findings.effective
    measured = measurement or Measurement(values={}, spread={}, figures={})
    figures = {**effective.figures, **measured.figures}
    return Outcome(
        number=plan.number,
        state=state,
        engine=launch.engine,
        params=dict(plan.params),
        command=masking.mask_argv(launch.argv),
        env=masking.mask_env(launch.env),
        key=Space(plan.experiment).key(plan.params),
        failure=failure,
        values=measured.values or None,
        spread=measured.spread,
        figures=figures,
        seconds=timeline.finish(),
        warnings=(*findings.warnings, *(with_cause(w, figures) for w in measured.warnings)),
        overrides=findings.overrides,
        effective=dict(effective.settings),
        answers=measured.answers,
        engine_version=effective.version,
        purpose=plan.purpose,
        repeats=plan.repeats,
        simulated=plan.simulated_host is not None,
        machine=plan.machine,
        host=plan.host,
    )


def _utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
