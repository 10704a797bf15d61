"""The GPUs: whether they are alike, how they reach each other, what slows them, who holds them."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.doctor.finding import GIB, Finding, listed
from autotune.readings import Readings

_HELD_BYTES = 600 * 2**20  # more than a driver's own context


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
    memory = sorted({gpu.memory_bytes // GIB for gpu in readings.gpus})
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
            title=f"no peer-to-peer access for GPU {listed(isolated)}",
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
            f"bridges ({listed(readings.acs_redirecting[:3])} …)",
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
                title=f"GPU {gpu.index} is slowed down{degrees}: {listed(gpu.throttle_reasons)}",
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
