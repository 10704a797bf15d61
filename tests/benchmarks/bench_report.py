"""How long the report of 1,000 trials takes: run with `python -m tests.benchmarks.bench_report`.

The bar is 5 seconds, libraries' import included. CPU seconds are printed too: they tell what a
busy machine hides.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from tests.runs import study, write_run

TRIALS = 1000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_run(Path(folder) / "run", *study(TRIALS))
        start, cpu_start = time.perf_counter(), time.process_time()
        from autotune.report import write_report

        written = Path(write_report(path))
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
        size = written.stat().st_size
    times = {"seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2)}
    print(json.dumps({"trials": TRIALS, **times, "bytes": size}))


if __name__ == "__main__":
    main()
