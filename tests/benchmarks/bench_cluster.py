"""Whether four nodes do in a quarter of the time what one does.

    python -m tests.benchmarks.bench_cluster [--trials 40] [--speed 40]

A search on a real Ray cluster of one node, then the configurations that it tried on four (as
known good: two searches would try different ones, and compare those). Each node is a simulated
8-GPU machine, and its first launch of an engine a cold one. `--speed` is how much faster than
real the simulated servers live: low enough that waiting for loads, and not this host's two
cores, decides. Bar: at least 3.5 times faster. What parallel asking costs in hypervolume is
`bench_sampler --workers 1,4`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from autotune.budget import searched
from autotune.front import front_of, points_of
from autotune.records import Value
from autotune.run import read_run
from tests.cluster import cluster

ROOT = Path(__file__).parents[2]
LOADS_ONLY = {
    "workload": {"input_tokens": 128, "output_tokens": 64, "peak_concurrency": 32},
    "measure": {"limit_seconds": 30.0},
    "confirm": {"finalists": 0, "relaunches": 0},
}


def search(
    folder: Path, nodes: int, trials: int, speed: float, tried: Sequence[Mapping[str, Value]] = ()
) -> tuple[float, list[dict[str, Value]]]:
    """Seconds from the first launch to the last outcome, and the configurations in order.

    `tried` takes the place of the file's known-good configurations.
    """
    space = yaml.safe_load((ROOT / "search_spaces" / "kimi.yaml").read_text()) | LOADS_ONLY
    if tried:
        space["known_good"] = [dict(params) for params in tried]
    file = folder / "kimi.yaml"
    file.write_text(yaml.safe_dump(space, sort_keys=False))
    run = folder / f"run{nodes}"
    command = [sys.executable, "-m", "autotune", "search", str(file), "--simulate", "--quiet"]
    command += ["--run-dir", str(run), "--trials", str(trials)]
    with cluster(nodes) as made:
        subprocess.run(
            [*command, "--address", made.address],
            cwd=ROOT,
            check=True,
        )
    launches = [path.stat().st_mtime for path in run.glob("trials/*/launch.sh")]
    ends = [path.stat().st_mtime for path in run.glob("trials/*/outcome.json")]
    outcomes = read_run(run).outcomes
    front = [(round(p.single, 1), round(p.peak)) for p in front_of(points_of(outcomes))]
    phases = [sum(outcome.seconds.values()) for outcome in outcomes]
    print(
        f"{nodes} nodes: {max(ends) - min(launches):.0f} s for {len(ends)} trials, of "
        f"{sum(phases) / len(phases) / speed:.1f} s on average; front {json.dumps(front)}",
        flush=True,
    )
    return max(ends) - min(launches), [o.params for o in searched(outcomes)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--speed", type=float, default=40.0)
    options = parser.parse_args()
    # For the nodes: trials live in the environment of their node's Ray, not in the driver's.
    os.environ["AUTOTUNE_SIM_SPEED"] = str(options.speed)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        one, tried = search(Path(name), 1, options.trials, options.speed)
        four, again = search(Path(name), 4, options.trials, options.speed, tried)
    by_text = [sorted(json.dumps(params, sort_keys=True) for params in p) for p in (tried, again)]
    assert by_text[0] == by_text[1], "the two did not try the same configurations"
    print(f"{one / four:.2f} times faster on four nodes ({time.perf_counter() - begun:.0f} s)")


if __name__ == "__main__":
    main()
