"""After the stop: ports, GPU memory and shared memory must be back to what they were.

What is not ours is never touched; it is named.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from autotune import reaper
from autotune.errors import MachineNotClean
from autotune.machine import Holder, Machine, port_answers, port_owners
from autotune.records import Launch

_SHM = Path("/dev/shm")
# Names under which engines, torch, NCCL and Python leave shared memory behind after a crash.
_ENGINE_SHM = re.compile(r"^(sglang|multi_tokenizer|vllm|psm_|sem\.mp-|nccl-|torch_|cuda\.shm)")
_POLL_SECONDS = 0.1

FileId = tuple[int, int]
"""Device and inode: what a file is, whatever its name."""


@dataclass
class Before:
    """What the machine was like before a launch, and what the server was seen to map since."""

    memory: dict[int, int]
    shared: frozenset[str]
    mapped: set[FileId] = field(default_factory=set)

    def look_at(self, pids: Iterable[int]) -> None:
        """Remember the shared memory that these processes of the server map."""
        for pid in pids:
            self.mapped |= _mapped_by(pid)


def before_launch(launch: Launch, machine: Machine) -> Before:
    """What must be restored after this launch."""
    return Before(_memory_of(launch, machine), frozenset(_shared_memory()))


def _memory_of(launch: Launch, machine: Machine) -> dict[int, int]:
    used = machine.memory_used() if launch.gpus else {}
    return {gpu: used.get(gpu, 0) for gpu in launch.gpus}


async def wait_until_drained(
    launch: Launch, machine: Machine, before: Before, *, tolerance_bytes: float, seconds: float
) -> None:
    """Wait until the port is silent and the slot's GPU memory is back, then tidy up.

    Raises:
        MachineNotClean: it is not after `seconds`; names who holds what.
    """
    end = asyncio.get_running_loop().time() + seconds
    while problems := await asyncio.to_thread(_problems, launch, machine, before, tolerance_bytes):
        if asyncio.get_running_loop().time() > end:
            raise not_clean(launch, problems)
        await asyncio.sleep(_POLL_SECONDS)
    await asyncio.to_thread(remove_shared_memory, before)


def not_clean(launch: Launch, problems: Iterable[str]) -> MachineNotClean:
    """The error that stops a study, with what to do about it."""
    return MachineNotClean(
        f"trial {launch.trial} left something behind: {'; '.join(problems)}. "
        "End what holds it (kill -KILL PID, or a reset of that GPU), look with `autotune doctor`, "
        "then continue with --resume"
    )


def _problems(
    launch: Launch, machine: Machine, before: Before, tolerance_bytes: float
) -> list[str]:
    problems = []
    if port_answers(launch.host, launch.port) and not _is_strangers(launch):
        problems.append(f"port {launch.port} still answers, and who listens cannot be seen")
    for gpu, used in _memory_of(launch, machine).items():
        extra = used - before.memory[gpu]
        if extra > tolerance_bytes:
            problems.append(_memory_problem(gpu, extra, machine))
    return problems


def _is_strangers(launch: Launch) -> bool:
    """Whether somebody else listens on the port by now: every process of ours has ended."""
    return bool(port_owners(launch.port))


def _memory_problem(gpu: int, extra: int, machine: Machine) -> str:
    holders = [holder for holder in machine.holders() if holder.gpu == gpu]
    who = "; ".join(str(holder) for holder in holders) or "no process that can be seen from here"
    return f"GPU {gpu} has {extra / 2**20:,.0f} MiB more in use than before the launch: {who}"


def strangers(launch: Launch, machine: Machine) -> tuple[Holder, ...]:
    """Processes that hold memory of the slot's GPUs and do not belong to this trial."""
    if not launch.gpus:
        return ()
    return tuple(
        holder
        for holder in machine.holders()
        if holder.gpu in launch.gpus and holder.mark != launch.mark
    )


# -- shared memory ----------------------------------------------------------------------------
def _shared_memory() -> list[str]:
    try:
        return os.listdir(_SHM)
    except OSError:
        return []


def _mapped_by(pid: int) -> set[FileId]:
    """By identity, not by name: glibc makes a semaphore under another name than it then gets, and
    the memory of who made it keeps showing that one, as deleted."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    found = set()
    for line in lines:
        if "/dev/shm/" in line:
            _, _, _, device, inode, _ = line.split(maxsplit=5)
            major, minor = (int(part, 16) for part in device.split(":"))
            found.add((os.makedev(major, minor), int(inode)))
    return found


def _opened_by(pid: int) -> set[FileId]:
    """What a process has open: it may be about to map it."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(entry.path).startswith("/dev/shm/"):
                    stat = os.stat(entry.path)
                    found.add((stat.st_dev, stat.st_ino))
    return found


def remove_shared_memory(before: Before) -> list[str]:
    """Remove what a dead server left in /dev/shm: new since the launch, this user's, and either
    seen in the server's memory or of an engine's name; never what a living process has mapped or
    open, as the next server's and another study's is."""
    new = {n: file for n in _shared_memory() if n not in before.shared and (file := _own_file(n))}
    candidates = {n: f for n, f in new.items() if f in before.mapped or _ENGINE_SHM.match(n)}
    if not candidates:
        return []
    in_use = {file for pid in reaper.process_table() for file in _mapped_by(pid) | _opened_by(pid)}
    removed = [name for name, file in candidates.items() if file not in in_use]
    for name in removed:
        with contextlib.suppress(OSError):
            (_SHM / name).unlink()
    return removed


def _own_file(name: str) -> FileId | None:
    """The identity of a file of this user's; None if it is another's, or gone."""
    try:
        stat = (_SHM / name).lstat()
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino) if stat.st_uid == os.getuid() else None
