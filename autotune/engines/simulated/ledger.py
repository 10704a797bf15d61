"""The GPU memory of a simulated machine: one JSON file that its servers write under a lock.

    {"host": "8x-rtx-pro-6000",
     "gpus": [{"index", "name", "uuid", "total_bytes", "power_limit_w", "busy_percent"}],
     "holders": [{"pid", "started", "gpu", "bytes", "mark", "name", "leaked"}]}

A holder whose process is gone holds nothing, as on a real GPU, unless `leaked` is true: then the
memory stays held until `until` (host's clock, seconds since the epoch), for ever if that is null.
`started` is the process's start time in clock ticks, so that a reused pid is not mistaken.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.engines.simulated.hosts import Host

Ledger = dict[str, Any]
Holder = dict[str, Any]


def create(path: Path, host: Host) -> None:
    """Write the ledger of an empty machine, unless there is one of that machine already."""
    if path.exists() and json.loads(path.read_text())["host"] == host.name:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    gpus = [
        {
            "index": index,
            "name": host.gpu,
            "uuid": f"GPU-simulated-{host.name}-{index}",
            "total_bytes": host.memory_bytes,
            "power_limit_w": host.power_limit_w,
            "busy_percent": 0,
        }
        for index in range(host.gpus)
    ]
    _write(path, {"host": host.name, "driver": host.driver, "gpus": gpus, "holders": []})


@contextlib.contextmanager
def locked(path: Path) -> Iterator[Ledger]:
    """The ledger, to be changed in place; written back on leaving. Dead holders are dropped."""
    with path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ledger = json.loads(path.read_text())
        ledger["holders"] = [entry for entry in ledger["holders"] if holds(entry)]
        yield ledger
        _write(path, ledger)


def holds(entry: Holder) -> bool:
    """Whether that entry still holds its memory."""
    if start_ticks(entry["pid"]) == entry.get("started"):
        return True
    until = entry.get("until")
    return bool(entry.get("leaked")) and (until is None or time.time() < until)


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def hold(path: Path, entries: list[Holder], busy_percent: int | None = None) -> None:
    """Set what these processes hold; 0 bytes lets go. An entry is one process on one GPU."""
    keys = {(entry["pid"], entry["gpu"]) for entry in entries}
    with locked(path) as ledger:
        others = [e for e in ledger["holders"] if (e["pid"], e["gpu"]) not in keys]
        mine = [{"leaked": False, **e, "started": start_ticks(e["pid"])} for e in entries]
        ledger["holders"] = others + [entry for entry in mine if entry["bytes"] > 0]
        if busy_percent is not None:
            used = {entry["gpu"] for entry in entries}
            for gpu in ledger["gpus"]:
                if gpu["index"] in used:
                    gpu["busy_percent"] = busy_percent


def held_by_others(path: Path, gpus: list[int], mine: set[int]) -> int:
    """The most bytes that other processes hold on one of `gpus`."""
    with locked(path) as ledger:
        totals = dict.fromkeys(gpus, 0)
        for entry in ledger["holders"]:
            if entry["gpu"] in totals and entry["pid"] not in mine:
                totals[entry["gpu"]] += entry["bytes"]
    return max(totals.values(), default=0)


def _write(path: Path, ledger: Ledger) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(ledger, indent=1))
    os.replace(partial, path)
