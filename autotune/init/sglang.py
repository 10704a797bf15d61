"""What is worth varying in SGLang 0.5.23 for a model on a kind of GPU."""

from __future__ import annotations

import math

from autotune.init.hosts import GpuKind
from autotune.init.models import ModelFacts
from autotune.init.text import EngineText, Parameter, Scalar, choices, spelled

_ONLY = "engine == 'sglang'"


def sglang_text(
    model: ModelFacts, gpu: GpuKind, gpus: int, concurrency: int, context: int, alone: bool
) -> EngineText:
    """SGLang's part of the file; `alone`: it is the only engine."""
    when = () if alone else (_ONLY,)
    parameters = [
        *_attention(model, gpu, when),
        *_moe(model, gpu, when),
        *_speculation(model, when),
        *_batching(model, gpu, gpus, concurrency, when),
    ]
    return EngineText(
        name="sglang",
        command=("python", "-m", "sglang.launch_server"),
        args=_args(model, gpus, context),
        env=_env(gpu, gpus),
        parameters=tuple(parameters),
        known_good=_known_good(model, gpu),
    )


def _args(model: ModelFacts, gpus: int, context: int) -> dict[str, tuple[Scalar, str]]:
    args: dict[str, tuple[Scalar, str]] = {"model-path": (model.name, "a folder, or a hub name")}
    if gpus > 1:
        args["tp-size"] = (gpus, "every layer over all GPUs")
    if model.whole_experts(gpus):
        args["ep-size"] = (gpus, "a slice of an expert would cut its FP8 blocks")
    if model.own_code:
        args["trust-remote-code"] = (True, "the model brings code of its own")
    args["context-length"] = (context, "the longest request you must serve: it costs speed")
    return args


def _env(gpu: GpuKind, gpus: int) -> dict[str, tuple[str, str]]:
    env: dict[str, tuple[str, str]] = {}
    if gpus > 1:
        env["OMP_NUM_THREADS"] = ("8", "unset, every rank takes all cores")
    if gpu.sm >= 120:
        env["SGLANG_ENABLE_JIT_DEEPGEMM"] = ("0", "DeepGEMM has no kernels for this GPU")
    return env


def attention_backends(model: ModelFacts, gpu: GpuKind) -> tuple[str, ...]:
    """Backends that have kernels for this model on this GPU, SGLang's own choice first."""
    if model.sparse:
        return ("flashinfer", "dsa") if gpu.sm >= 120 else ("dsa",)
    if model.mla:
        if gpu.sm == 90:
            return ("fa3", "flashmla", "flashinfer", "triton")
        if gpu.blackwell_server:
            return ("trtllm_mla", "flashinfer", "triton")
        return ("flashinfer", "triton") if gpu.sm >= 120 else ("triton", "flashinfer")
    if model.sinks:
        best = {90: "fa3"}.get(gpu.sm, "trtllm_mha" if gpu.blackwell_server else None)
        return ("triton", best) if best else ("triton",)
    if gpu.sm == 90:
        return ("fa3", "flashinfer", "triton")
    return (
        ("trtllm_mha", "flashinfer", "triton") if gpu.blackwell_server else ("flashinfer", "triton")
    )


def _attention(model: ModelFacts, gpu: GpuKind, when: tuple[str, ...]) -> list[Parameter]:
    backends = attention_backends(model, gpu)
    if len(backends) == 1:
        return []
    kind = "sparse latent" if model.sparse else "latent" if model.mla else "this model's"
    comment = (
        f"Backends with kernels for {kind} attention on SM{gpu.sm}. Others pass SGLang's argument "
        "check and die after the weights are loaded."
    )
    lines = (choices(*backends), "flag: attention-backend")
    found = [Parameter("attention_backend", comment, lines, when)]
    if model.sparse and gpu.sm >= 120:
        comment = (
            "SGLang's sparse attention wants an fp8 cache on this GPU; fp8 gave garbled text in "
            "early builds, which the answer check finds."
        )
        lines = (choices("bf16", "fp8_e4m3"), "flag: kv-cache-dtype")
        found.append(Parameter("kv_cache_dtype", comment, lines, when))
    return found


def moe_backends(model: ModelFacts, gpu: GpuKind) -> tuple[str | None, ...]:
    """MoE kernels for the model's quantisation on this GPU; one entry: nothing to vary."""
    server = gpu.blackwell_server
    match model.quantization:
        case "nvfp4":
            return (
                ("flashinfer_trtllm", "flashinfer_cutlass")
                if server
                else (("flashinfer_cutlass", "triton", "marlin") if gpu.sm >= 120 else (None,))
            )
        case "fp8":
            if gpu.sm == 90:
                return (None, "deep_gemm", "triton")
            return (None, "deep_gemm", "flashinfer_trtllm") if server else (None, "triton")
        case "mxfp4":
            return (None, "triton_kernel", "flashinfer_mxfp4") if server else (None,)
        case "int4":
            return (None,)
    return (None, "triton")


