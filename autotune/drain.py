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


@dataclass
class Before:
    """What the machine was like before a launch, and what the server was seen to map since."""

    memory: dict[int, int]
    shared: frozenset[str]
    mapped: set[str] = field(default_factory=set)

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


def _mapped_by(pid: int) -> set[str]:
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except (OSError, UnicodeDecodeError):
        return set()
    lines = (line.split(maxsplit=5) for line in maps.splitlines() if "/dev/shm/" in line)
    paths = (fields[5].removesuffix(" (deleted)") for fields in lines if len(fields) == 6)
    return {os.path.basename(path) for path in paths if path.startswith("/dev/shm/")}


def remove_shared_memory(before: Before) -> list[str]:
    """Remove what a dead server left in /dev/shm: new since the launch, this user's, and either
    seen in the server's memory or of an engine's name; never what a living process maps."""
    new = [name for name in _shared_memory() if name not in before.shared]
    candidates = [n for n in new if (n in before.mapped or _ENGINE_SHM.match(n)) and _is_own(n)]
    if not candidates:
        return []
    in_use = {name for pid in reaper.process_table() for name in _mapped_by(pid)}
    removed = [name for name in candidates if name not in in_use]
    for name in removed:
        with contextlib.suppress(OSError):
            (_SHM / name).unlink()
    return removed


def _is_own(name: str) -> bool:
    try:
        return (_SHM / name).lstat().st_uid == os.getuid()
    except OSError:
        return False
