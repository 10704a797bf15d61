from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.progress import Pace, Signs, Usage, all_busy, cpu_seconds
from tests.patience import until

STILL = Signs(at=100.0, log_bytes=10, io_bytes=10, gpu_bytes=10, cpu_seconds=1.0)


def later(**changes: object) -> Signs:
    return Signs(**{**STILL.__dict__, "at": 160.0, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"log_bytes": 11},
        {"io_bytes": 10 + 2**20},
        {"gpu_bytes": 10 + 2**25},
        {"cpu_seconds": 40.0},
        {"cpu_seconds": 60.0, "gpus_busy": True, "compilers": ("nvcc",)},
    ],
)
def test_whatever_moves_is_progress(changes: dict[str, object]) -> None:
    assert later(**changes).moved_since(STILL)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"io_bytes": 2000},  # a poll of a socket
        {"gpu_bytes": 2**20},
        {"cpu_seconds": 4.0},  # threads that wait in a loop
        {"cpu_seconds": 481.0, "gpus_busy": True},  # eight ranks spin in a collective
    ],
)
def test_noise_is_no_progress(changes: dict[str, object]) -> None:
    assert not later(**changes).moved_since(STILL)


def test_what_an_ended_process_used_still_counts() -> None:
    work = "data = open('/dev/zero','rb').read(3_000_000); sum(range(3_000_000)); input()"
    process = subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE)
    usage = Usage()
    used: list[tuple[int, float]] = []

    def worked() -> bool:
        io, cpu, _ = usage.read([process.pid])
        used.append((io, cpu))
        return io > 3_000_000 and cpu > 0.01

    until(worked)
    process.communicate(b"\n")
    assert usage.read([]) == (*used[-1], ())


def test_who_computes_on_a_crowded_core_is_getting_on() -> None:
    """Three others share its core: it uses a quarter of it, and wants all of it."""
    core = {min(os.sched_getaffinity(0))}
    crowd = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        for process in crowd:
            os.sched_setaffinity(process.pid, core)
        usage, pids = Usage(), [crowd[0].pid]
        start, first = time.monotonic(), usage.read(pids)[1]
        until(lambda: cpu_seconds(pids[0]) > 0.5)
        wanted = usage.read(pids)[1] - first
        assert wanted > 0.8 * (time.monotonic() - start)
    finally:
        for process in crowd:
            process.kill()
            process.wait()


def test_a_pace_says_how_fast_and_how_long() -> None:
    pace = Pace()
    assert pace.text == ""
    for second in range(0, 20, 2):
        pace.add(float(second), int(4.2e9 * second), second / 400)
    assert pace.text == "4.2 GB/s, about 6 min"


def test_a_new_bar_begins_a_new_pace() -> None:
    pace = Pace()
    pace.add(0.0, 0, 0.1)
    pace.add(10.0, 0, 0.9)
    pace.add(11.0, 0, 0.0)
    assert pace.text == ""


def test_only_a_machine_that_is_busy_throughout_is_busy() -> None:
    assert all_busy([1.0, 0.99])
    assert not all_busy([1.0, 0.5])
    assert not all_busy([])


def test_a_process_that_is_gone_has_used_nothing() -> None:
    assert Usage().read([2**22 - 1]) == (0, 0.0, ())
    assert Path("/proc/self/io").exists()
