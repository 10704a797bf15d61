"""The rest of the host: what is left of trials, engines, memory, disks, limits of processes."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.doctor.finding import GIB, Finding, listed
from autotune.readings import EngineFound, Readings

_MIN_CACHE_BYTES = 20 * GIB
_MIN_SHM_BYTES = 8 * GIB
_MIN_OPEN_FILES = 65_536
_MOST_NAMED = 4
_PACKAGED = ("sglang", "vllm")  # engines that are a Python package of their name


def leftovers(readings: Readings) -> Iterator[Finding]:
    """What earlier trials left behind."""
    orphans = [process for process in readings.marked if not process.supervised]
    for process in orphans:
        yield Finding(
            level="error",
            title=f"pid {process.pid} ({process.name}) is left of trial {process.mark}",
            why="it may hold a port, GPU memory and CPU time",
            fix=f"kill -KILL {process.pid}",
        )
    running = sorted({process.mark for process in readings.marked if process.supervised})
    if running:
        yield Finding(
            level="warning",
            title=f"another study runs on this host: trial {listed(running)}",
            why="two studies on one host disturb each other's figures, even on separate GPUs",
        )
    if readings.shared_memory:
        names = [name for name, _ in readings.shared_memory]
        size = sum(size for _, size in readings.shared_memory) / 2**20
        more = f"  # and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        yield Finding(
            level="note",
            title=f"{len(names)} files ({size:,.0f} MiB) of dead engines in /dev/shm",
            why="they take memory until the next boot",
            fix="rm " + " ".join(f"/dev/shm/{name}" for name in names[:_MOST_NAMED]) + more,
        )


def engines(readings: Readings) -> Iterator[Finding]:
    """Which engines are installed, in which version."""
    for engine in readings.engines:
        if not engine.found or engine.has_package is False:
            lacks = f"has no {engine.package}" if engine.found else "is not on this host"
            yield Finding(
                level="error",
                title=f"{engine.name}: {engine.program} {lacks}",
                why="no trial of this engine could start",
                fix="install it, or write the path of its interpreter as the command",
            )
            continue
        if _without_its_package(engine):
            yield Finding(
                level="warning",
                title=f"{engine.name}: {engine.program} has no {engine.name} installed",
                why="every trial of this engine would end as it imports it",
                fix="install it there, or write the path of its interpreter as the command",
            )
            continue
        shown = (engine.name, f"{engine.name}-cpu", "torch", "flashinfer-python")
        parts = [f"{name} {engine.versions[name]}" for name in shown if name in engine.versions]
        nccl = [v for name, v in engine.versions.items() if name.startswith("nvidia-nccl")]
        parts += [f"NCCL {version}" for version in nccl]
        unknown = f"{engine.program}, version unknown"
        yield Finding(level="ok", title=f"{engine.name}: {', '.join(parts) or unknown}")


def _without_its_package(engine: EngineFound) -> bool:
    """Whether the interpreter answered, without naming the engine's package."""
    packages = {engine.name, f"{engine.name}-cpu"}
    return (
        engine.name in _PACKAGED
        and engine.has_package is None
        and bool(engine.versions)
        and packages.isdisjoint(engine.versions)
    )


def memory(readings: Readings) -> Iterator[Finding]:
    """Host memory and the CPU's settings."""
    held = sum(gpu.memory_bytes for gpu in readings.gpus)
    if held and readings.memory_bytes < held / 2:
        yield Finding(
            level="note",
            title=f"{readings.memory_bytes / GIB:,.0f} GiB of host memory for "
            f"{held / GIB:,.0f} GiB of GPU memory",
            why="weights do not stay in the page cache, so every trial reads them from disk",
        )
    if readings.numa_nodes > 1 and readings.numa_balancing:
        yield Finding(
            level="warning",
            title="automatic NUMA balancing is on",
            why="it moves pages of pinned buffers about and stalls the ranks for milliseconds",
            fix="sysctl kernel.numa_balancing=0",
        )
    if readings.governor not in (None, "performance"):
        yield Finding(
            level="note",
            title=f"the CPU's governor is {readings.governor}",
            why="launching kernels is the CPU's work: without CUDA graphs it sets the decode speed",
            fix="cpupower frequency-set -g performance",
        )


def disk(readings: Readings) -> Iterator[Finding]:
    """Room for caches, logs and shared memory."""
    for place, free in readings.free_bytes.items():
        if free < _MIN_CACHE_BYTES:
            yield Finding(
                level="warning",
                title=f"{free / GIB:,.1f} GiB free in {place}",
                why="compiled kernels, logs and downloads fill a disk in a night; then all fails",
                fix="make room, or move the caches (HF_HOME, VLLM_CACHE_ROOT, SGLANG_CACHE_DIR)",
            )
    shared = readings.shared_memory_bytes
    if len(readings.gpus) > 1 and shared is not None and shared < _MIN_SHM_BYTES:
        yield Finding(
            level="warning",
            title=f"/dev/shm has {shared / GIB:,.1f} GiB",
            why="ranks exchange tensors there; NCCL and torch fail when it is full",
            fix="docker run --shm-size=32g (or --ipc=host)",
        )


def limits(readings: Readings) -> Iterator[Finding]:
    """Limits of this user's processes."""
    if readings.open_files < _MIN_OPEN_FILES:
        yield Finding(
            level="note",
            title=f"at most {readings.open_files:,} open files",
            why="a server takes a descriptor for each connection, and one for each shard",
            fix=f"ulimit -n {_MIN_OPEN_FILES}",
        )
    if readings.gpus and readings.locked_memory_bytes is not None:
        yield Finding(
            level="note",
            title=f"at most {readings.locked_memory_bytes / 2**20:,.0f} MiB of locked memory",
            why="pinned buffers and RDMA need more; NCCL falls back to slower paths",
            fix="ulimit -l unlimited (docker run --ulimit memlock=-1)",
        )
