"""How long a pass or a step takes: the one place where the simulated server's speed comes from.

A forward pass costs
    memory   weights it touches and KV it reads, over the GPU's bandwidth
    compute  2 x active parameters x tokens, over what prefill reaches (joined smoothly to memory)
    kernels  a fixed GPU time per layer, whatever the batch
    comm     two all-reduces a layer (tensor parallel), see collectives.py
    host     launching every layer's kernels, hidden by the GPU or by a CUDA graph

Sources: figures of the team this tool was built for (82.5, 63.6, 27 tok/s on 8x RTX PRO
6000; the 29 ms verify), SGLang 0.5.15 measured on one and two H200, community tables of Kimi-K2.x
on the same GPUs (prefill 6,200-7,600 tok/s). Constants that say "fitted" were chosen so that the
calibration table in docs/simulator.md holds within 10 %; everything else is a vendor figure or
the model's shape.
Times are milliseconds unless a name says otherwise.
"""

from __future__ import annotations

from autotune.engines.simulated.collectives import all_reduce_us
from autotune.engines.simulated.hosts import Host
from autotune.engines.simulated.models import Model
from autotune.engines.simulated.settings import Settings

BANDWIDTH_REACHED = 0.90  # of the vendor's figure, by streaming kernels
ROUTING_SKEW = 0.785  # 128 tokens touch experts like 128**0.785 independent ones (fitted)
VERIFY_HOST_MS = 1.0  # per speculative cycle: sampling, bookkeeping (H200 rows, fitted)


# -- one forward pass ----------------------------------------------------------------------------
def smooth_max(first: float, second: float, power: float = 4.0) -> float:
    """The larger of two overlapping times, a little above both where they are close."""
    top = max(first, second)
    if top <= 0:
        return 0.0
    return float(top * ((first / top) ** power + (second / top) ** power) ** (1 / power))


def weights_ms(host: Host, model: Model, settings: Settings, tokens: float) -> float:
    """Reading the weights that `tokens` tokens touch."""
    touched = 0.0
    if model.experts:
        missed = 1 - model.experts_per_token / model.experts
        touched = 1 - missed ** (tokens**ROUTING_SKEW)
    slow = _moe_factor(host, model, settings, tokens)
    # Data-parallel attention repeats its weights on every GPU.
    dense = model.dense_bytes * (2.2 if settings.attention_dp > 1 else 1.0)
    size = dense + model.expert_bytes * touched * slow
    return size / settings.tp / (host.bandwidth_gb_s * BANDWIDTH_REACHED * 1e6)


def _moe_factor(host: Host, model: Model, settings: Settings, tokens: float) -> float:
    """Time of the MoE kernels against the best for this quantisation: winners flip with load."""
    small, large = 1.0, 1.0
    if settings.engine == "vllm" and model.quantization == "int4":
        small, large = (1.25, 1.35) if settings.moe == "humming" else (1.0, 2.05)
    elif model.quantization == "nvfp4" and host.arch == "sm120":
        table = {"triton": (0.94, 1.7), "marlin": (0.90, 1.4), "b12x": (0.92, 1.65)}
        small, large = table.get(settings.moe, (1.0, 1.0))
    elif model.quantization == "fp8" and settings.moe == "triton":
        small, large = 0.96, 1.2
    return small + (large - small) * min(1.0, tokens / 96)


def attention_ms(
    host: Host, model: Model, settings: Settings, kv_tokens: float, tokens: float, seqs: float
) -> float:
    """Reading the KV cache; `tokens / seqs` queries a sequence (1 in plain decode)."""
    width = min(tokens / max(seqs, 1), 16.0)  # prefill tiles its queries
    split = settings.attention_dp * settings.context_parallel if model.mla else 1
    bytes_read = kv_tokens * kv_bytes_per_token(model, settings) / split
    read = bytes_read / (host.bandwidth_gb_s * BANDWIDTH_REACHED * 1e6)
    fixed_us, factor = 0.0, 1.0
    if model.mla:
        fixed_us, factor = (11.0, 1.35) if _is_triton(settings.attention) else (0.0, 1.0)
        if settings.kv_dtype == "fp8" and host.arch == "sm120" and not model.sparse_attention:
            # No SM120 kernel: dequantised on the fly (community: 16 tok/s with SGLang).
            fixed_us += 800.0 if settings.engine == "sglang" else 2.0
    if settings.attention in ("torch_native", "flex_attention", "FLEX_ATTENTION"):
        fixed_us, factor = fixed_us + 90.0, factor * 4
    return float(read * factor * (1 + 0.12 * (width - 1)) + model.layers * fixed_us / 1e3)


def kv_bytes_per_token(model: Model, settings: Settings) -> float:
    """Bytes of KV cache a token needs on one GPU."""
    size = model.kv_bytes if model.mla else model.kv_bytes / settings.tp
    return size * (0.5 if settings.kv_dtype == "fp8" else 1.0)


def _is_triton(attention: str) -> bool:
    return attention.lower().startswith("triton")


def forward_ms(
    host: Host,
    model: Model,
    settings: Settings,
    *,
    tokens: float,
    seqs: float,
    kv_tokens: float,
    graph: bool,
) -> float:
    """One pass of the target model over `tokens` tokens of `seqs` sequences."""
    compute = 2 * model.active_params * tokens / (settings.tp * host.tflops * 1e9)
    body = smooth_max(weights_ms(host, model, settings, tokens), compute, power=2.5)
    comm_us = all_reduce_us(host, settings, tokens * model.hidden * 2, graph)
    gpu = (
        body
        + attention_ms(host, model, settings, kv_tokens, tokens, seqs)
        + _collectives(settings) * model.layers * comm_us / 1e3
        + model.layers * _kernel_us(host, model, settings, seqs, tokens) / 1e3
    )
    requests = seqs * _per_request_us(settings) / 1e3
    if graph:
        return gpu + requests
    launching = model.layers * eager_layer_us(host, model, settings) / 1e3
    return smooth_max(gpu, launching) + requests


