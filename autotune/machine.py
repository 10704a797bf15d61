"""The machine a trial runs on: its GPUs, who holds their memory, its ports, its fingerprint.

Three kinds: GPUs read through NVML, a simulated host whose GPUs are a ledger file
(`engines/simulated/ledger.py`), and a host without GPUs.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from autotune import reaper
from autotune.engines.simulated.ledger import holds
from autotune.fingerprint import SIMULATED, Fingerprint, fingerprint_of
from autotune.gpus import VISIBLE, Gpu, Holder, NvmlReader, chosen, open_nvml

__all__ = ["Fingerprint", "Gpu", "Holder", "Machine", "free_port", "open_machine"]


class Machine(ABC):
    """What the server lifecycle asks about the host. Sizes in bytes, GPUs by physical index."""

    @abstractmethod
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs, in PCI bus order."""

    def visible(self) -> tuple[Gpu, ...]:
        """The GPUs that trials may use: those that CUDA_VISIBLE_DEVICES names, if it is set."""
        return chosen(self.gpus(), os.environ.get(VISIBLE))

    def gpus_for(self, gpus_per_trial: int) -> tuple[int, ...]:
        """The physical indices of the GPUs that trials may use; trials without GPUs use none."""
        return tuple(gpu.index for gpu in self.visible()) if gpus_per_trial else ()

    @abstractmethod
    def memory_used(self) -> dict[int, int]:
        """Bytes in use on each GPU, by whoever."""

    @abstractmethod
    def holders(self) -> tuple[Holder, ...]:
        """The processes that hold GPU memory, as far as they can be seen."""

    def utilisation(self) -> dict[int, float]:
        """Share of time each GPU was busy lately, 0-1; empty where unknown."""
        return {}

    def fingerprint(self, commands: Mapping[str, Sequence[str]]) -> Fingerprint:
        """What decides speed on this host; `commands` are the engines' (name -> command).

        Takes about a second for each engine, whose interpreter is asked for versions.
        """
        return fingerprint_of(self.gpus(), commands)


class NoGpuMachine(Machine):
    """A host without GPUs, or without NVIDIA's driver."""

    def gpus(self) -> tuple[Gpu, ...]:
        return ()

    def memory_used(self) -> dict[int, int]:
        return {}

    def holders(self) -> tuple[Holder, ...]:
        return ()


class NvmlMachine(Machine):
    """Real GPUs."""

    def __init__(self, reader: NvmlReader) -> None:
        self._reader = reader

    def gpus(self) -> tuple[Gpu, ...]:
        return self._reader.gpus()

    def memory_used(self) -> dict[int, int]:
        return self._reader.memory_used()

    def holders(self) -> tuple[Holder, ...]:
        return tuple(
            Holder(pid=pid, name=process_name(pid), gpu=gpu, bytes=size, mark=reaper.mark_of(pid))
            for gpu, pid, size in self._reader.processes()
        )

    def utilisation(self) -> dict[int, float]:
        return self._reader.utilisation()


class LedgerMachine(Machine):
    """A simulated host: GPUs are entries of a file that simulated servers write."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def gpus(self) -> tuple[Gpu, ...]:
        content = self._read()
        return tuple(
            Gpu(
                index=entry["index"],
                name=entry["name"],
                memory_bytes=entry["total_bytes"],
                uuid=entry.get("uuid", ""),
                driver=content.get("driver"),
                power_limit_w=entry.get("power_limit_w"),
            )
            for entry in content["gpus"]
        )

    def visible(self) -> tuple[Gpu, ...]:
        return self.gpus()  # CUDA knows nothing of simulated ones

    def fingerprint(self, commands: Mapping[str, Sequence[str]]) -> Fingerprint:
        """With the name of what is simulated: two of them can have the same GPUs, and so can a
        real machine."""
        found = super().fingerprint(commands)
        settings = found.settings | {SIMULATED: str(self._read().get("host", ""))}
        return found.model_copy(update={"settings": dict(sorted(settings.items()))})

    def memory_used(self) -> dict[int, int]:
        content = self._read()
        used = {int(entry["index"]): 0 for entry in content["gpus"]}
        for holder in _holders(content):
            used[holder.gpu] += holder.bytes
        return used

    def holders(self) -> tuple[Holder, ...]:
        return _holders(self._read())

    def utilisation(self) -> dict[int, float]:
        return {e["index"]: e.get("busy_percent", 0) / 100 for e in self._read()["gpus"]}

    def _read(self) -> dict[str, Any]:
        """The ledger; it is always replaced as a whole."""
        try:
            content: dict[str, Any] = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {"gpus": [], "holders": []}
        return content


def _holders(content: Mapping[str, Any]) -> tuple[Holder, ...]:
    return tuple(
        Holder(
            pid=entry["pid"],
            name=entry.get("name") or process_name(entry["pid"]),
            gpu=entry["gpu"],
            bytes=entry["bytes"],
            mark=entry.get("mark"),
        )
        for entry in content["holders"]
        if holds(entry)
    )


def open_machine(ledger: Path | None = None) -> Machine:
    """The machine: a simulated host's ledger if given, else its GPUs, else one without."""
    if ledger is not None:
        return LedgerMachine(ledger)
    return _real_machine()


@functools.cache
def _real_machine() -> Machine:
    reader = open_nvml()
    return NvmlMachine(reader) if reader is not None else NoGpuMachine()


# -- processes and ports ----------------------------------------------------------------------
def process_name(pid: int) -> str:
    """A process's name as a person knows it, "?" if it is gone or hidden."""
    try:
        words = psutil.Process(pid).cmdline()
        return " ".join(words).strip()[:80] or psutil.Process(pid).name()
    except psutil.Error:
        return "?"


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nothing listens on and that lies outside the range the kernel hands out.

    A port of the kernel's own range could be taken by any outgoing connection while a model
    loads for ten minutes. 234 ports above it stay free too, as SGLang's data-parallel ranks
    take port + 233.
    """
    low, high = _ephemeral_range()
    start = 20_000 + (os.getpid() * 7919 + time.time_ns() // 1000) % 8_000
    for offset in range(10_000):
        port = 10_000 + (start + offset * 17 - 10_000) % 20_000
        taken = low <= port <= high or low <= port + 233 <= high
        if not taken and _is_free(host, port) and _is_free(host, port + 233):
            return port
    with socket.socket() as any_port:
        any_port.bind((host, 0))
        return int(any_port.getsockname()[1])


def _ephemeral_range() -> tuple[int, int]:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32_768, 60_999


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def port_answers(host: str, port: int) -> bool:
    """Whether anything accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0


def port_owners(port: int) -> set[int]:
    """The pids that listen on a TCP port, as far as they can be seen."""
    inodes = _listening_inodes(port)
    if not inodes:
        return set()
    links = {f"socket:[{inode}]" for inode in inodes}
    return {pid for pid in psutil.pids() if not links.isdisjoint(_descriptors(pid))}


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _descriptors(pid: int) -> set[str]:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return {_target(entry.path) for entry in entries}
    except OSError:
        return set()


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
