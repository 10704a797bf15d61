"""What is wrong with a host, and why it matters to serving speed, before a night is spent on it.

Every judgement is a pure function of readings, so that each can be tried on a recorded host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from autotune.machine import open_machine
from autotune.readings import EngineFound, Readings, read_host
from autotune.records import Frozen

Level = Literal["error", "warning", "note", "ok"]

_GIB = 2**30
_MIN_CACHE_BYTES = 20 * _GIB
_MIN_SHM_BYTES = 8 * _GIB
_MIN_OPEN_FILES = 65_536
_HELD_BYTES = 600 * 2**20  # more than a driver's own context
_PACKAGED = ("sglang", "vllm")  # engines that are a Python package of their name


class Finding(Frozen):
    """One thing about a host. `error`: a study must not start; `warning`: it would be slow."""

    level: Level
    title: str
    why: str = ""
    fix: str = ""


def examine(commands: Mapping[str, Sequence[str]]) -> list[Finding]:
    """The findings on this host, worst first; `commands` are the engines' (name -> command)."""
    return judge(read_host(open_machine(), commands))


def judge(readings: Readings) -> list[Finding]:
    """The findings on a host, worst first."""
    judges = (gpus, peers, links, power, strangers, leftovers, engines, memory, disk, limits)
    found = [finding for judge_of in judges for finding in judge_of(readings)]
    order: tuple[Level, ...] = ("error", "warning", "note", "ok")
    return sorted(found, key=lambda finding: order.index(finding.level))


