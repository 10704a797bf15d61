"""Signs of life of a server that starts: is it getting on, or has it stalled?

A load of an hour that moves is healthy, and a minute without a log line is ordinary: kernels are
being compiled, or weights come from a slow disk. So what is watched is whatever can move: log,
bytes read and written, GPU memory, CPU time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
# fmt: off
_COMPILERS = frozenset((
    "nvcc", "cicc", "ptxas", "ninja", "cc1plus", "cc1", "fatbinary", "nvlink", "gcc", "g++",
    "clang",
))
# fmt: on
_MIN_IO_BYTES = 2**20
_MIN_MEMORY_BYTES = 16 * 2**20
# An idle server polls, with a few percent of one core; one that works keeps a core busy.
_MIN_CPU_SHARE = 0.5
_MIN_CPU_SECONDS = 1.0
_BUSY = 0.97


@dataclass(frozen=True)
class Signs:
    """What a server's processes had used when they were looked at."""

    at: float  # the host's own seconds
    log_bytes: int = 0
    io_bytes: int = 0
    gpu_bytes: int = 0
    cpu_seconds: float = 0.0  # used, or waited for while other processes had the cores
    compilers: tuple[str, ...] = ()
    gpus_busy: bool = False  # all of them, all the time

    def moved_since(self, last: Signs) -> bool:
        """Whether the server got on since `last`.

        CPU time alone does not count while every GPU is fully busy: ranks that wait for each
        other for ever spin on both.
        """
        if self.log_bytes != last.log_bytes:
            return True
        if self.io_bytes - last.io_bytes >= _MIN_IO_BYTES:
            return True
        if abs(self.gpu_bytes - last.gpu_bytes) >= _MIN_MEMORY_BYTES:
            return True
        cpu, seconds = self.cpu_seconds - last.cpu_seconds, self.at - last.at
        spins = self.gpus_busy and not self.compilers
        return not spins and cpu >= max(_MIN_CPU_SECONDS, _MIN_CPU_SHARE * seconds)


@dataclass
class Usage:
    """Sums over processes that come and go: what an ended process used still counts.

    A process that computes on a host that others keep busy is not stalled: the time for which it
    waits for a core counts as if it had got one.
    """

    _last: dict[int, tuple[int, float]] = field(default_factory=dict)

    def read(self, pids: Iterable[int]) -> tuple[int, float, tuple[str, ...]]:
        """Bytes read and written, CPU seconds, and the names of compilers that run now."""
        compilers = []
        for pid in pids:
            io, cpu = self._last.get(pid, (0, 0.0))
            wanted = cpu_seconds(pid) + waited_seconds(pid)
            self._last[pid] = (max(io, io_bytes(pid)), max(cpu, wanted))
            if (name := _name(pid)) in _COMPILERS:
                compilers.append(name)
        io = sum(io for io, _ in self._last.values())
        return io, sum(cpu for _, cpu in self._last.values()), tuple(sorted(set(compilers)))


def io_bytes(pid: int) -> int:
    """Bytes a process read and wrote. Cached pages and network file systems count only as
    `rchar`, memory-mapped files only as `read_bytes`, so the larger of the two is taken."""
    try:
        text = Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return 0
    counts = {name: int(value) for name, value in (line.split(": ") for line in text.splitlines())}
    return max(counts["rchar"], counts["read_bytes"]) + counts["write_bytes"]


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, user and system."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0.0
    fields = stat.rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def waited_seconds(pid: int) -> float:
    """For how long a process's first thread had work and no core; 0 where the kernel is silent.

    Of the first thread alone: the others are many, and most of them only poll.
    """
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def all_busy(utilisation: Iterable[float]) -> bool:
    """Whether every GPU is busy all the time; False without GPUs."""
    rates = list(utilisation)
    return bool(rates) and min(rates) >= _BUSY


@dataclass
class Pace:
    """How fast a phase goes: from (seconds, bytes, fraction done) to "4.2 GB/s, about 6 min"."""

    _points: list[tuple[float, int, float | None]] = field(default_factory=list)

    def add(self, now: float, io: int, fraction: float | None) -> None:
        """Note a reading; a fraction that goes back begins a new bar."""
        if fraction is not None and self._points and (self._points[-1][2] or 0.0) > fraction:
            self._points.clear()
        self._points.append((now, io, fraction))
        # Half a minute is long enough for a rate and short enough for a change of pace.
        while len(self._points) > 2 and now - self._points[1][0] > 30.0:
            self._points.pop(0)

    @property
    def text(self) -> str:
        """Rate and time left, as far as they are known; "" if neither is."""
        if not self._points:
            return ""
        return ", ".join(part for part in (self._rate(), self._left()) if part)

    def _rate(self) -> str:
        (start, first, _), (end, last, _) = self._points[0], self._points[-1]
        rate = (last - first) / (end - start) if end > start else 0.0
        return f"{rate / 1e9:.1f} GB/s" if rate >= 5e7 else ""

    def _left(self) -> str:
        known = [(at, fraction) for at, _, fraction in self._points if fraction is not None]
        if len(known) < 2:
            return ""
        (start, first), (end, last) = known[0], known[-1]
        if last <= first or last >= 1.0:
            return ""
        left = (1 - last) * (end - start) / (last - first)
        return f"about {left / 60:.0f} min" if left >= 90 else f"about {max(left, 1):.0f} s"
