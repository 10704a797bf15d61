"""Where faults strike during a start, and which failure belongs to which phase."""

from __future__ import annotations

import os
import signal

from autotune.engines.simulated.hosts import GIB
from autotune.engines.simulated.memory import memory_failure, out_of_memory
from autotune.engines.simulated.simulation import Simulation, StartupFailed
from autotune.engines.simulated.support import PredictedFailure, kernel_failure

_HANG_SECONDS = 3600.0
_RANK_ERROR = "RuntimeError: CUDA error: an illegal memory access was encountered"


def failure_in(sim: Simulation, phase: str) -> PredictedFailure | None:
    """What physics, or the fault that was asked for, has in store for that phase, if anything."""
    if phase == "capture" and sim.faults.strikes("oom", phase):
        return out_of_memory(sim.host, phase, 1.74 * GIB, 1.35 * GIB)
    for failure in (
        kernel_failure(sim.host, sim.model, sim.settings),
        memory_failure(sim.host, sim.model, sim.settings),
    ):
        if failure is not None and failure.phase == phase:
            return failure
    return None


def gather_logits(sim: Simulation, phase: str) -> None:
    """The ranks' first all-gather. Raises StartupFailed if NCCL_ALGO leaves it no algorithm."""
    failure = failure_in(sim, phase)
    if failure is None or sim.settings.collective.all_gather:
        return
    for rank, process in enumerate(sim.tree.ranks):
        if sim.env.get("NCCL_DEBUG", "").upper() in ("WARN", "INFO", "TRACE"):
            place = f"{os.uname().nodename}:{process.pid}:{process.pid} [{rank}] enqueue.cc:1859"
            sim.log.raw(
                f"\n[{sim.log.stamp('%Y-%m-%d %H:%M:%S')}] {place} NCCL WARN Error : no "
                "algorithm/protocol available for function AllGather with datatype ncclInt8. "
                f"NCCL_ALGO was set to {sim.env.get('NCCL_ALGO')}.\n"
            )
    raise StartupFailed(failure)


async def check(sim: Simulation, phase: str) -> None:
    """Let the faults that were asked for strike in `phase` of the start. Raises StartupFailed."""
    faults = sim.faults
    if faults.strikes("nccl_hang", phase):
        sim.memory.hold(1.2 * GIB, busy_percent=100)
        while True:
            await sim.clock.advance(_HANG_SECONDS)
    if phase == "kv" and faults.strikes("oom", phase):
        raise StartupFailed(out_of_memory(sim.host, "load", 1.74 * GIB, 1.35 * GIB))
    if phase == "loaded" and "unsupported" in faults:
        line = "RuntimeError: Error in function 'TllmGenFmhaRunner': Unsupported architecture"
        raise StartupFailed(PredictedFailure("unsupported", "load", line))
    if faults.strikes("rank_exception", phase):
        raise StartupFailed(PredictedFailure("crashed", phase, _RANK_ERROR))
    if fault := faults.strikes("rank_dies", phase):
        rank_dies(sim, int(fault.number))
        await sim.clock.advance(_HANG_SECONDS)


def rank_dies(sim: Simulation, rank: int) -> None:
    """Have a rank killed by signal 9; who watches it finds out."""
    os.kill(sim.tree.ranks[rank % len(sim.tree.ranks)].pid, signal.SIGKILL)
