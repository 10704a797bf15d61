"""Which CPU cores belong to which slot of a host: those nearest to its GPUs, and no others'.

Several servers on one host that may all run anywhere slow each other down; a server whose
threads run on the other socket's cores reaches its GPU across the link between the sockets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SYSTEM = Path("/sys/devices/system")


@dataclass(frozen=True)
class Core:
    """One physical core: its NUMA node and its hardware threads' CPU numbers."""

    node: int
    cpus: tuple[int, ...]


def read_cores(system: Path = _SYSTEM) -> tuple[Core, ...]:
    """The physical cores that this process may use, those of one NUMA node side by side.

    Source: /sys/devices/system. A host that hides it is taken for one NUMA node.
    """
    allowed = os.sched_getaffinity(0)
    node_of = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in sorted(system.glob("node/node[0-9]*"))
        for cpu in _listed(folder / "cpulist")
    }
    cores = set()
    for cpu in allowed:
        siblings = _listed(system / f"cpu/cpu{cpu}/topology/thread_siblings_list") or {cpu}
        cores.add(Core(node_of.get(cpu, 0), tuple(sorted(siblings & allowed))))
    return tuple(sorted(cores, key=lambda core: (core.node, core.cpus)))


def _listed(path: Path) -> set[int]:
    """The numbers of a kernel list such as `0-3,8`."""
    try:
        parts = path.read_text().strip().split(",")
        ranges = [part.partition("-") for part in parts if part]
        return {n for low, _, high in ranges for n in range(int(low), int(high or low) + 1)}
    except (OSError, ValueError):
        return set()


def shares(
    cores: Sequence[Core], slots: Sequence[Mapping[int, int | None]]
) -> list[tuple[int, ...]]:
    """The CPU numbers of each slot of one host; empty tuples where there is nothing to share.

    Each slot is given as GPU -> its NUMA node (None if unknown). Every GPU gets an equal part
    of its own node's cores. A host whose GPUs do not say where they are is taken for one node;
    one with fewer cores than GPUs in use is left alone.
    """
    nodes = {node for slot in slots for node in slot.values()}
    known = {core.node for core in cores}
    if not nodes <= known:  # also where a GPU says None
        cores = [Core(0, core.cpus) for core in cores]
        slots = [dict.fromkeys(slot, 0) for slot in slots]
    parts: dict[int, list[int]] = {}  # GPU -> CPU numbers
    for node in {node for slot in slots for node in slot.values()}:
        gpus = [gpu for slot in slots for gpu, near in slot.items() if near == node]
        near_cores = [core for core in cores if core.node == node]
        for index, gpu in enumerate(gpus):
            low, high = (len(near_cores) * i // len(gpus) for i in (index, index + 1))
            parts[gpu] = [cpu for core in near_cores[low:high] for cpu in core.cpus]
    if not all(parts.values()):
        return [() for _ in slots]
    return [tuple(sorted(cpu for gpu in slot for cpu in parts[gpu])) for slot in slots]