def _moe(model: ModelFacts, gpu: GpuKind, when: tuple[str, ...]) -> list[Parameter]:
    backends = moe_backends(model, gpu) if model.moe else (None,)
    if len(backends) == 1:
        return []
    comment = (
        f"Kernels of the experts that take {model.quantization} on this GPU; null lets SGLang "
        "choose. The winner can flip between one request and many."
    )
    lines = (choices(*backends), "flag: moe-runner-backend")
    return [Parameter("moe_backend", comment, lines, when)]


_ALGORITHMS = {"mtp": "NEXTN", "eagle3": "EAGLE3", "draft_model": "STANDALONE"}


def _speculation(model: ModelFacts, when: tuple[str, ...]) -> list[Parameter]:
    if model.drafter is None:
        return []
    drafter = model.drafter
    own = "the layer that the checkpoint brings" if drafter.model is None else str(drafter.model)
    path = [f"  speculative-draft-model-path: {spelled(drafter.model)}"] if drafter.model else []
    lines = (
        f"int: {{low: 0, high: {4 if drafter.kind == 'mtp' else 5}}}",
        "args:",
        f"  speculative-algorithm: {_ALGORITHMS[drafter.kind]}",
        *path,
        '  speculative-num-steps: "{num_steps}"',
        "  speculative-eagle-topk: 1",
        '  speculative-num-draft-tokens: "{num_steps + 1}"',
        "args_when: num_steps > 0",
    )
    comment = (
        f"Speculative steps, 0 is none; the drafter is {own}. Published launches use 3. It helps "
        "one request and often costs throughput; with topk 1 the draft tokens are steps + 1."
    )
    return [Parameter("num_steps", comment, lines, when)]


def memory_fractions(model: ModelFacts, gpu: GpuKind, gpus: int) -> tuple[float, float]:
    """Lowest and highest fraction of GPU memory worth trying for weights and KV cache."""
    share = (model.weights_gb or 0.0) / (gpu.memory_gib * 1.074 * gpus)
    high = 0.94 if gpu.memory_gib >= 90 else 0.90
    low = max(0.70, math.ceil((share + 0.06) * 50) / 50)
    return min(low, high - 0.02), high


def _batching(
    model: ModelFacts, gpu: GpuKind, gpus: int, concurrency: int, when: tuple[str, ...]
) -> list[Parameter]:
    low, high = memory_fractions(model, gpu, gpus)
    usual = round((low + high) / 2 * 50) / 50
    chunks = (8192, 4096, 16384) if gpu.memory_gib >= 60 else (4096, 2048, 8192)
    graphs = (
        '  disable-cuda-graph: "{true if cuda_graph_max_bs == 0 else null}"',
        '  cuda-graph-max-bs-decode: "{cuda_graph_max_bs if cuda_graph_max_bs > 0 else null}"',
    )
    return [
        Parameter(
            "cuda_graph_max_bs",
            "Largest decode (or verify) batch that runs from a CUDA graph; 0 is none, which "
            "measured a fifth to a half of the speed for one request. Larger ones take memory.",
            (choices(concurrency, 0, concurrency // 4, concurrency * 2), "args:", *graphs),
            when,
        ),
        Parameter(
            "max_running_requests",
            "Must be written: speculation resets an unset one to 48. Fewer than the workload's "
            f"{concurrency} is legal: fewer, faster streams.",
            (choices(concurrency, concurrency // 2, concurrency * 2), "flag: max-running-requests"),
            when,
        ),
        Parameter(
            "chunked_prefill_size",
            f"{chunks[0]} is SGLang's own choice for a GPU of {gpu.memory_gib} GiB.",
            (choices(*chunks), "flag: chunked-prefill-size"),
            when,
        ),
        Parameter(
            "mem_fraction_static",
            "Share of GPU memory for weights and KV cache. More of it is more KV room, until "
            "graphs and activations no longer fit.",
            (
                f"float: {{low: {low:.2f}, high: {high:.2f}, step: 0.02}}",
                "flag: mem-fraction-static",
                f"prior: {low + round((usual - low) * 50) / 50:.2f}",
            ),
            when,
        ),
    ]


def _known_good(model: ModelFacts, gpu: GpuKind) -> tuple[tuple[str, dict[str, Scalar]], ...]:
    backends = attention_backends(model, gpu)
    base: dict[str, Scalar] = {"attention_backend": backends[0]} if len(backends) > 1 else {}
    if model.drafter is None:
        return (("The values that SGLang or published launches start from.", base),)
    return (
        ("The values that SGLang or published launches start from, without speculation.",
         base | {"num_steps": 0}),
        ("The same with the depth of speculation that everybody prints.", base | {"num_steps": 3}),
    )  # fmt: skip
