"""Counts what the trials of a run left behind: processes, listening ports, GPU memory.

For tests and for the kill storm: `leftovers` must become empty, whatever was killed. What other
studies run on the same host is not counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from autotune import reaper
from autotune.leash import PROCESSES_NAME
from autotune.machine import open_machine, port_owners, process_name
from autotune.readings import is_reaper


@dataclass(frozen=True)
class Leftovers:
    """What is still there, in words."""

    processes: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    gpu_memory: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.processes or self.ports or self.gpu_memory)


def marked(mark: str) -> set[int]:
    """The living processes that carry this mark."""
    table = reaper.process_table()
    return {p for p, row in table.items() if row[2] not in "ZX" and reaper.mark_of(p) == mark}


def in_sessions(sessions: Iterable[int]) -> set[int]:
    """The living processes of these sessions: a process that retitles itself may lose its mark."""
    wanted = set(sessions)
    table = reaper.process_table()
    return {
        p for p, (_, session, state) in table.items() if session in wanted and state not in "ZX"
    }


def leftovers(trials: Path, ledger: Path | None = None, *, reapers: bool = True) -> Leftovers:
    """What is left of all trials below this folder; `reapers`: those that still see to it too."""
    facts = [json.loads(path.read_text()) for path in trials.rglob(PROCESSES_NAME)]
    pids = in_sessions(fact["server"] for fact in facts)
    for fact in facts:
        pids |= marked(fact["mark"])
        if reapers and is_reaper(fact["reaper"]):
            pids.add(fact["reaper"])
    ports = [fact["port"] for fact in facts]
    held = {port: owners for port in ports if (owners := port_owners(port) & pids)}
    machine = open_machine(ledger) if ledger is not None else None
    return Leftovers(
        tuple(f"{pid} {process_name(pid)}" for pid in sorted(pids)),
        tuple(f"{port} by {sorted(owners)}" for port, owners in held.items()),
        tuple(str(holder) for holder in machine.holders()) if machine is not None else (),
    )


def wait_until_nothing_is_left(
    seconds: float, trials: Path, ledger: Path | None = None
) -> Leftovers:
    """The leftovers after at most so many seconds; empty as soon as there are none."""
    end = time.monotonic() + seconds
    while (found := leftovers(trials, ledger)) and time.monotonic() < end:
        time.sleep(0.1)
    return found
