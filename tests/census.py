"""Counts what trials leave behind: processes by mark, listening ports, GPU memory in a ledger.

For tests and for the kill storm: `leftovers` must become empty, whatever was killed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from autotune import reaper
from autotune.machine import open_machine, port_owners, process_name


@dataclass(frozen=True)
class Leftovers:
    """What is still there, in words."""

    processes: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    gpu_memory: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.processes or self.ports or self.gpu_memory)


def marked(mark: str | None = None) -> set[int]:
    """The living processes that carry a trial's mark (or that one)."""
    states = reaper.process_table()
    found = {pid: reaper.mark_of(pid) for pid, row in states.items() if row[2] not in "ZX"}
    return {pid for pid, its in found.items() if its is not None and mark in (None, its)}


def in_sessions(sessions: Iterable[int]) -> set[int]:
    """The living processes of these sessions: engines retitle themselves and lose their mark."""
    wanted = set(sessions)
    table = reaper.process_table()
    return {p for p, (_, session, state) in table.items() if session in wanted and state != "Z"}


def leftovers(
    *, sessions: Iterable[int] = (), ports: Iterable[int] = (), ledger: Path | None = None
) -> Leftovers:
    """What is left of all trials of this machine."""
    pids = marked() | in_sessions(sessions)
    held = {port: port_owners(port) for port in ports}
    machine = open_machine(ledger) if ledger is not None else None
    return Leftovers(
        tuple(f"{pid} {process_name(pid)}" for pid in sorted(pids)),
        tuple(f"{port} by {sorted(pids)}" for port, pids in held.items() if pids),
        tuple(str(holder) for holder in machine.holders()) if machine is not None else (),
    )


def wait_until_nothing_is_left(
    seconds: float,
    *,
    sessions: Iterable[int] = (),
    ports: Iterable[int] = (),
    ledger: Path | None = None,
) -> Leftovers:
    """The leftovers after at most so many seconds; empty as soon as there are none."""
    sessions, ports = tuple(sessions), tuple(ports)
    end = time.monotonic() + seconds
    while True:
        found = leftovers(sessions=sessions, ports=ports, ledger=ledger)
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.1)
