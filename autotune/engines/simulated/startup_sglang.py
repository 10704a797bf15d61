"""SGLang's start: its phases, its log lines, and what can go wrong in each."""

from __future__ import annotations

import asyncio

from autotune.engines.simulated import durations, physics
from autotune.engines.simulated.batch import effective_max_running
from autotune.engines.simulated.hosts import GIB
from autotune.engines.simulated.logs import bar, shard_bar
from autotune.engines.simulated.memory import Budget, budget, kv_capacity, out_of_memory
from autotune.engines.simulated.simulation import Simulation, StartupFailed
from autotune.engines.simulated.strikes import check, failure_in, gather_logits
from autotune.engines.simulated.support import PredictedFailure

_HANG_SECONDS = 3600.0


async def start(sim: Simulation) -> None:
    """From exec to the moment HTTP opens. Raises StartupFailed."""
    log, clock = sim.sglang, sim.clock
    await clock.advance(durations.IMPORT_SECONDS)
    for warning in sim.args.warnings:
        log.raw(f"{warning}\n") if warning.startswith("\x1b") else log.main(warning)
    log.main(f"server_args={dict(sim.args.resolved)!r}")
    log.main("Using default HuggingFace chat template with detected content format: string")
    await clock.advance(durations.SPAWN_SECONDS)
    plan = budget(sim.host, sim.model, sim.settings)
    await _init(sim, plan)
    await _load(sim, plan)
    await _pools(sim, plan)
    await _capture(sim, plan)
    _limits(sim, plan)


async def _init(sim: Simulation, plan: Budget) -> None:
    log = sim.sglang
    log.ranks("Init parallel begin.")
    await check(sim, "init")
    failure = failure_in(sim, "launch")
    if failure is not None and failure.kind == "collective":
        await hang(sim, plan.context)
    if failure is not None:
        raise StartupFailed(failure)
    await _look_for_peers(sim)
    await sim.clock.advance(1.6)
    others = sim.memory.others()
    sim.memory.hold(plan.context)
    log.ranks(f"Init parallel ends. elapsed=1.62 s, mem usage={plan.context / GIB:.2f} GB")
    log.ranks(f"Memory baseline taken. mem usage={plan.context / GIB:.2f} GB")
    if others > 2 * GIB:
        raise StartupFailed(_unbalanced(sim, others))


async def _look_for_peers(sim: Simulation) -> None:
    """With its own all-reduce and --enable-p2p-check, the first launch tries every pair of GPUs."""
    settings, log = sim.settings, sim.sglang
    if settings.tp <= 1 or not settings.collective.custom:
        return
    if not sim.args.resolved["enable_p2p_check"]:
        return
    gpus = ",".join(map(str, sim.memory.gpus))
    file = f"~/.cache/sglang/gpu_p2p_access_cache_for_{gpus}.json"
    if sim.caches.first(f"peers/{gpus}"):
        log.rank(f"generating GPU P2P access cache in {file}")
        await sim.clock.advance(durations.PEERS_SECONDS)
    log.ranks(f"reading GPU P2P access cache from {file}")


def _unbalanced(sim: Simulation, others: int) -> PredictedFailure:
    free = sim.host.memory_bytes - others
    return PredictedFailure(
        "out_of_memory",
        "load",
        "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other "
        f"processes. pre_model_load_memory={free / GIB:.2f}, "
        f"local_gpu_memory={sim.host.memory_bytes / GIB:.2f}",
    )


async def hang(sim: Simulation, held: float) -> None:
    """Ranks that wait for each other for ever: GPUs fully busy, nothing else moves."""
    sim.memory.hold(held, busy_percent=100)
    while True:
        await sim.clock.advance(_HANG_SECONDS)


