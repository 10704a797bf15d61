"""How long ranks take to add up their parts: one all-reduce, by link, kernel and NCCL's variables.

Sources: SGLang 0.5.15 and NCCL 2.28 on two H200 (docs/studies/nccl.md), of which only differences
between launches are known, so that the own kernel's latency is a published one; NVLink beyond two
ranks is published figures alone. PCIe: community tables of Kimi-K2.x (NCCL's variables) and
FlashInfer's table of its PCIe-IPC all-reduce.
"""

from __future__ import annotations

from autotune.engines.simulated import nccl
from autotune.engines.simulated.hosts import Host
from autotune.engines.simulated.settings import Collective, Settings

OWN_LIMIT_BYTES = 8 * 2**20  # larger messages go to NCCL (SGLang's limit)
# What each rank beyond two adds to the own kernel's latency (published for an H100: 3.8 us with two
# ranks, 5.7 with eight).
OWN_RANK = 0.08
# NCCL on NVLink: 4.6 us a call above the own kernel at 2 KB, 5.7 at 128 KB. Published for eight
# H100: 19 us, so 0.9 us for each of the 2 (n - 1) steps of the ring.
NCCL_US, NCCL_STEP_US = 8.6, 0.9
# Without peer access messages go through the host's memory: 2.7 us a call more at 2 KB, and 15
# more at 128 KB, which is what 17 GB/s give where the flags of LL take half of it.
STAGED_LATENCY, STAGED_GB_S = 1.3, 17.0
_NVLINK_PROTO = {  # NCCL_PROTO -> (latency, rate) against LL's latency and the link's rate
    "LL": (1.0, 0.55),
    "LL128": (1.43, 0.92),  # not measured: as on PCIe
    # 11.4 us a call above NCCL's own choice at 2 KB, 16 at 128 KB: one latency between the two.
    "Simple": (2.66, 1.0),
}


def all_reduce_us(host: Host, settings: Settings, message_bytes: float, graph: bool) -> float:
    """One all-reduce over the tensor-parallel ranks, in microseconds."""
    if settings.tp <= 1 or host.link == "none":
        return 0.0
    c = settings.collective
    if host.link == "nvlink":
        return _nvlink_us(host, c, settings.tp, message_bytes)
    if pcie_ipc_works(host, settings, message_bytes, graph):
        # FlashInfer's table: 5.3 us at 12 KiB, 34.6 us at 384 KiB; without peer access every
        # word crosses the CPU (community: 73 -> 29 tok/s).
        latency, rate = (13.0, 12.5) if host.p2p else (190.0, 3.0)
        return latency + message_bytes / (rate * 1e3)
    latency, rate = _nccl_pcie(host, c)
    return latency + message_bytes / (rate * 1e3)


def pcie_ipc_works(host: Host, settings: Settings, message_bytes: float, graph: bool) -> bool:
    """The PCIe-IPC all-reduce serves decode-sized messages of captured graphs only."""
    c = settings.collective
    return c.pcie_ipc and graph and settings.tp in (2, 4, 8) and message_bytes <= 4e6


def _nvlink_us(host: Host, c: Collective, ranks: int, message_bytes: float) -> float:
    """The engine's own kernel, which no variable of NCCL's reaches (measured: the same step to
    0.2 % whatever NCCL_PROTO and channels say), or NCCL where it is off or the message large."""
    fused = 0.75 if c.fusion else 1.0
    if c.custom and message_bytes <= OWN_LIMIT_BYTES:
        latency = host.all_reduce_us * (1 + OWN_RANK * (ranks - 2))
        return latency * fused + message_bytes / (host.all_reduce_gb_s * 1e3)
    latency = (NCCL_US + NCCL_STEP_US * 2 * (ranks - 2)) * fused
    rate = host.all_reduce_gb_s * (1.35 if c.nvls and c.cumem else 1.0)
    if c.p2p_disabled:
        latency, rate = latency * STAGED_LATENCY, STAGED_GB_S
    # NCCL takes whichever is the fastest for the size, of those that it may use.
    allowed = nccl.left(c.proto, _NVLINK_PROTO) or _NVLINK_PROTO
    times = (_NVLINK_PROTO[name] for name in allowed)
    return min(latency * slow + message_bytes / (rate * share * 1e3) for slow, share in times)


_PCIE_PROTO = {  # NCCL_PCIE_PROTO -> (latency factor, rate factor); LL halves the rate by its flags
    "": (1.0, 1.0),
    "LL": (0.56, 0.55),
    "LL128": (0.80, 0.92),
    "Simple": (1.35, 1.04),
    "LL,LL128,Simple": (0.62, 1.0),
}


def _nccl_pcie(host: Host, c: Collective) -> tuple[float, float]:
    """Latency (us) and rate (GB/s) of NCCL over PCIe with these variables.

    Signs are the community's: more channels help large messages only; P2P off helps prefill on a
    host whose peers talk through the CPU, if channels and buffers are raised with it, and costs
    latency everywhere.
    """
    latency_factor, rate_factor = _PCIE_PROTO.get(c.proto, (1.05, 0.95))
    latency, rate = host.all_reduce_us * latency_factor, host.all_reduce_gb_s * rate_factor
    if c.algo == "tree":
        latency, rate = latency * 0.92, rate * 0.80
    if c.p2p_disabled:
        tuned = c.min_channels >= 16 and c.buffer_bytes >= 32_000_000
        gain = (1.02 if host.p2p else 1.22) if tuned else 0.78
        latency, rate = latency * 1.45, rate * gain
    elif c.p2p_level.upper() in ("SYS", "5"):
        latency, rate = latency * 0.95, rate * 1.06
    elif c.p2p_level.upper() in ("LOC", "0", "PIX", "1", "PXB", "2"):
        latency, rate = latency * 1.2, rate * 0.85
    if not host.p2p and not c.p2p_disabled:
        rate *= 0.9
    if c.min_channels >= 8 and not c.p2p_disabled:
        rate *= 1.16 if c.min_channels < 16 else 1.20
        latency += 1.5 if c.min_channels < 16 else 6.0
    if 0 < c.max_channels < 8:
        rate *= 0.75
    return latency, rate
