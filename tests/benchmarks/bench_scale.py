"""What the driver costs with many nodes: real Ray actors, made-up trials.

    python -m tests.benchmarks.bench_scale [--nodes 64] [--trials 2000] [--seconds 30]

Each node is a real actor that answers what a trial of the wide Kimi landscape gives, after about
so many seconds; with `--processes N`, several nodes share an actor's process, because a thousand
would not fit this host. Everything else is the product's: conductor, ledger, SQLite, sampler, run
directory. Bar: at most 0.3 s of the driver's CPU a trial at 64 nodes. Printed in between: the
driver's CPU and the wall time a trial, the ask alone, memory, and the size of the database.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import ray

from autotune.cluster import start_ray
from autotune.experiment import load_experiment
from autotune.fingerprint import Fingerprint
from autotune.hosts import Hosts
from autotune.ledger import Asked
from autotune.opening import open_new
from autotune.placement import locked
from autotune.records import (
    PEAK,
    SINGLE,
    Failure,
    FailureKind,
    Outcome,
    Phase,
    Progress,
)
from autotune.rundir import RunDir
from autotune.sampler import ParetoSampler
from autotune.seeding import priors_of
from autotune.space import Space
from autotune.study import Conductor
from autotune.trial import TrialPlan
from autotune.workers import HostFacts, Slot, SlotRequest, TrialResult
from tests.benchmarks.landscapes import make

LANDSCAPE = "kimi-wide"
FILE = Path(__file__).parent / "landscapes" / "kimi_wide.yaml"
NOISE = 0.01
PHASES = (Phase.LOAD, Phase.CAPTURE, Phase.SINGLE, Phase.PEAK)


class MadeUpWorker:
    """Answers like a slot, without a server."""

    def __init__(self, seconds: float, seed: int) -> None:
        self._seconds, self._random = seconds, random.Random(seed)
        self._landscape = make(LANDSCAPE)
        self._trial = 0

    async def run(self, plan: TrialPlan, exclusive: bool) -> TrialResult:
        self._trial = plan.number
        await asyncio.sleep(self._seconds * self._random.uniform(0.7, 1.3))
        return TrialResult(self._outcome(plan))

    async def status(self) -> Progress:
        phase = self._random.choice(PHASES)
        return Progress(trial=self._trial, phase=phase, detail="made up", phase_seconds=1.0)

    async def cancel(self) -> None: ...

    def _outcome(self, plan: TrialPlan) -> Outcome:
        space, truth = Space(plan.experiment), self._landscape.truth(dict(plan.params))
        settings = space.settings(plan.params)
        fields: dict[str, Any] = {}
        if truth.values is None:
            kind = FailureKind(truth.failure_kind or "crashed")
            failure = Failure(kind=kind, phase=Phase.LOAD, cause="made up", excerpt=("a",) * 20)
            fields = {"state": "infeasible", "failure": failure}
        else:
            values = [value * self._random.gauss(1.0, NOISE) for value in truth.values]
            fields = {
                "state": "ok",
                "values": dict(zip((SINGLE, PEAK), values, strict=True)),
                "spread": {SINGLE: values[0] * NOISE, PEAK: values[1] * NOISE},
                "figures": {f"p{n}_itl_ms": 1.0 for n in (50, 99)},
            }
        return Outcome(
            number=plan.number,
            engine=settings.engine,
            params=dict(plan.params),
            command=settings.command,
            env={},
            key=space.key(plan.params),
            seconds=dict.fromkeys(PHASES, truth.seconds / len(PHASES)),
            purpose=plan.purpose,
            repeats=plan.repeats,
            simulated=True,
            **fields,
        )


_OPTIONS = {"num_cpus": 0, "max_concurrency": 200}
MadeUpActor: Any = ray.remote(**_OPTIONS)(MadeUpWorker)  # type: ignore[call-overload]  # dict options


def slots(count: int, processes: int, seconds: float, request: SlotRequest) -> list[Slot]:
    """So many nodes, on so many actors."""
    alike = Fingerprint(hostname="made-up", settings={"gpu.count": "8"}, engine_versions={})
    actors = [MadeUpActor.remote(seconds, seed) for seed in range(processes)]
    ray.get([actor.status.remote() for actor in actors])
    return [
        Slot(
            actors[n % processes],
            HostFacts(f"{n:08d}", f"n{n}", tuple(range(8)), {}, (), alike, (), 0),
            request,
        )
        for n in range(count)
    ]


class Meter:
    """Prints what the driver has cost so far, every so many trials."""

    def __init__(self, conductor: Conductor, folder: Path, every: int) -> None:
        self.conductor, self.folder, self.every = conductor, folder, every
        self.asks: list[float] = []
        self._ask = conductor.ledger.ask
        conductor.ledger.ask = self.ask  # type: ignore[method-assign]
        self._cpu, self._wall, self._next = _cpu(), time.perf_counter(), every
        print("trials | driver CPU s a trial | wall s a trial | ask s (CPU) | RSS MB | study.db MB")

    def ask(self) -> Asked | None:
        begun = time.process_time()
        try:
            return self._ask()
        finally:
            self.asks.append(time.process_time() - begun)

    def look(self) -> None:
        """Print a line when another `every` trials are done."""
        if len(self.conductor.outcomes) < self._next:
            return
        self._next += self.every
        cpu, wall = _cpu(), time.perf_counter()
        size = (self.folder / "study.db").stat().st_size / 2**20
        memory = psutil.Process().memory_info().rss / 2**20
        ask = sum(self.asks[-self.every :]) / self.every
        print(
            f"{len(self.conductor.outcomes):6} | {(cpu - self._cpu) / self.every:.3f} | "
            f"{(wall - self._wall) / self.every:.3f} | {ask:.3f} | {memory:.0f} | {size:.1f}",
            flush=True,
        )
        self._cpu, self._wall = cpu, wall


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def conduct(folder: Path, options: argparse.Namespace) -> None:
    nodes, trials = options.nodes, options.trials
    run = RunDir(folder)
    experiment = load_experiment(FILE)
    budget = experiment.budget.model_copy(update={"trials": trials, "consecutive_failures": 1000})
    experiment = experiment.model_copy(update={"budget": budget})
    space = Space(experiment)
    sampler = ParetoSampler(0, space=space, priors=priors_of(space), budget=trials)
    run.create()
    with locked(run):
        opened = open_new(run, experiment, FILE, None, sampler)
        request = SlotRequest("", 8, folder, experiment, "", None, 0, None)
        meter: list[Meter] = []
        conductor = Conductor(
            run=run,
            experiment=experiment,
            space=space,
            ledger=opened.ledger,
            hosts=Hosts(slots(nodes, options.processes or nodes, options.seconds, request)),
            seed=0,
            simulated_host=None,
            show=lambda state: meter[0].look(),
        )
        meter.append(Meter(conductor, folder, options.every))
        begun, cpu = time.perf_counter(), _cpu()
        await conductor.conduct()
        done = len(conductor.outcomes)
        print(
            f"{nodes} nodes, {done} trials: {(_cpu() - cpu) / done:.3f} s of driver CPU and "
            f"{(time.perf_counter() - begun) / done:.3f} s of wall time a trial"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--processes", type=int, default=0)
    parser.add_argument("--every", type=int, default=250)
    options = parser.parse_args()
    start_ray(None, ())
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(conduct(Path(name) / "run", options))
    ray.shutdown()


if __name__ == "__main__":
    main()
