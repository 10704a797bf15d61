"""How long the report of 1,000 trials takes: run with `python -m tests.benchmarks.bench_report`.

The bar is 5 seconds, libraries' import included; printed as seconds and as JSON.
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
        start = time.perf_counter()
        from autotune.report import write_report

        written = Path(write_report(path))
        seconds = time.perf_counter() - start
        size = written.stat().st_size
    print(json.dumps({"trials": TRIALS, "seconds": round(seconds, 2), "bytes": size}))


if __name__ == "__main__":
    main()