def _collectives(settings: Settings) -> float:
    """All-reduces of one layer, or what costs as much."""
    extra = 0.9 if settings.context_parallel > 1 else 0.0  # community: 91.5 -> 75.5 tok/s
    return 2.0 + extra + (0.15 if settings.expert_parallel else 0.0)


def _kernel_us(host: Host, model: Model, settings: Settings, seqs: float, tokens: float) -> float:
    """Small kernels of one layer; compilation fuses some of them."""
    if settings.engine == "vllm":
        fused = 0.43 if host.arch == "sm120" else 0.85
        return model.kernel_us * (fused if settings.compiled else 1.0)
    compiled = settings.compiled and seqs <= 32 and tokens <= 256
    return model.kernel_us * (0.88 if compiled else 1.0)


def _per_request_us(settings: Settings) -> float:
    """Host work per running request and step that is not overlapped."""
    base = 12.0 if settings.overlap else 25.0
    base *= 0.8 if settings.recv_interval > 1 else 1.0
    threads = settings.host_threads
    return base * (1.25 if 0 < threads < 4 else 0.9 if threads in (8, 16) else 1.0)


def eager_layer_us(host: Host, model: Model, settings: Settings) -> float:
    """Host time to launch one layer's kernels; FlashInfer's MLA path launches fewer."""
    if settings.engine == "vllm":
        return host.eager_layer_us * model.launches * 0.75
    light = model.mla and settings.attention == "flashinfer"
    return host.eager_layer_us * model.launches * (0.72 if light else 1.0)


# -- steps of the scheduler ----------------------------------------------------------------------
def graph_covers(model: Model, settings: Settings, seqs: int) -> bool:
    """True if decode (or verify) of `seqs` requests runs from a captured graph.

    FlashInfer's MLA backend verifies as an extend step, outside any graph: the 29 ms cycle.
    """
    if settings.graph_max_bs < seqs:
        return False
    if settings.spec_steps and settings.engine == "sglang" and model.mla:
        return settings.attention != "flashinfer" or model.sparse_attention
    return True


def accept_curve(model: Model, settings: Settings) -> tuple[float, ...]:
    """Mean accept length after 0, 1 … `spec_steps` steps."""
    steps = settings.spec_steps
    if not steps or model.draft is None:
        return (1.0,)
    table = model.draft.accept_vllm if settings.engine == "vllm" else model.draft.accept
    curve = [table[min(s, len(table) - 1)] for s in range(steps + 1)]
    if settings.spec_accept is not None and curve[-1] > 1:
        share = (settings.spec_accept - 1) / (curve[-1] - 1)
        curve = [1 + (a - 1) * share for a in curve]
    return tuple(curve)


def draft_ms(
    host: Host, model: Model, settings: Settings, seqs: int, kv_tokens: float, graph: bool
) -> float:
    """One draft step: a small model, its weights, its KV, its kernels. Split over the ranks like
    the model it drafts for (two H200: 0.88 GB of a 1B drafter's weights on each)."""
    draft = model.draft
    assert draft is not None
    rate = host.bandwidth_gb_s * BANDWIDTH_REACHED * 1e6
    kv_bytes = draft.kv_bytes if model.mla else draft.kv_bytes / settings.tp
    read = (draft.weight_bytes / settings.tp + kv_tokens * kv_bytes) / rate
    kernels = (draft.layers + 1) * model.kernel_us / 1e3
    message = seqs * model.hidden * 2
    comm = 2 * draft.layers * all_reduce_us(host, settings, message, graph) / 1e3
    gpu = read + kernels + comm + seqs * 0.006
    if graph:
        return gpu
    return smooth_max(gpu, draft.layers * eager_layer_us(host, model, settings) / 1e3)


def cycle_ms(
    host: Host, model: Model, settings: Settings, seqs: int, kv_tokens: float
) -> tuple[float, float]:
    """One decode step of `seqs` requests: (whole cycle, its verify part)."""
    graph = graph_covers(model, settings, seqs)
    width = settings.spec_steps + 1 if settings.spec_topk == 1 else 4 * settings.spec_steps
    if not settings.spec_steps or model.draft is None:
        step = forward_ms(
            host, model, settings, tokens=seqs, seqs=seqs, kv_tokens=kv_tokens, graph=graph
        )
        return step + (0.0 if settings.overlap else 1.2), 0.0
    verify = forward_ms(
        host, model, settings, tokens=seqs * width, seqs=seqs, kv_tokens=kv_tokens, graph=graph
    )
    # Drafts have graphs of their own, also where the verify has none.
    drafting = draft_ms(host, model, settings, seqs, kv_tokens, settings.graph_max_bs >= seqs)
    drafts = settings.spec_steps * drafting
    host_work = VERIFY_HOST_MS + seqs * model.draft.host_ms
    return verify + drafts + host_work, verify


def prefill_ms(host: Host, model: Model, settings: Settings, tokens: int, seqs: int = 1) -> float:
    """A prefill pass over `tokens` new tokens (eager: its kernels are launched one by one)."""
    base = forward_ms(
        host, model, settings, tokens=tokens, seqs=seqs, kv_tokens=tokens, graph=False
    )
    if not settings.spec_steps or model.draft is None:
        return base
    return base + draft_ms(host, model, settings, seqs, tokens, graph=False) + 1.0
