"""What `autotune doctor` reads of a host, as plain data: judged in doctor/, recorded in tests."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from autotune import reaper
from autotune.engines.interpreter import package_run_by
from autotune.errors import InputError
from autotune.fingerprint import installed_versions
from autotune.gpus import Gpu, Holder
from autotune.machine import Machine, process_name
from autotune.records import Frozen

_PCI = Path("/sys/bus/pci/devices")
_SHM_NAMES = ("sglang", "vllm", "psm_", "nccl-", "sem.mp-", "torch_")
_REAPER = b"autotune/reaper.py"
_LEFT_SECONDS = 1.0
_NOT_FOUND = 3
_LOOK_FOR_PACKAGE = (
    f"import importlib.util as u, sys; sys.exit(u.find_spec(sys.argv[1]) is None and {_NOT_FOUND})"
)


class Marked(Frozen):
    """A process that an earlier trial left, or that a running trial owns."""

    pid: int
    name: str
    mark: str
    supervised: bool  # its trial's reaper lives


class EngineFound(Frozen):
    """An engine's command on this host."""

    name: str
    program: str
    found: bool
    versions: dict[str, str] = Field(default={})
    package: str | None = None  # what `python -m` runs
    has_package: bool | None = None  # whether that Python finds it; None: not asked, or no answer


class Readings(Frozen):
    """One look at a host. None where it could not be read."""

    gpus: tuple[Gpu, ...] = ()
    hidden_gpus: int = 0  # that CUDA_VISIBLE_DEVICES leaves out
    refused: str | None = None  # why a study cannot have the GPUs that it names
    holders: tuple[Holder, ...] = ()
    iommu_groups: int | None = None
    acs_redirecting: tuple[str, ...] | None = None
    numa_nodes: int = 1
    numa_balancing: bool | None = None
    governor: str | None = None
    marked: tuple[Marked, ...] = ()
    shared_memory: tuple[tuple[str, int], ...] = ()
    free_bytes: dict[str, int] = Field(default={}, description="place -> bytes")
    shared_memory_bytes: int | None = None
    open_files: int = 1_048_576
    locked_memory_bytes: int | None = None
    memory_bytes: int = 0
    engines: tuple[EngineFound, ...] = ()


def read_host(
    machine: Machine,
    commands: Mapping[str, Sequence[str]],
    environments: Mapping[str, Mapping[str, str]],
) -> Readings:
    """Look at this host; by engine, what runs it and the variables it gets. Takes 1-2 seconds."""
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    everything = machine.gpus()
    try:
        gpus, refused = machine.visible(), None
    except InputError as error:
        gpus, refused = everything, str(error)
    indices = {gpu.index for gpu in gpus}
    return Readings(
        gpus=gpus,
        hidden_gpus=len(everything) - len(gpus),
        refused=refused,
        holders=tuple(holder for holder in machine.holders() if holder.gpu in indices),
        iommu_groups=_count(Path("/sys/kernel/iommu_groups")),
        acs_redirecting=_acs_redirecting(),
        numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1,
        numa_balancing=_flag(Path("/proc/sys/kernel/numa_balancing")),
        governor=_text(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        marked=marked_processes(),
        shared_memory=_left_in_shared_memory(),
        free_bytes=_free_space(),
        shared_memory_bytes=_size(Path("/dev/shm")),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        locked_memory_bytes=None if locked == resource.RLIM_INFINITY else locked,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        engines=tuple(
            _engine(name, command, environments.get(name, {})) for name, command in commands.items()
        ),
    )


def _engine(name: str, command: Sequence[str], environment: Mapping[str, str]) -> EngineFound:
    if shutil.which(command[0]) is None:
        return EngineFound(name=name, program=command[0], found=False)
    return EngineFound(
        name=name,
        program=command[0],
        found=True,
        versions=installed_versions(command),
        package=(package := package_run_by(command)),
        has_package=None if package is None else _finds(command[0], package, environment),
    )


def _finds(python: str, package: str, environment: Mapping[str, str]) -> bool | None:
    """Whether this Python finds a package: installed, or in a checkout on its path."""
    look = [python, "-c", _LOOK_FOR_PACKAGE, package]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        run = subprocess.run(
            look, env={**os.environ, **environment}, capture_output=True, timeout=60, check=False
        )
        return {0: True, _NOT_FOUND: False}.get(run.returncode)
    return None


def marked_processes() -> tuple[Marked, ...]:
    """The living processes that carry a trial's mark.

    Who seems to be left is looked at again a little later: what a killed reaper leaves, its driver
    ends at once, and nobody is told to kill it.
    """
    found = _look_at_marked()
    if all(process.supervised for process in found):
        return found
    time.sleep(_LEFT_SECONDS)
    return _look_at_marked()


def _look_at_marked() -> tuple[Marked, ...]:
    table = reaper.process_table()
    reapers = {pid for pid in table if is_reaper(pid)}
    owned = {pid for owner in reapers for pid in reaper.descendants(owner, table)}
    marks = {
        pid: mark
        for pid, (_, _, state) in sorted(table.items())
        if state not in "ZX" and (mark := reaper.mark_of(pid)) is not None
    }
    # By mark, as the reaper itself ends them: who left its tree is its trial's all the same.
    running = {mark for pid, mark in marks.items() if pid in owned}
    return tuple(
        Marked(pid=pid, name=process_name(pid), mark=mark, supervised=mark in running)
        for pid, mark in marks.items()
    )


def is_reaper(pid: int) -> bool:
    """Whether a process is a reaper, wherever autotune is installed.

    By its whole command line: `process_name` cuts long ones, and the path of an interpreter in a
    virtual environment is often long enough.
    """
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.endswith(_REAPER) for word in words)


