"""What autotune itself costs: time beside a trial's own phases, start of the commands, memory.

    python -m tests.benchmarks.bench_overhead            # a simulated study of 10 trials
    python -m tests.benchmarks.bench_overhead RUN        # a run that is there, on a real engine

Bars: at most 2 s a trial beside the server's own start, warm-up, measured requests and stop;
`--help` under 0.5 s, `check` under 1.5 s; at most 400 MB in the driver.

A trial's phases are timed on the server's clock, so for a simulated run (whose clock is faster)
only the time between two trials is autotune's; for a real one it is all of what is not a phase.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
SPACE = ROOT / "search_spaces" / "kimi.yaml"


def command_seconds(*arguments: str, times: int = 3) -> float:
    """Median wall time of an autotune command."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        command = [sys.executable, "-m", "autotune", *arguments]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        taken.append(time.perf_counter() - start)
    return median(taken)


def added_seconds(run: Path) -> list[float]:
    """Seconds of each trial, and of the gap before it, that are no phase of the server."""
    outcomes = [json.loads(p.read_text()) for p in sorted(run.glob("trials/*/outcome.json"))]
    added, previous = [], None
    for outcome in outcomes:
        start, end = (datetime.fromisoformat(outcome[k]) for k in ("started_at", "finished_at"))
        gap = (start - previous).total_seconds() if previous else 0.0
        added.append(gap + (0.0 if outcome["simulated"] else _beside_phases(outcome, start, end)))
        previous = end
    return added


def _beside_phases(outcome: dict[str, Any], start: datetime, end: datetime) -> float:
    own = outcome["seconds"].get("prepare", 0.0)
    phases: float = sum(outcome["seconds"].values())
    return max((end - start).total_seconds() - phases, 0.0) + float(own)


def simulated_run(folder: Path) -> tuple[Path, float]:
    """A simulated study of ten trials; returns its run directory and the driver's peak MB."""
    run = folder / "run"
    command = [sys.executable, "-m", "autotune", "search", str(SPACE), "--simulate"]
    command += ["--trials", "10", "--run-dir", str(run), "--quiet"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return run, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 1:
            run, memory = Path(sys.argv[1]), None
        else:
            run, memory = simulated_run(Path(folder))
        added = added_seconds(run)
        print(f"added to a trial: median {median(added):.1f} s, most {max(added):.1f} s (bar 2 s)")
    if memory is not None:
        print(f"driver: {memory:.0f} MB at most (bar 400 MB)")
    print(f"--help: {command_seconds('--help'):.2f} s (bar 0.5 s)")
    print(f"check: {command_seconds('check', str(SPACE)):.2f} s (bar 1.5 s)")


if __name__ == "__main__":
    main()
