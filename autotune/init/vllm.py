"""What is worth varying in vLLM 0.32.0 for a model on a kind of GPU."""

from __future__ import annotations

from autotune.init.hosts import GpuKind
from autotune.init.models import ModelFacts
from autotune.init.text import EngineText, Parameter, Scalar, choices, spelled

_ONLY = "engine == 'vllm'"


def vllm_text(
    model: ModelFacts, gpu: GpuKind, gpus: int, concurrency: int, context: int, alone: bool
) -> EngineText:
    """vLLM's part of the file; `alone`: it is the only engine."""
    when = () if alone else (_ONLY,)
    parameters = [
        *_attention(model, gpu, when),
        *_experts(model, gpus, when),
        _speculation(model, when),
        *_batching(model, gpu, gpus, concurrency, when),
    ]
    return EngineText(
        name="vllm",
        command=("vllm", "serve", model.name),
        args=_args(model, gpus, context),
        env=_env(model, gpus),
        parameters=tuple(parameters),
        known_good=(("vLLM as it comes.", {"vllm_spec_tokens": 0}),),
    )


def _args(model: ModelFacts, gpus: int, context: int) -> dict[str, tuple[Scalar, str]]:
    args: dict[str, tuple[Scalar, str]] = {}
    if gpus > 1:
        args["tensor-parallel-size"] = (gpus, "every layer over all GPUs")
    if model.whole_experts(gpus):
        args["enable-expert-parallel"] = (True, "a slice of an expert would cut its FP8 blocks")
    if model.own_code:
        args["trust-remote-code"] = (True, "the model brings code of its own")
    if model.vision and gpus > 1:
        args["mm-encoder-tp-mode"] = ("data", "the vision part is small: one copy on each GPU")
    args["max-model-len"] = (context, "the longest request you must serve: it costs speed")
    return args


def _env(model: ModelFacts, gpus: int) -> dict[str, tuple[str, str]]:
    env: dict[str, tuple[str, str]] = {}
    if gpus > 1:
        env["OMP_NUM_THREADS"] = ("8", "unset, every rank takes all cores")
    if (model.weights_gb or 0) > 100:
        env["VLLM_ENGINE_READY_TIMEOUT_S"] = ("7200", "its own 600 s may end a load on its way")
    return env


def attention_backends(model: ModelFacts, gpu: GpuKind) -> tuple[str | None, ...]:
    """Backends that vLLM accepts here; null is the first of its own list."""
    if model.sparse:
        return (None,)
    if model.mla:
        if gpu.sm == 90:
            return (None, "FLASHMLA", "TRITON_MLA")
        return (None, "CUTLASS_MLA", "TRITON_MLA") if gpu.blackwell_server else (None,)
    return (None,) if model.sinks else (None, "FLASHINFER", "TRITON_ATTN")


def _attention(model: ModelFacts, gpu: GpuKind, when: tuple[str, ...]) -> list[Parameter]:
    backends = attention_backends(model, gpu)
    if len(backends) == 1:
        return []
    comment = f"null lets vLLM choose; the others are accepted for this model on SM{gpu.sm}."
    lines = (choices(*backends), "flag: attention-backend")
    return [Parameter("vllm_attention_backend", comment, lines, when)]


def _experts(model: ModelFacts, gpus: int, when: tuple[str, ...]) -> list[Parameter]:
    if not model.moe or gpus == 1 or model.whole_experts(gpus):
        return []
    comment = "Whole experts on each GPU instead of a slice of every expert."
    lines = (choices(False, True), "flag: enable-expert-parallel")
    return [Parameter("vllm_expert_parallel", comment, lines, when)]


def _speculation(model: ModelFacts, when: tuple[str, ...]) -> Parameter:
    if model.drafter is None:
        comment = (
            "Tokens drafted from n-grams of the prompt, 0 is none: no drafter is known for this "
            "model. It helps where answers repeat their prompts."
        )
        lines: tuple[str, ...] = (
            choices(0, 2, 4),
            'args: {spec-method: ngram, spec-tokens: "{vllm_spec_tokens}", '
            "speculative-config.prompt_lookup_max: 4}",
        )
    else:
        own = [f"    model: {spelled(model.drafter.model)}"] if model.drafter.model else []
        comment = (
            "Draft tokens, 0 is none. Published launches use 3; on Kimi-K2.6 that gave +23 to "
            "+32 % for one request and -6 to +1 % at 128."
        )
        lines = (
            "int: {low: 0, high: 4}",
            "args:",
            "  speculative-config:",
            f"    method: {model.drafter.kind}",
            *own,
            '    num_speculative_tokens: "{vllm_spec_tokens}"',
        )
    return Parameter("vllm_spec_tokens", comment, (*lines, "args_when: vllm_spec_tokens > 0"), when)


def _batching(
    model: ModelFacts, gpu: GpuKind, gpus: int, concurrency: int, when: tuple[str, ...]
) -> list[Parameter]:
    large = gpu.memory_gib >= 70
    own_seqs = 1024 if large and gpu.name != "a100" else 256
    own_tokens = 16384 if gpu.memory_gib >= 160 else 8192 if large else 2048
    share = (model.weights_gb or 0.0) / (gpu.memory_gib * 1.074 * gpus)
    fractions = (0.92, 0.95) if share > 0.5 else (0.92, 0.85)
    return [
        Parameter(
            "vllm_max_num_seqs",
            f"null is vLLM's own {own_seqs} on this GPU.",
            (choices(None, concurrency // 2, concurrency), "flag: max-num-seqs"),
            when,
        ),
        Parameter(
            "vllm_max_num_batched_tokens",
            f"null is vLLM's own {own_tokens} on this GPU.",
            (choices(None, own_tokens // 2, own_tokens * 2), "flag: max-num-batched-tokens"),
            when,
        ),
        Parameter(
            "vllm_gpu_memory_utilization",
            "0.92 is vLLM's own.",
            (choices(*fractions), "flag: gpu-memory-utilization"),
            when,
        ),
    ]
