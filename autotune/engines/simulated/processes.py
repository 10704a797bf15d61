"""The process tree of a simulated server: titles, ranks, and how they live and die."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
ORPHAN_LIFETIME_SECONDS = 600  # an orphan that nobody found ends by itself
_libc = ctypes.CDLL(None, use_errno=True)


def set_title(title: str) -> None:
    """Show `title` as this process's command line and name, as setproctitle does."""
    raw = title.encode()
    _libc.prctl(_PR_SET_NAME, raw[:15], 0, 0, 0)
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end
    room = end - start
    if start and room > 1:
        ctypes.memmove(start, raw[: room - 1].ljust(room, b"\0"), room)


def die_with_parent() -> None:
    """Have the kernel send SIGKILL to this process when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@dataclass
class Child:
    """A forked process and the pipe that orders it about."""

    title: str
    pid: int
    orders: int  # file descriptor

    def order(self, word: bytes) -> None:
        """`exit` ends it, `kill` has it killed by signal 9, `sigquit` makes it alert its parent."""
        with contextlib.suppress(OSError):
            os.write(self.orders, word + b"\n")


def fork(title: str, *, tied: bool, body: Callable[[int], None] | None = None) -> Child:
    """Fork a child called `title`; `tied` children die with their parent."""
    read, write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(read)
        return Child(title, pid, write)
    os.close(write)
    status = 1
    try:
        if tied:
            die_with_parent()
        if not (tied and os.getppid() != parent):
            set_title(title)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            (body or obey)(read)
        status = 0
    finally:
        os._exit(status)


def obey(orders: int) -> None:
    """What a rank does: wait for an order. Without a parent it lives on, as vLLM's workers do."""
    parent, orphaned = os.getppid(), 0.0
    while orphaned < ORPHAN_LIFETIME_SECONDS:
        ready, _, _ = select.select([orders], [], [], 5.0)
        if not ready:
            orphaned += 5.0 if os.getppid() != parent else 0.0
            continue
        word = os.read(orders, 64)
        if not word:
            time.sleep(ORPHAN_LIFETIME_SECONDS)
        if b"exit" in word or not word:
            return
        if b"kill" in word:
            os.kill(os.getpid(), signal.SIGKILL)
        if b"sigquit" in word:
            os.kill(parent, signal.SIGQUIT)


@dataclass
class Tree:
    """All processes below a launcher."""

    ranks: list[Child] = field(default_factory=list)
    helpers: list[Child] = field(default_factory=list)
    core_pid: int | None = None  # vLLM's EngineCore, parent of the ranks
    deaths: int | None = None  # file descriptor on which EngineCore reports dead workers

    @property
    def pids(self) -> set[int]:
        """Every process of the tree but the launcher."""
        return {child.pid for child in (*self.ranks, *self.helpers)}

    def kill(self) -> None:
        """End every process of the tree at once."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def sglang_tree(tp: int, *, tied: bool) -> Tree:
    """Ranks and a detokenizer, children of the launcher."""
    names = [f"sglang::scheduler_TP{rank}" if tp > 1 else "sglang::scheduler" for rank in range(tp)]
    ranks = [fork(name, tied=tied) for name in names]
    return Tree(ranks, [fork("sglang::detokenizer", tied=tied)])


def vllm_tree(tp: int, *, tied: bool) -> Tree:
    """EngineCore below the launcher, one worker a rank below EngineCore."""
    report_read, report_write = os.pipe()
    ready_read, ready_write = os.pipe()

    def core(orders: int) -> None:
        names = [f"VLLM::Worker_TP{rank}" if tp > 1 else "VLLM::Worker" for rank in range(tp)]
        workers = [fork(name, tied=False) for name in names]
        os.write(ready_write, "".join(f"{w.pid} {w.title}\n" for w in workers).encode())
        _watch_workers(workers, report_write)

    engine = fork("VLLM::EngineCore", tied=False, body=core)
    tracker = fork("python -c from multiprocessing.resource_tracker import main", tied=tied)
    os.close(report_write)
    text = b""
    while text.count(b"\n") < tp:  # the workers keep the other end open, so no end of file
        text += os.read(ready_read, 4096)
    rows = [line.split(" ", 1) for line in text.decode().splitlines()]
    ranks = [Child(title, int(pid), -1) for pid, title in rows]
    return Tree(ranks, [engine, tracker], engine.pid, report_read)


def _watch_workers(workers: list[Child], report: int) -> None:
    """EngineCore's life: report workers that die; end when all have."""
    deadline = time.monotonic() + ORPHAN_LIFETIME_SECONDS
    left = {worker.pid: index for index, worker in enumerate(workers)}
    while left and time.monotonic() < deadline:
        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError):
            os.write(report, f"{left.pop(pid)} {code}\n".encode())
