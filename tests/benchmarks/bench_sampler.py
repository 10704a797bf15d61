"""How much hypervolume do 10, 20, 40 and 60 trials of a sampler find?

Each run is one seed of one sampler on one landscape: ``warm`` measures three known-good
configurations first, ``cold`` none; with 4 workers the trials complete out of order, by the time
they take. Failures are recorded as constraints, with the worst values so far. Hypervolume is
noiseless, above (0, 0), as a share of the best that a long evolutionary search without noise
finds.

    python -m tests.benchmarks.bench_sampler --landscapes held-out --seeds 20 --json runs.jsonl

Runs already in the ``--json`` file are not repeated. Printed are two markdown
tables: against each rival on shared runs, and everything.
"""

from __future__ import annotations

import argparse
import heapq
import importlib.util
import json
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

# One thread: the machine's other core belongs to somebody else, and small matrices gain nothing.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import optuna

from tests.benchmarks.baselines import CONTENDERS, Contender
from tests.benchmarks.landscapes import GROUPS, make
from tests.benchmarks.landscapes.base import (
    BestKnown,
    Config,
    Landscape,
    Point,
    Truth,
    hypervolume,
    suggest,
)
from tests.benchmarks.landscapes.simulated import Simulated

MARKS = (10, 12, 20, 40, 60)
SEARCH, SLOW_SEARCH = 24_000, 5_000  # noiseless evaluations that find the best known front


@dataclass(frozen=True)
class Job:
    landscape: str
    sampler: str
    start: str
    workers: int
    seed: int
    trials: int


@dataclass(frozen=True)
class Result:
    """Hypervolume share after each mark, failing share after the first ten trials, seconds."""

    job: Job
    share: dict[str, float]
    failing: float
    ask_seconds: float
    slowest_ask_seconds: float


class Run:
    """One study: asks, looks up the truth, adds noise, tells in the order of completion."""

    def __init__(self, job: Job, landscape: Landscape, contender: Contender) -> None:
        self.job, self.landscape, self.flat = job, landscape, contender.flat
        sampler = contender.build(job.seed, landscape, job.trials)
        self.study = optuna.create_study(directions=["maximize"] * 2, sampler=sampler)
        if job.start == "warm":
            for config in landscape.known_good:
                self.study.enqueue_trial(config)
        self.rng = np.random.default_rng([job.seed, 5])
        self.worst = [np.inf, np.inf]
        self.points: list[Point] = []
        self.failed: list[bool] = []
        self.asks: list[float] = []

    def __call__(self, best: float) -> Result:
        share: dict[str, float] = {}
        running: list[tuple[float, int, optuna.Trial, Truth]] = []
        clock, asked = 0.0, 0
        while len(self.failed) < self.job.trials:
            while len(running) < self.job.workers and asked < self.job.trials:
                trial, config = self.ask()
                truth = self.landscape.truth(config)
                ends = clock + truth.seconds * self.rng.uniform(0.8, 1.2)
                heapq.heappush(running, (ends, asked, trial, truth))
                asked += 1
            clock, _, trial, truth = heapq.heappop(running)
            self.tell(trial, truth)
            if len(self.failed) in MARKS:
                share[str(len(self.failed))] = hypervolume(self.points) / best
        late = self.failed[10:] or [False]
        return Result(
            self.job, share, float(np.mean(late)), float(np.mean(self.asks)), max(self.asks)
        )

    def ask(self) -> tuple[optuna.Trial, Config]:
        """The next trial and its configuration."""
        begun = time.perf_counter()
        trial = self.study.ask()
        if self.flat:
            every = {n: trial._suggest(n, d) for n, d in self.landscape.distributions.items()}
            config = dict(self.landscape.active(every))
        else:
            config = suggest(self.landscape, trial)
        self.asks.append(time.perf_counter() - begun)
        return trial, config

    def tell(self, trial: optuna.Trial, truth: Truth) -> None:
        """How it ended, with noise."""
        trial.set_user_attr("trial_seconds", truth.seconds)
        self.failed.append(truth.values is None)
        if truth.values is None:
            trial.set_user_attr("failure_kind", truth.failure_kind)
            trial.set_user_attr("failure_phase", truth.failure_phase)
            trial.set_constraint("failed", 1.0)
            self.study.tell(trial, [0.0 if np.isinf(v) else v for v in self.worst])
            return
        noise = np.exp(self.landscape.noise * self.rng.normal(size=2))
        values = [float(v * n) for v, n in zip(truth.values, noise, strict=True)]
        self.worst = [min(a, b) for a, b in zip(self.worst, values, strict=True)]
        self.points.append(truth.values)
        trial.set_constraint("failed", 0.0)
        self.study.tell(trial, values)


@cache
def problem(name: str) -> tuple[Landscape, float]:
    landscape = make(name)
    evaluations = SLOW_SEARCH if isinstance(landscape, Simulated) else SEARCH
    return landscape, BestKnown(landscape, evaluations).hypervolume()


def run(job: Job) -> Result:
    landscape, best = problem(job.landscape)
    return Run(job, landscape, CONTENDERS[job.sampler])(best)


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    for name in _names(options.landscapes):
        for sampler in options.samplers.split(","):
            slow = CONTENDERS[sampler].slow
            seeds = options.slow_seeds if slow else options.seeds
            trials = min(options.trials, 40) if slow else options.trials
            if slow and importlib.util.find_spec("torch") is None:
                continue
            for start in options.start.split(","):
                for workers in (int(w) for w in options.workers.split(",")):
                    for seed in range(options.first_seed, options.first_seed + seeds):
                        yield Job(name, sampler, start, workers, seed, trials)


