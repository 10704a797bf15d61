"""vLLM 0.32.0's command line: flags, refusals and silent overrides.

An unknown flag is refused by the top parser (`vllm: error: unrecognized arguments`), a bad choice
by `vllm serve`, a contradiction by pydantic (status 1).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.engines.simulated.hosts import Host
from autotune.engines.simulated.launch_args import Arguments, ResolveError, UsageError
from autotune.engines.simulated.models import Model, model_named
from autotune.engines.simulated.settings import Collective, Settings, collective_of
from autotune.engines.simulated.vllm_flags import BACKENDS, build_parser, without_dotted
from autotune.foreign_json import foreign_json


def parse(argv: Sequence[str], env: Mapping[str, str], host: Host) -> Arguments:
    """The arguments of one launch. Raises UsageError (exit 2) or ResolveError (exit 1)."""
    plain, dotted = without_dotted(argv)
    known, unknown = build_parser().parse_known_args(plain)
    if unknown:
        raise UsageError(
            "usage: vllm [-h] [-v]\n            {chat,complete,serve,launch,bench,collect-env,"
            "run-batch} ...\nvllm: error: unrecognized arguments: " + " ".join(unknown) + "\n"
        )
    values = vars(known)
    asked = {name: value for name, value in values.items() if value not in (None, False)}
    return _resolve(values, asked, dotted, env, host)


def _resolve(
    values: dict[str, Any],
    asked: dict[str, Any],
    dotted: dict[str, str],
    env: Mapping[str, str],
    host: Host,
) -> Arguments:
    path = values["model_tag"] or values["model"] or "Qwen/Qwen3-0.6B"
    model = model_named(path)
    resolved = dict(values) | {"model": path}
    _validate(resolved, model, host)
    backend = _attention(resolved, dotted, model, host)
    steps, accept = _speculation(resolved, dotted)
    level = 2 if resolved["optimization_level"] is None else resolved["optimization_level"]
    eager = resolved["enforce_eager"] or level == 0
    mode = dotted.get("cc.cudagraph_mode") or _json(resolved["compilation_config"]).get(
        "cudagraph_mode"
    )
    graphs = not eager and mode != "NONE"
    sizes = resolved["cudagraph_capture_sizes"]
    top = max(sizes) if sizes else resolved["max_cudagraph_capture_size"] or 512
    resolved |= {"attention_backend": backend, "max_cudagraph_capture_size": top if graphs else 0}
    settings = Settings(
        engine="vllm",
        tp=resolved["tensor_parallel_size"],
        attention=backend,
        prefill_attention=backend,
        moe=resolved["moe_backend"] or "auto",
        kv_dtype="fp8" if str(resolved["kv_cache_dtype"]).startswith("fp8") else "bf16",
        mem_fraction=resolved["gpu_memory_utilization"],
        graph_max_bs=top if graphs else 0,
        graph_sizes=(len(sizes) if sizes else min(51, 4 + top // 12)) if graphs else 0,
        compiled=not eager,
        max_running=resolved["max_num_seqs"],
        chunk_tokens=resolved["max_num_batched_tokens"],
        mixed_chunk=True,
        overlap=not resolved["no_async_scheduling"],
        prefix_cache=not resolved["no_enable_prefix_caching"],
        page_size=resolved["block_size"] or 16,
        context_parallel=resolved["decode_context_parallel_size"] or 1,
        expert_parallel=resolved["enable_expert_parallel"],
        spec_steps=steps,
        spec_accept=accept,
        context=resolved["max_model_len"],
        stream_interval=resolved["stream_interval"] or 1,
        host_threads=int(env.get("OMP_NUM_THREADS") or 0),
        fast_load=resolved["load_format"] in ("fastsafetensors", "runai_streamer")
        or resolved["safetensors_load_strategy"] == "prefetch",
        dummy_weights=resolved["load_format"] == "dummy",
        collective=_collective(resolved, env, host),
    )
    names = resolved["served_model_name"]
    return Arguments(
        engine="vllm",
        model_path=path,
        served_name=names[0] if names else path,
        host=resolved["host"] or "127.0.0.1",
        port=resolved["port"] or 8000,
        settings=settings,
        resolved=resolved,
        asked=asked,
    )


def _validate(resolved: dict[str, Any], model: Model, host: Host) -> None:
    resolved["tensor_parallel_size"] = resolved["tensor_parallel_size"] or 1
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        if resolved[name] is not None and resolved[name] < 1:
            raise ResolveError(_pydantic(name, resolved[name]))
    doubled = 2 if resolved["performance_mode"] == "throughput" else 1
    batched = resolved["max_num_batched_tokens"]
    if batched is None:
        batched = (16384 if host.memory_mib >= 160_000 else 8192) * doubled
    seqs = resolved["max_num_seqs"]
    if seqs is None:
        seqs = min(1024 * doubled, batched)
    if batched < seqs:
        raise ResolveError(
            f"pydantic_core._pydantic_core.ValidationError: 1 validation error for "
            f"SchedulerConfig\n  Value error, max_num_batched_tokens ({batched}) must be greater "
            f"than or equal to max_num_seqs ({seqs})."
        )
    resolved |= {"max_num_batched_tokens": batched, "max_num_seqs": seqs}
    length = resolved["max_model_len"]
    if length is not None and length > model.context:
        raise ResolveError(
            f"ValueError: User-specified max_model_len ({length}) is greater than the derived "
            f"max_model_len (max_position_embeddings={model.context})."
        )
    resolved["max_model_len"] = length or model.context
    if model.heads % resolved["tensor_parallel_size"]:
        raise ResolveError(
            f"ValueError: Total number of attention heads ({model.heads}) must be divisible by "
            f"tensor parallel size ({resolved['tensor_parallel_size']})."
        )
    share = resolved["gpu_memory_utilization"]
    resolved["gpu_memory_utilization"] = 0.92 if share is None else share
    if not 0 < resolved["gpu_memory_utilization"] <= 1:
        raise ResolveError(_pydantic("gpu_memory_utilization", share))


def _pydantic(name: str, value: Any) -> str:
    config = "CacheConfig" if name == "gpu_memory_utilization" else "SchedulerConfig"
    return (
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {config}\n{name}\n"
        f"  Input should be greater than or equal to 1 [type=greater_than_equal, "
        f"input_value={value}, input_type={type(value).__name__}]"
    )


def _attention(resolved: dict[str, Any], dotted: dict[str, str], model: Model, host: Host) -> str:
    asked = resolved["attention_backend"] or dotted.get("ac.backend")
    if asked and asked != "auto":
        if asked.upper() not in BACKENDS:
            raise ResolveError(
                f"ValueError: Unknown attention backend: '{asked}'. Valid options are: "
                + ", ".join(BACKENDS)
            )
        return str(asked).upper()
    if model.sparse_attention:
        return "FLASHINFER_MLA_SPARSE_SM120" if host.arch == "sm120" else "FLASHMLA_SPARSE"
    if model.mla:
        return {"sm120": "TRITON_MLA", "sm100": "FLASHINFER_MLA"}.get(host.arch, "FLASH_ATTN_MLA")
    return "FLASHINFER" if host.arch == "sm100" else "FLASH_ATTN"


def _speculation(resolved: dict[str, Any], dotted: dict[str, str]) -> tuple[int, float | None]:
    """Draft tokens a step and a fixed acceptance, from the JSON, dotted keys or short flags."""
    config = _json(resolved["speculative_config"])
    config |= {name[3:]: value for name, value in dotted.items() if name.startswith("sc.")}
    method = resolved["spec_method"] or config.get("method")
    drafter = resolved["spec_model"] or config.get("model")
    tokens = resolved["spec_tokens"] or config.get("num_speculative_tokens")
    if not (method or drafter or tokens):
        return 0, None
    if not tokens:
        raise ResolveError(
            "ValueError: num_speculative_tokens must be provided with speculative model "
            "unless the draft model config contains an n_predict parameter."
        )
    if method is None and drafter is None:
        raise ResolveError("ValueError: num_speculative_tokens was provided but without method.")
    resolved["speculative_config"] = json.dumps(
        config | {"method": method, "model": drafter, "num_speculative_tokens": int(tokens)}
    )
    accept = config.get("synthetic_acceptance_length")
    return int(tokens), float(accept) if accept else None


def _json(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = foreign_json(text)
    except ValueError:
        raise UsageError(
            f"vllm serve: error: argument --speculative-config/--compilation-config: Value {text} "
            "cannot be converted to <function loads>.\n"
        ) from None
    return value if isinstance(value, dict) else {}


def _collective(resolved: dict[str, Any], env: Mapping[str, str], host: Host) -> Collective:
    return Collective(
        **collective_of(env),  # type: ignore[arg-type]
        pcie_ipc=host.link == "pcie"
        and "1"
        in (
            env.get("VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC"),
            env.get("VLLM_ENABLE_PCIE_ALLREDUCE"),
        ),
        custom=not resolved["disable_custom_all_reduce"] and host.link == "nvlink",
        fusion=host.arch in ("sm90", "sm100"),
    )
