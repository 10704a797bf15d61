"""What fits on a GPU: weights, KV pool, graphs, activations, and what does not.

SGLang's rule is taken from its logs on an H200: the pool is `fraction x free memory before the load
- weights - draft weights` (0.6 x 139.13 GiB - 13.44 = 70.0 GiB, 509,757 tokens of 147,456 bytes),
and what the fraction leaves is for graphs and activations. vLLM profiles activations and graphs
first and gives the rest of its share to the pool.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.engines.simulated.hosts import GIB, Host
from autotune.engines.simulated.models import Model
from autotune.engines.simulated.settings import Settings
from autotune.engines.simulated.support import PredictedFailure

POOL_MARGIN = 1.5 * GIB  # allocator slack that a pool of the last byte runs into


@dataclass(frozen=True)
class Budget:
    """Bytes on one GPU."""

    total: float
    context: float  # CUDA context, NCCL buffers
    weights: float
    draft: float
    pool: float  # KV cache
    graphs: float
    activations: float  # of the largest prefill chunk
    kv_token: float  # one token of KV, drafter included

    @property
    def free_after_pool(self) -> float:
        return self.total - self.context - self.weights - self.draft - self.pool


def budget(host: Host, model: Model, settings: Settings) -> Budget:
    """How one GPU's memory is divided; `pool` may be negative."""
    context = (1.0 if settings.tp > 1 else 0.62) * GIB
    context += 1.5 * GIB if settings.collective.nvls else 0.0
    weights = model.weight_bytes / settings.tp
    draft = _draft_bytes(model, settings)
    graphs = _graph_bytes(model, settings)
    activations = _activation_bytes(model, settings)
    free = host.memory_bytes - context
    if settings.engine == "vllm":
        share = settings.mem_fraction * host.memory_bytes - context
        pool = share - weights - draft - activations - graphs
    else:
        pool = settings.mem_fraction * free - weights - draft
    return Budget(
        host.memory_bytes,
        context,
        weights,
        draft,
        pool,
        graphs,
        activations,
        kv_token_bytes(model, settings),
    )


def kv_token_bytes(model: Model, settings: Settings) -> float:
    """KV bytes a token takes on one GPU, the drafter's own cache included."""
    half = 0.5 if settings.kv_dtype == "fp8" else 1.0
    size = (model.kv_bytes if model.mla else model.kv_bytes / settings.tp) * half
    if settings.spec_steps and model.draft is not None:
        size += (model.draft.kv_bytes if model.mla else model.draft.kv_bytes / settings.tp) * half
    return size


def kv_capacity(host: Host, model: Model, settings: Settings) -> int:
    """Tokens of KV cache, rounded down to whole pages."""
    plan = budget(host, model, settings)
    tokens = max(0, int(plan.pool / plan.kv_token))
    if model.mla:
        tokens *= settings.attention_dp * settings.context_parallel
    if settings.max_tokens is not None:
        tokens = min(tokens, settings.max_tokens)
    return tokens // settings.page_size * settings.page_size


def _draft_bytes(model: Model, settings: Settings) -> float:
    if not settings.spec_steps or model.draft is None:
        return 0.0
    return model.draft.weight_bytes / settings.tp


def _graph_bytes(model: Model, settings: Settings) -> float:
    """Captured graphs and the PCIe-IPC workspace, which grows with both graph and draft size."""
    if not settings.graph_max_bs:
        return 0.0
    width = settings.spec_steps + 1
    rows = settings.graph_max_bs * width
    graphs = 0.1 * GIB + rows * model.hidden * 2 * 8 + settings.graph_sizes * 3e6 * width
    if settings.collective.pcie_ipc:
        graphs += rows * model.hidden * 2 * settings.tp * 4
    return graphs


def _activation_bytes(model: Model, settings: Settings) -> float:
    tokens = max(settings.chunk_tokens, 2048)
    size = tokens * model.hidden * 2 * (14.0 if model.experts else 5.0)
    size += tokens * model.experts_per_token * 2048 * 2 * 0.8
    return size * (0.8 if settings.expandable_segments else 1.0)


def _oom(asked: float, free: float, total: float) -> str:
    used = total - free
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked / GIB:.2f} GiB. "
        f"GPU 0 has a total capacity of {total / GIB:.2f} GiB of which {free / GIB:.2f} GiB is "
        f"free. Including non-PyTorch memory, this process has {used / GIB:.2f} GiB memory in use."
    )


def out_of_memory(host: Host, phase: str, asked: float, free: float) -> PredictedFailure:
    """An allocation of `asked` bytes where `free` are left."""
    line = _oom(asked, max(free, 0.02 * GIB), host.memory_bytes)
    return PredictedFailure("out_of_memory", phase, line)


def memory_failure(host: Host, model: Model, settings: Settings) -> PredictedFailure | None:
    """What runs out first on a GPU that nothing else uses, if anything does."""
    plan = budget(host, model, settings)
    free = plan.total - plan.context
    if plan.weights + plan.draft > free:
        return out_of_memory(host, "load", 0.44 * GIB, 0.2 * GIB)
    if plan.pool < 2048 * plan.kv_token:
        return PredictedFailure("no_kv_room", "load", _no_room_line(settings))
    if plan.free_after_pool < POOL_MARGIN:
        return out_of_memory(host, "load", plan.pool / model.layers, plan.free_after_pool)
    after_graphs = plan.free_after_pool - plan.graphs
    if after_graphs < 0.4 * GIB:
        return out_of_memory(host, "capture", plan.graphs / 4, plan.free_after_pool / 4)
    if settings.engine == "sglang" and plan.activations > after_graphs:
        return out_of_memory(host, "peak", plan.activations / 2, after_graphs / 3)
    return None


def _no_room_line(settings: Settings) -> str:
    if settings.engine == "vllm":
        return (
            "ValueError: No available memory for the cache blocks. Try increasing "
            "`gpu_memory_utilization` when initializing the engine."
        )
    return (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
        f"Current value: mem_fraction_static={settings.mem_fraction}"
    )
