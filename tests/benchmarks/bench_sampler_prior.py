"""What is prior knowledge worth to the sampler, and what does wrong knowledge cost?

Each contender is told something else: expected effects or the best value of the three most
important parameters (right, or the opposite), or 20 trials of an earlier study (of the same
landscape on another machine, or of an unrelated one). Differences are to the same sampler without
knowledge, on the same landscape and seed; their error is over these pairs.

    python -m tests.benchmarks.bench_sampler_prior --seeds 4 --json prior.jsonl

Landscapes are the synthetic ones of the held-out group, unless others are named; a simulated
machine has no unrelated study. Runs already in the ``--json`` file are not repeated.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import optuna

from tests.benchmarks.bench_sampler import Job, Result, Run, load, problem
from tests.benchmarks.knowledge import INFORMED
from tests.benchmarks.landscapes import HELD_OUT, PROBLEMS

SYNTHETIC = [name for name in HELD_OUT if name.startswith(("smooth", "rugged"))]
MARKS = ("10", "20", "40")


def run(job: Job) -> Result:
    landscape, best = problem(job.landscape)
    return Run(job, landscape, INFORMED[job.sampler])(best)


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Seed by seed, so that an interrupted run has covered everything equally."""
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for start in options.start.split(","):
            for name in options.landscapes.split(","):
                for told in options.told.split(","):
                    if name not in PROBLEMS or told != "unrelated study":
                        yield Job(name, told, start, 1, seed, 40)


def table(results: Sequence[Result], start: str) -> str:
    """Markdown: a row per contender; share of the best hypervolume, and the difference made."""
    lines = [
        f"| told ({start}) | runs | HV@10 | HV@20 | HV@40 | at 10 | at 20 | at 40 | failing |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    runs: dict[str, dict[tuple[str, int], Result]] = {}
    for one in results:
        if one.job.start == start:
            runs.setdefault(one.job.sampler, {})[one.job.landscape, one.job.seed] = one
    lines += [_row(name, told, runs.get("pareto", {})) for name, told in runs.items()]
    return "\n".join(lines)


def _row(
    name: str, told: dict[tuple[str, int], Result], plain: dict[tuple[str, int], Result]
) -> str:
    cells = [name, str(len(told))]
    cells += [f"{np.mean([one.share[mark] for one in told.values()]):.3f}" for mark in MARKS]
    for mark in MARKS:
        gains = [told[at].share[mark] - plain[at].share[mark] for at in told.keys() & plain.keys()]
        error = np.std(gains, ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else np.nan
        cells.append("-" if name == "pareto" else f"{np.mean(gains):+.3f}±{error:.3f}")
    failing = np.mean([one.failing for one in told.values()])
    return "| " + " | ".join([*cells, f"{100 * failing:.0f} %"]) + " |"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What is prior knowledge worth to the sampler?")
    parser.add_argument("--landscapes", default=",".join(SYNTHETIC), help="names")
    parser.add_argument("--told", default=",".join(INFORMED))
    parser.add_argument("--start", default="warm", help="warm, cold")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="results, one per line; read and appended to")
    options = parser.parse_args(argv)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    done = load(options.json)
    for job in jobs(options):
        if job not in done:
            done[job] = run(job)
            if options.json:
                with options.json.open("a") as file:
                    file.write(json.dumps(asdict(done[job])) + "\n")
    print("\n\n".join(table(list(done.values()), start) for start in options.start.split(",")))


if __name__ == "__main__":
    main()
