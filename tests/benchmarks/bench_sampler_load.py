"""What does an ask cost in a study of 2,000 trials with 64 workers?

63 trials are running at each ask, as with 64 workers. Storage is in memory, so that what is
measured is the sampler and Optuna, in CPU seconds of the process.

    python -m tests.benchmarks.bench_sampler_load --landscape kimi-wide --hint
"""

from __future__ import annotations

import argparse
import heapq
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import optuna

from tests.benchmarks.baselines import CONTENDERS
from tests.benchmarks.bench_sampler import Job, Run
from tests.benchmarks.landscapes import make
from tests.benchmarks.landscapes.base import Truth

WINDOWS = (100, 200, 300, 500, 1000, 1500, 2000)


@dataclass
class Costs:
    """CPU seconds of every ask and tell, in order."""

    asks: list[float]
    tells: list[float]


def measure(landscape: str, sampler: str, trials: int, workers: int) -> Costs:
    """One study, warm; trials end in the order of the time they take."""
    run = Run(
        Job(landscape, sampler, "warm", workers, 0, trials), make(landscape), CONTENDERS[sampler]
    )
    costs = Costs([], [])
    running: list[tuple[float, int, optuna.Trial, Truth]] = []
    clock = 0.0
    for number in range(trials):
        if len(running) == workers:
            clock, _, ended, truth = heapq.heappop(running)
            begun = time.process_time()
            run.tell(ended, truth)
            costs.tells.append(time.process_time() - begun)
        begun = time.process_time()
        trial, config = run.ask()
        costs.asks.append(time.process_time() - begun)
        truth = run.landscape.truth(config)
        ends = clock + truth.seconds * run.rng.uniform(0.8, 1.2)
        heapq.heappush(running, (ends, number, trial, truth))
    return costs


def table(costs: Costs) -> str:
    """Markdown: the mean and the slowest ask per stretch of trials."""
    lines = ["| trials | mean ask, CPU s | slowest | mean tell |", "|---|--:|--:|--:|"]
    stretches = [*zip((0, *WINDOWS), WINDOWS, strict=False), (0, len(costs.asks))]
    for begin, end in stretches:
        asks, tells = costs.asks[begin:end], costs.tells[begin:end] or [0.0]
        if asks:
            row = f"{begin} to {end} | {np.mean(asks):.3f} | {max(asks):.2f} | {np.mean(tells):.4f}"
            lines.append(f"| {row} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--landscape", default="kimi-wide")
    parser.add_argument("--hint", action="store_true", help="tell the sampler the space")
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=64)
    options = parser.parse_args(argv)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    sampler = "pareto-hint" if options.hint else "pareto"
    print(table(measure(options.landscape, sampler, options.trials, options.workers)))


if __name__ == "__main__":
    main()