def gpus(readings: Readings) -> Iterator[Finding]:
    """Which GPUs there are, and whether they are alike."""
    if readings.refused is not None:
        yield Finding(
            level="error",
            title=readings.refused,
            why="no study that needs GPUs can start",
            fix="unset it, or name GPUs that are there, as nvidia-smi -L has them",
        )
    if not readings.gpus and readings.hidden_gpus:
        yield Finding(
            level="warning",
            title=f"CUDA_VISIBLE_DEVICES hides every GPU of this host ({readings.hidden_gpus})",
            why="only engines that run on the CPU can be tuned here",
            fix="unset it, or name the GPUs that a study may have",
        )
        return
    if not readings.gpus:
        yield Finding(
            level="note",
            title="no NVIDIA GPU, or no driver",
            why="only engines that run on the CPU can be tuned here",
            fix="nvidia-smi says what the driver sees",
        )
        return
    names = sorted({gpu.name for gpu in readings.gpus})
    memory = sorted({gpu.memory_bytes // _GIB for gpu in readings.gpus})
    if len(names) > 1 or len(memory) > 1:
        yield Finding(
            level="warning",
            title=f"mixed GPUs: {', '.join(names)}; {', '.join(f'{m} GiB' for m in memory)}",
            why="tensor parallelism runs at the pace and with the memory of the weakest GPU",
            fix="choose equal GPUs with CUDA_VISIBLE_DEVICES",
        )
    else:
        title = f"{len(readings.gpus)} x {names[0]}, driver {readings.gpus[0].driver}"
        yield Finding(level="ok", title=title)


def peers(readings: Readings) -> Iterator[Finding]:
    """Whether the GPUs reach each other directly."""
    count = len(readings.gpus)
    if count < 2:
        return
    by_nvlink = all(gpu.nvlink_peers for gpu in readings.gpus)
    isolated = [gpu.index for gpu in readings.gpus if len(gpu.peers) < count - 1]
    if isolated and not by_nvlink:
        yield Finding(
            level="warning",
            title=f"no peer-to-peer access for GPU {_listed(isolated)}",
            why="every all-reduce passes through host memory, and the PCIe all-reduce flags change "
            "sign: the same flag made one host 2.5 times slower without P2P and no slower with it",
            fix="a driver with P2P enabled; until then let the study vary NCCL_P2P_DISABLE, "
            "NCCL_P2P_LEVEL and the custom all-reduce",
        )
    elif not isolated:
        yield Finding(level="ok", title="every GPU reaches every other directly")
    if not by_nvlink and readings.iommu_groups:
        yield Finding(
            level="warning",
            title=f"the IOMMU is on ({readings.iommu_groups} groups)",
            why="the CPU may translate peer traffic, and NCCL may hang at its start",
            fix="boot with iommu=off or iommu=pt, or let the study vary NCCL_P2P_DISABLE",
        )
    if not by_nvlink and readings.acs_redirecting:
        yield Finding(
            level="warning",
            title=f"PCIe access control redirects peer traffic on {len(readings.acs_redirecting)} "
            f"bridges ({_listed(readings.acs_redirecting[:3])} …)",
            why="GPU-to-GPU traffic makes a detour through the CPU's root complex",
            fix="switch ACS off in the BIOS, or with setpci on these bridges",
        )
    if not by_nvlink and readings.acs_redirecting is None:
        title = "PCIe access control could not be read (needs root)"
        yield Finding(level="note", title=title, why="ACS redirection slows GPU-to-GPU traffic")


def links(readings: Readings) -> Iterator[Finding]:
    """The width of the PCIe links."""
    narrow = [g for g in readings.gpus if (g.pcie_width or 0) < (g.pcie_width_max or 0)]
    if narrow:
        widths = ", ".join(f"GPU {g.index} x{g.pcie_width} of x{g.pcie_width_max}" for g in narrow)
        yield Finding(
            level="warning",
            title=f"PCIe links run with fewer lanes than they could: {widths}",
            why="weights load slower, and so does every all-reduce without NVLink",
            fix="reseat the card or its riser; check the slot's bifurcation in the BIOS",
        )


def power(readings: Readings) -> Iterator[Finding]:
    """Power limits and throttling."""
    capped = [
        gpu
        for gpu in readings.gpus
        if gpu.power_limit_w and gpu.power_default_w and gpu.power_limit_w < gpu.power_default_w
    ]
    if capped:
        limits_w = ", ".join(
            f"GPU {g.index} {g.power_limit_w:.0f} of {g.power_default_w:.0f} W" for g in capped
        )
        yield Finding(
            level="warning",
            title=f"power limits below the default: {limits_w}",
            why="hardly felt by one user, but 300 W instead of 500 W cost 29 % at 64 users",
            fix="nvidia-smi -pl, if the host's supply and cooling allow it",
        )
    if len({gpu.power_limit_w for gpu in readings.gpus}) > 1:
        yield Finding(
            level="warning",
            title="the GPUs have different power limits",
            why="tensor parallelism waits for the slowest GPU",
            fix="nvidia-smi -pl with one limit for all",
        )
    for gpu in readings.gpus:
        if gpu.throttle_reasons:
            degrees = f" at {gpu.temperature_c:.0f} °C" if gpu.temperature_c else ""
            yield Finding(
                level="warning",
                title=f"GPU {gpu.index} is slowed down{degrees}: {_listed(gpu.throttle_reasons)}",
                why="figures drift with temperature, and trials stop being comparable",
                fix="improve cooling or lower the power limit for all GPUs alike",
            )


def strangers(readings: Readings) -> Iterator[Finding]:
    """Who else holds GPU memory."""
    for holder in readings.holders:
        if holder.mark is None and holder.bytes >= _HELD_BYTES:
            yield Finding(
                level="error",
                title=str(holder),
                why="it takes memory and time from every trial, and every figure would be wrong",
                fix="end it, or leave its GPU out with CUDA_VISIBLE_DEVICES",
            )


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
            title=f"another study runs on this host: trial {_listed(running)}",
            why="two studies on one host disturb each other's figures, even on separate GPUs",
        )
    if readings.shared_memory:
        names = [name for name, _ in readings.shared_memory]
        size = sum(size for _, size in readings.shared_memory) / 2**20
        yield Finding(
            level="note",
            title=f"{len(names)} files ({size:,.0f} MiB) of dead engines in /dev/shm",
            why="they take memory until the next boot",
            fix="rm " + " ".join(f"/dev/shm/{name}" for name in names[:4]),
        )


def engines(readings: Readings) -> Iterator[Finding]:
    """Which engines are installed, in which version."""
    for engine in readings.engines:
        if not engine.found:
            yield Finding(
                level="error",
                title=f"{engine.name}: {engine.program} is not on this host",
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
        engine.name in _PACKAGED and bool(engine.versions) and packages.isdisjoint(engine.versions)
    )


def memory(readings: Readings) -> Iterator[Finding]:
    """Host memory and the CPU's settings."""
    held = sum(gpu.memory_bytes for gpu in readings.gpus)
    if held and readings.memory_bytes < held / 2:
        yield Finding(
            level="note",
            title=f"{readings.memory_bytes / _GIB:,.0f} GiB of host memory for "
            f"{held / _GIB:,.0f} GiB of GPU memory",
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
                title=f"{free / _GIB:,.1f} GiB free in {place}",
                why="compiled kernels, logs and downloads fill a disk in a night; then all fails",
                fix="make room, or move the caches (HF_HOME, VLLM_CACHE_ROOT, SGLANG_CACHE_DIR)",
            )
    shared = readings.shared_memory_bytes
    if len(readings.gpus) > 1 and shared is not None and shared < _MIN_SHM_BYTES:
        yield Finding(
            level="warning",
            title=f"/dev/shm has {shared / _GIB:,.1f} GiB",
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


def findings_text(findings: Sequence[Finding]) -> str:
    """The findings as a person reads them: what, why it matters, what to do."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:8}{finding.title}")
        lines += [
            f"        {text}" for text in (finding.why, finding.fix and f"→ {finding.fix}") if text
        ]
    return "\n".join(lines) or "nothing to say"


def _listed(items: Sequence[object]) -> str:
    return ", ".join(str(item) for item in items)
