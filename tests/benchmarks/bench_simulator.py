"""What a simulated server costs: seconds to start, memory a process, tokens/s it streams.

    python -m tests.benchmarks.bench_simulator [--json]

Bars: a process at most 60 MB, a start under 1 s, at least 20,000 tokens/s to the load client on
one core. Start and streaming are real time; on a busy machine only their ratio to `python -c pass`
and to the client's own CPU time says something, so both are printed too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.simulated.servers import KIMI, Running, simulated

ARGS = ["--model-path", KIMI, "--tp-size", "8", "--mem-fraction-static", "0.9"]
CONCURRENCY, REQUESTS = 128, 512


def interpreter_seconds() -> float:
    """What an empty Python process costs here and now."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - start


def megabytes(server: Running) -> dict[str, float]:
    """Resident memory of each process of the tree, by title."""
    found = {}
    for pid, title in server.tree().items():
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        found[f"{title[:40]} ({pid})"] = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time of one process."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(folder: Path) -> dict[str, object]:
    """All figures of one server; client and server share one core while it streams."""
    start = time.perf_counter()
    with simulated(folder, "sglang", ARGS) as server:
        server.wait_ready()
        started = time.perf_counter() - start
        os.sched_setaffinity(server.process.pid, {0})
        os.sched_setaffinity(0, {0})
        server.load(CONCURRENCY, CONCURRENCY)
        before, own = cpu_seconds(server.process.pid), time.process_time()
        begin = time.perf_counter()
        run = server.load(REQUESTS, CONCURRENCY)
        seconds = time.perf_counter() - begin
        used = cpu_seconds(server.process.pid) - before
        client = time.process_time() - own
        memory = megabytes(server)
    return {
        "start_seconds": round(started, 3),
        "empty_python_seconds": round(interpreter_seconds(), 3),
        "largest_process_mb": round(max(memory.values()), 1),
        "processes": len(memory),
        "tokens_per_second": round(run.tokens / seconds),
        "tokens_per_server_cpu_second": round(run.tokens / max(used, 1e-3)),
        "tokens_per_client_cpu_second": round(run.tokens / max(client, 1e-3)),
        "failed": len(run.failed),
    }


def main() -> int:
    """Print the figures; status 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    if options.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{name:30} {value}" for name, value in found.items()))
    bars = (
        float(str(found["largest_process_mb"])) <= 60,
        float(str(found["start_seconds"])) < 1.0,
        float(str(found["tokens_per_second"])) >= 20_000,
    )
    return 0 if all(bars) else 1


if __name__ == "__main__":
    sys.exit(main())