def _names(text: str) -> Sequence[str]:
    return [name for part in text.split(",") for name in GROUPS.get(part, (part,))]


def load(path: Path | None) -> dict[Job, Result]:
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    results = [Result(**{**row, "job": Job(**row["job"])}) for row in rows]
    return {result.job: result for result in results}


def table(results: Sequence[Result]) -> str:
    """Markdown: one row per landscape, sampler, start and number of workers."""
    lines = [
        "| landscape | sampler | start | workers | seeds | HV@10 | HV@12 | HV@20 | HV@40 | HV@60 "
        "| failing after 10 | s/ask | slowest |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    groups: dict[tuple[str, str, str, int], list[Result]] = {}
    for one in results:
        job = one.job
        groups.setdefault((job.landscape, job.sampler, job.start, job.workers), []).append(one)
    lines += [_line(name, rows) for name, rows in sorted(groups.items(), key=_order)]
    return "\n".join(lines)


def _order(item: tuple[tuple[str, str, str, int], list[Result]]) -> Any:
    (landscape, _, start, workers), rows = item
    final = np.mean([row.share.get("40", 0.0) for row in rows])
    return landscape, start != "warm", workers, -final


def _line(name: tuple[str, str, str, int], rows: Sequence[Result]) -> str:
    cells = [str(part) for part in name]
    cells.append(str(len({row.job.seed for row in rows})))
    for mark in MARKS:
        values = [row.share[str(mark)] for row in rows if str(mark) in row.share]
        spread = np.std(values) / np.sqrt(max(1, len(values)))
        cells.append(f"{np.mean(values):.3f}±{spread:.3f}" if values else "-")
    cells.append(f"{100 * np.mean([row.failing for row in rows]):.0f} %")
    cells.append(f"{np.mean([row.ask_seconds for row in rows]):.3f}")
    cells.append(f"{max(row.slowest_ask_seconds for row in rows):.2f}")
    return "| " + " | ".join(cells) + " |"


def paired(results: Sequence[Result], ours: str = "pareto") -> str:
    """Markdown: ``ours`` over each rival at 40 trials, on the landscapes and seeds both have.

    Another number of workers counts as a rival too: the last rows say what parallelism costs.
    """
    lines = [
        "| start | rival | landscapes | runs | ours | rival | ratio | ours at 12 |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    runs: dict[tuple[str, str, int], dict[tuple[str, int], Result]] = {}
    for one in results:
        job = one.job
        if "40" in one.share:
            group = runs.setdefault((job.start, job.sampler, job.workers), {})
            group[job.landscape, job.seed] = one
    for (start, sampler, workers), theirs in sorted(runs.items()):
        mine = runs.get((start, ours, 1), {})
        shared = sorted(set(mine) & set(theirs))
        if shared and (sampler, workers) != (ours, 1) and (workers == 1 or sampler == ours):
            name = sampler if workers == 1 else f"{ours}, {workers} workers"
            lines.append(_pair(start, name, [(mine[at], theirs[at]) for at in shared]))
    return "\n".join(lines)


def _pair(start: str, rival: str, pairs: Sequence[tuple[Result, Result]]) -> str:
    names = sorted({one.job.landscape for one, _ in pairs})
    by_name = [[p for p in pairs if p[0].job.landscape == name] for name in names]
    # Landscapes weigh the same, whatever the number of seeds.
    ours = np.mean([np.mean([a.share["40"] for a, _ in group]) for group in by_name])
    theirs = np.mean([np.mean([b.share["40"] for _, b in group]) for group in by_name])
    early = np.mean([np.mean([a.share["12"] for a, _ in group]) for group in by_name])
    cells = [start, rival, str(len(names)), str(len(pairs))]
    cells += [f"{ours:.3f}", f"{theirs:.3f}", f"{ours / theirs:.2f}", f"{early:.3f}"]
    return "| " + " | ".join(cells) + " |"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    names = f"{', '.join(GROUPS)}, or names"
    parser.add_argument("--landscapes", default="held-out", help=names)
    parser.add_argument("--samplers", default=",".join(CONTENDERS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--slow-seeds", type=int, default=5, help="seeds of GPSampler")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--start", default="warm,cold")
    parser.add_argument("--workers", default="1")
    parser.add_argument("--table", action="store_true", help="only show what --json holds")
    parser.add_argument("--json", type=Path, help="results, one per line; read and appended to")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    done = load(options.json)
    # Seed by seed, so that an interrupted run has covered everything equally.
    wanted = [] if options.table else sorted(jobs(options), key=lambda job: job.seed)
    for job in wanted:
        if job not in done:
            done[job] = run(job)
            if options.json:
                with options.json.open("a") as file:
                    file.write(json.dumps(asdict(done[job])) + "\n")
    if importlib.util.find_spec("torch") is None and "gp" in options.samplers.split(","):
        print("GPSampler: torch is not installed, only runs recorded before are shown\n")
    results = list(done.values()) if options.json else [done[job] for job in wanted]
    print(f"{paired(results)}\n\n{table(results)}")


if __name__ == "__main__":
    main()