async def _load(sim: Simulation, plan: Budget) -> None:
    log, clock = sim.sglang, sim.clock
    free = plan.total - plan.context
    await clock.advance(2.0)
    log.ranks(f"Load weight begin. avail mem={free / GIB:.2f} GB")
    cold = sim.caches.first(f"weights/{sim.model.name}")
    seconds = durations.load_seconds(sim.model, sim.settings, cold, sim.noise.luck)
    started = clock.now
    await load_shards(sim, plan, seconds, "Multi-thread loading shards")
    failure = failure_in(sim, "load")
    if failure is not None and failure.kind == "out_of_memory" and plan.weights > free:
        raise StartupFailed(failure)
    log.ranks(
        f"Load weight end. elapsed={clock.now - started:.2f} s, type={sim.model.architecture}, "
        f"avail mem={(free - plan.weights) / GIB:.2f} GB, mem usage={plan.weights / GIB:.2f} GB."
    )
    sim.timings["load_weight"] = clock.now - started
    await check(sim, "loaded")
    if failure is not None and failure.kind == "unsupported":
        raise StartupFailed(failure)
    if sim.settings.spec_steps:
        left = free - plan.weights
        log.ranks(f"Load weight begin. avail mem={left / GIB:.2f} GB")
        seconds = durations.draft_load_seconds(sim.settings)
        await clock.advance(seconds)
        log.ranks(
            f"Load weight end. elapsed={seconds:.2f} s, type={sim.model.architecture}, avail mem="
            f"{(left - plan.draft) / GIB:.2f} GB, mem usage={plan.draft / GIB:.2f} GB."
        )