def _left_in_shared_memory() -> tuple[tuple[str, int], ...]:
    """(name, bytes) of engines' files in /dev/shm that this user owns and no process maps."""
    names = [
        entry
        for entry in _entries(Path("/dev/shm"))
        if entry.name.startswith(_SHM_NAMES) and entry.stat().st_uid == os.getuid()
    ]
    if not names:
        return ()
    maps = "".join(_text(Path(f"/proc/{pid}/maps")) or "" for pid in reaper.process_table())
    return tuple((e.name, _held(e)) for e in names if f"/dev/shm/{e.name}" not in maps)


def _held(file: Path) -> int:
    """Bytes of memory behind a file: engines make rings of 250 MiB and touch a page of them."""
    return file.stat().st_blocks * 512


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _free_space() -> dict[str, int]:
    places = {str(Path.home() / ".cache"): Path.home(), "/tmp": Path("/tmp"), ".": Path(".")}
    return {name: shutil.disk_usage(path).free for name, path in places.items() if path.exists()}


def _size(folder: Path) -> int | None:
    with contextlib.suppress(OSError):
        return shutil.disk_usage(folder).total
    return None


def _acs_redirecting() -> tuple[str, ...] | None:
    """PCI bridges that send peer traffic up to the CPU; None if not to be read (needs root)."""
    bridges, readable = [], False
    for device in _entries(_PCI):
        try:
            config = (device / "config").read_bytes()
        except OSError:
            continue
        readable |= len(config) > 256
        control = acs_control(config)
        if control is not None and control & 0b11100:  # request, completion, upstream redirect
            bridges.append(device.name)
    return tuple(bridges) if readable else None


def acs_control(config: bytes) -> int | None:
    """The access control register of a PCI device's configuration space, None without one.

    Source: PCI Express Base Specification, extended capability 0x000D, control at offset 6.
    """
    offset = 0x100
    for _ in range(64):
        if offset < 0x100 or offset + 8 > len(config):
            return None
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == 0x000D:
            return int.from_bytes(config[offset + 6 : offset + 8], "little")
        offset = header >> 20
    return None


def _count(folder: Path) -> int | None:
    return len(_entries(folder)) if folder.is_dir() else None


def _flag(path: Path) -> bool | None:
    text = _text(path)
    return None if text is None else text != "0"


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