async def load_shards(sim: Simulation, plan: Budget, seconds: float, label: str) -> None:
    """The weight loader's bar, with GPU memory growing under it."""
    total = max(1, sim.model.shards)
    fits = plan.total - plan.context - 0.3 * GIB
    await check(sim, "load")
    sim.log.raw(shard_bar(label, 0, total, 0.0))
    for shard in range(1, total + 1):
        await sim.clock.advance(seconds / total)
        held = plan.weights * shard / total
        if held > fits or (sim.faults.strikes("oom", "load") and shard > total // 2):
            sim.log.raw("\n")
            raise StartupFailed(out_of_memory(sim.host, "load", 0.44 * GIB, 0.2 * GIB))
        if shard % max(1, total // 8) == 0 or shard == total:
            sim.memory.hold(plan.context + held)
        if shard == (total + 1) // 2 and (slow := sim.faults.get("slow_shard")):
            await sim.clock.advance(slow.number)
        sim.log.raw(shard_bar(label, shard, total, seconds * shard / total))
    sim.log.raw("\n")


async def _pools(sim: Simulation, plan: Budget) -> None:
    log = sim.sglang
    failure = failure_in(sim, "load")
    if failure is not None:
        raise StartupFailed(failure)
    await check(sim, "kv")
    await sim.clock.advance(durations.POOL_SECONDS)
    tokens = kv_capacity(sim.host, sim.model, sim.settings)
    dtype = "torch.float8_e4m3fn" if sim.settings.kv_dtype == "fp8" else "torch.bfloat16"
    own = physics.kv_bytes_per_token(sim.model, sim.settings) * tokens
    drafts = max(0.0, plan.kv_token * tokens - own)
    left = plan.total - plan.context - plan.weights - plan.draft
    for size in (own, drafts) if drafts > 0 else (own,):
        left -= size
        log.ranks(_kv_line(sim, dtype, tokens, size))
        log.ranks(f"Memory pool end. avail mem={left / GIB:.2f} GB")
    sim.memory.hold(plan.total - left)


def _kv_line(sim: Simulation, dtype: str, tokens: int, size: float) -> str:
    head = f"KV Cache is allocated. dtype: {dtype}, #tokens: {tokens}, "
    if sim.model.mla:
        return f"{head}KV size: {size / GIB:.2f} GB"
    return f"{head}K size: {size / 2 / GIB:.2f} GB, V size: {size / 2 / GIB:.2f} GB"


async def _capture(sim: Simulation, plan: Budget) -> None:
    log, settings = sim.sglang, sim.settings
    first = sim.caches.first(f"kernels/{sim.kernel_key}")
    compiling = durations.compiling(settings) if first else durations.Compiling()
    sim.timings["compiling_in_first_request"] = compiling.first_request
    if settings.attention == "flashinfer" or settings.moe.startswith("flashinfer"):
        log.ranks("Running FlashInfer autotune with cache: ~/.cache/sglang/flashinfer")
        await sim.clock.advance(1.0)
        log.ranks("FlashInfer autotune completed.")
    if settings.collective.pcie_ipc:
        log.ranks("FlashInfer PCIe-IPC all-reduce enabled")
    free = plan.free_after_pool
    if not settings.graph_max_bs:
        log.ranks("Disable prefill CUDA graph because decode CUDA graph is disabled.")
        return
    await check(sim, "capture")
    sizes: list[int] = list(sim.args.resolved["cuda_graph_bs_decode"])
    await _prefill_graphs(sim, free)
    started, seconds = sim.clock.now, compiling.capture
    extends = physics.graph_covers(sim.model, settings, 1)
    for kind in durations.captures(sim.model, settings, extends):
        await _bar(sim, kind, sizes, free, seconds)
        seconds = 0.0
    sim.timings["capture"] = sim.clock.now - started
    if settings.collective.pcie_ipc:
        log.ranks("FlashInfer PCIe-IPC all-reduce workspace built")
    sim.memory.hold(plan.total - free + plan.graphs)


async def _prefill_graphs(sim: Simulation, free: float) -> None:
    log = sim.sglang
    backend = sim.args.resolved["cuda_graph_backend_prefill"]
    if backend == "disabled":
        log.ranks(
            "Disable prefill CUDA graph because cuda_graph_config resolved "
            "prefill.backend='disabled' (e.g. via --cuda-graph-backend-prefill=disabled or "
            "auto-disable rules)."
        )
        return
    log.ranks(
        f"Capture target prefill CUDA graph begin. backend={backend} num_tokens=[4, 8, 16, 32, "
        f"64, 128, 256, 512, 1024, 2048, 4096, 8192], avail mem={free / GIB:.2f} GB"
    )
    await sim.clock.advance(5.0)
    log.ranks("Capture target prefill CUDA graph end. elapsed=5.00 s, mem usage=0.12 GB.")


async def _bar(
    sim: Simulation, kind: durations.Capture, sizes: list[int], free: float, compiling: float
) -> None:
    """Capturing one kind of graph; the first size carries the compilation, without a line."""
    log, clock = sim.sglang, sim.clock
    log.ranks(
        f"Capture {kind.what} CUDA graph begin. backend=full, num_tokens_per_req={kind.width}, "
        f"bs={sizes}, avail mem={free / GIB:.2f} GB"
    )
    failure = failure_in(sim, "capture")
    started = clock.now
    log.raw(f"\n{bar('', 0, len(sizes), 0.0)}")
    for done, size in enumerate(reversed(sizes)):
        label = f"Capturing batches (bs={size} avail_mem={free / GIB:.2f} GB):"
        log.raw(bar(label, done, len(sizes), clock.now - started))
        if done == 0:
            gather_logits(sim, "capture")
        await clock.advance(kind.each + (compiling if done == 0 else 0.0))
        if failure is not None and (done >= len(sizes) // 2 or done == len(sizes) - 1):
            log.raw("\n")
            raise StartupFailed(failure)
    log.raw(bar(label, len(sizes), len(sizes), clock.now - started) + "\n")
    log.ranks(
        f"Capture {kind.what} CUDA graph end. elapsed={clock.now - started:.2f} s, "
        f"mem usage=0.28 GB, avail mem={free / GIB:.2f} GB."
    )


def _limits(sim: Simulation, plan: Budget) -> None:
    settings, resolved = sim.settings, sim.args.resolved
    tokens = kv_capacity(sim.host, sim.model, settings)
    running = effective_max_running(sim.model, settings, tokens)
    free = plan.free_after_pool - plan.graphs
    sim.sglang.rank(
        f"max_total_num_tokens={tokens}, chunked_prefill_size={resolved['chunked_prefill_size']}, "
        f"max_prefill_tokens={resolved['max_prefill_tokens']}, max_running_requests={running}, "
        f"context_len={settings.context or sim.model.context}, "
        f"available_gpu_mem={free / GIB:.2f} GB"
    )
    sim.sglang.main(
        f"Engine startup timings (s): load_weight={sim.timings.get('load_weight', 0.0):.2f}, "
        f"kv_cache_allocation={durations.POOL_SECONDS:.2f}, scheduler_e2e={sim.clock.now:.2f}, "
        f"cuda_graph={{decode={sim.timings.get('capture', 0.0):.2f}}}, tokenizer_e2e=0.90"
    )


async def warm_up(sim: Simulation) -> None:
    """After HTTP has opened: the server's own first request, then it calls itself ready."""
    log, clock = sim.sglang, sim.clock
    log.http('127.0.0.1:34972 - "GET /model_info HTTP/1.1" 200 OK')
    compiling = sim.timings["compiling_in_first_request"]
    gather_logits(sim, "ready")
    await clock.advance(durations.WARM_UP_SECONDS + compiling)
    if sim.faults.get("slow_first_post") is None:
        log.http('127.0.0.1:34984 - "POST /generate HTTP/1.1" 200 OK')
    log.main("The server is fired up and ready to roll!")
    await asyncio.sleep(0)
