"""SGLang 0.5.23's command line: flags, choices, refusals and silent overrides.

What flags default to, which combinations are refused and what is changed without an error follows
the 0.5.23 resolver; the flags themselves stand in `sglang_flags.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.engines.simulated.hosts import Host
from autotune.engines.simulated.launch_args import Arguments, ResolveError, UsageError
from autotune.engines.simulated.models import Model, model_named
from autotune.engines.simulated.settings import Collective, Settings, collective_of
from autotune.engines.simulated.sglang_flags import build_parser
from autotune.engines.simulated.sglang_rules import (
    capture_sizes,
    default_attention,
    default_fraction,
    default_graph_max_bs,
    page_size_of,
)

_DEPRECATED = {
    "disable_cuda_graph": ("--disable-cuda-graph", "--cuda-graph-backend-decode=disabled"),
    "enable_dp_attention": ("--enable-dp-attention", "--attn-dp-size"),
    "enable_flashinfer_allreduce_fusion": (
        "--enable-flashinfer-allreduce-fusion",
        "--flashinfer-allreduce-fusion-backend auto",
    ),
}


def parse(argv: Sequence[str], env: Mapping[str, str], host: Host) -> Arguments:
    """The arguments of one launch. Raises UsageError (exit 2) or ResolveError (exit 1)."""
    argv = list(argv)
    if argv and not argv[0].startswith("-"):
        argv = ["--model-path", *argv]
    values = vars(build_parser().parse_args(argv))
    if values["model_path"] is None:
        raise UsageError(
            "sglang serve: error: the following arguments are required: --model-path\n"
        )
    asked = {name: value for name, value in values.items() if value not in (None, False)}
    return _resolve(values, asked, env, host)


def _resolve(
    values: dict[str, Any], asked: dict[str, Any], env: Mapping[str, str], host: Host
) -> Arguments:
    model = model_named(values["model_path"])
    resolved, warnings = dict(values), list[str]()
    for name, (old, new) in _DEPRECATED.items():
        if values[name]:
            text = f"'{old}' is deprecated and will be removed in a future release. Use '{new}'"
            warnings.append(f"\x1b[1;33m{text} instead.\x1b[0m")
    _resolve_basics(resolved, model, host)
    _resolve_speculation(resolved, model, warnings)
    _resolve_attention(resolved, model, host, warnings)
    _resolve_graphs(resolved, host)
    _resolve_memory(resolved, model, host)
    settings = _settings(resolved, env, model, host)
    return Arguments(
        engine="sglang",
        model_path=values["model_path"],
        served_name=resolved["served_model_name"],
        host=resolved["host"],
        port=resolved["port"],
        settings=settings,
        resolved=resolved,
        asked=asked,
        warnings=warnings,
        metrics=values["enable_metrics"],
        log_interval=resolved["decode_log_interval"],
    )


_DEFAULTS: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 30000,
    "tp_size": 1,
    "pp_size": 1,
    "dp_size": 1,
    "ep_size": 1,
    "max_prefill_tokens": 16384,
    "schedule_policy": "fcfs",
    "schedule_conservativeness": 1.0,
    "stream_interval": 1,
    "scheduler_recv_interval": 1,
    "moe_runner_backend": "auto",
    "moe_a2a_backend": "none",
    "sampling_backend": "flashinfer",
    "kv_cache_dtype": "auto",
    "load_format": "auto",
    "dtype": "auto",
    "decode_log_interval": 40,
    "watchdog_timeout": 300.0,
    "device": "cuda",
    "random_seed": 948907867,
    "cuda_graph_backend_prefill": "breakable",
}


def _resolve_basics(resolved: dict[str, Any], model: Model, host: Host) -> None:
    for name, value in _DEFAULTS.items():
        if resolved[name] is None:
            resolved[name] = value
    resolved["tokenizer_path"] = resolved["tokenizer_path"] or resolved["model_path"]
    resolved["served_model_name"] = resolved["served_model_name"] or resolved["model_path"]
    if resolved["chunked_prefill_size"] is None:
        resolved["chunked_prefill_size"] = 8192 if host.memory_mib < 160_000 else 16384
    if resolved["enable_dp_attention"]:
        size_ = max(2, resolved["dp_size"])
        resolved["attn_dp_size"], resolved["dp_size"] = size_, 1
        resolved["chunked_prefill_size"] //= size_
    if model.heads % resolved["tp_size"]:
        raise ResolveError(
            f"AssertionError: Total number of attention heads ({model.heads}) must be divisible "
            f"by tensor parallel size ({resolved['tp_size']})."
        )


def _resolve_speculation(resolved: dict[str, Any], model: Model, warnings: list[str]) -> None:
    steps = resolved["speculative_num_steps"]
    topk, drafts = resolved["speculative_eagle_topk"], resolved["speculative_num_draft_tokens"]
    if resolved["speculative_algorithm"] is None:
        if steps is not None and topk is None:
            raise ResolveError("TypeError: '>' not supported between 'NoneType' and 'int'")
        return
    if steps is None and topk is None and drafts is None:
        steps, topk, drafts = 3, 1, 4
    if steps is None:
        raise ResolveError("AssertionError")
    if topk is None:
        raise ResolveError("TypeError: '>' not supported between instances of 'NoneType' and 'int'")
    if resolved["speculative_adaptive"] and steps not in (0, 1, 3, 5, 7):
        raise ResolveError(
            f"ValueError: --speculative-num-steps={steps} is not in the adaptive config "
            "candidate_steps [0, 1, 3, 5, 7]"
        )
    if topk == 1 and drafts != steps + 1:
        drafts = steps + 1
        warnings.append(
            "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when "
            "speculative_eagle_topk == 1"
        )
    resolved |= {
        "speculative_num_steps": steps,
        "speculative_eagle_topk": topk,
        "speculative_num_draft_tokens": drafts,
    }
    _resolve_draft(resolved, model)
    if resolved["max_running_requests"] is None:
        resolved["max_running_requests"] = 48
        warnings.append(
            "Max running requests is reset to 48 for speculative decoding. You can override "
            "this by explicitly setting --max-running-requests."
        )


def _resolve_draft(resolved: dict[str, Any], model: Model) -> None:
    if resolved["speculative_algorithm"] == "NEXTN":
        resolved["speculative_algorithm"] = "EAGLE"
    if resolved["speculative_algorithm"] == "NGRAM":
        return
    if resolved["speculative_draft_model_path"] is None:
        if model.draft is None or not model.draft.built_in:
            raise ResolveError(
                "AssertionError: --speculative-draft-model-path is required for this model"
            )
        resolved["speculative_draft_model_path"] = resolved["model_path"]


def _resolve_attention(
    resolved: dict[str, Any], model: Model, host: Host, warnings: list[str]
) -> None:
    if resolved["attention_backend"] is None:
        steps = resolved["speculative_num_steps"] or 0
        resolved["attention_backend"] = default_attention(host, model, bool(steps))
        warnings.append(
            "Attention backend not specified. Use "
            f"{resolved['attention_backend']} backend by default."
        )
    backend = resolved["attention_backend"]
    names = (backend, resolved["decode_attention_backend"], resolved["prefill_attention_backend"])
    if "cutedsl_mla" in names and host.arch != "sm100":
        raise ResolveError(
            "ValueError: CuteDSL MLA backend is only supported on Blackwell GPUs (SM100)"
        )
    if "trtllm_mla" in names and host.arch == "sm90":
        raise ResolveError(
            "ValueError: TRTLLM MLA backend is only supported on Blackwell GPUs (SM100/SM12x)"
        )
    if model.sparse_attention and resolved["kv_cache_dtype"] == "auto" and host.arch != "sm90":
        resolved["kv_cache_dtype"] = "fp8_e4m3"
    asked_page = resolved["page_size"]
    page, warning = page_size_of(resolved["decode_attention_backend"] or backend, model, asked_page)
    resolved["page_size"] = page
    if warning:
        warnings.append(warning)
    topk = resolved["speculative_eagle_topk"] or 1
    if topk > 1 and page > 1 and backend not in ("flashinfer", "fa3", "triton"):
        raise ResolveError(
            "ValueError: speculative_eagle_topk > 1 with page_size > 1 is only supported on "
            "('flashinfer', 'fa3', 'triton')"
        )
    chunk = resolved["chunked_prefill_size"]
    if chunk > 0 and chunk % page:
        raise ResolveError("AssertionError: chunked_prefill_size must be divisible by page_size")


def _resolve_graphs(resolved: dict[str, Any], host: Host) -> None:
    if resolved["disable_cuda_graph_padding"] and resolved["enable_torch_compile"]:
        raise ResolveError(
            "AssertionError: --disable-cuda-graph-padding is incompatible with "
            "--enable-torch-compile"
        )
    config = _graph_config(resolved)
    decode, prefill = config.get("decode") or {}, config.get("prefill") or {}
    off = resolved["disable_cuda_graph"]
    native = resolved["attention_backend"] in ("torch_native", "flex_attention")
    backend = decode.get("backend") or resolved["cuda_graph_backend_decode"] or "full"
    if off or native or resolved["disable_decode_cuda_graph"]:
        backend = "disabled"
    resolved["cuda_graph_backend_decode"] = backend
    if off or native or resolved["disable_prefill_cuda_graph"] or prefill.get("backend"):
        resolved["cuda_graph_backend_prefill"] = prefill.get("backend") or "disabled"
    listed = decode.get("bs") or resolved["cuda_graph_bs_decode"]
    top = decode.get("max_bs") or resolved["cuda_graph_max_bs_decode"]
    if listed:
        top = max(listed)  # a list wins over the maximum, silently
    elif top is None:
        top = default_graph_max_bs(host, resolved["tp_size"])
        explicit = resolved["max_running_requests"]
        if explicit is not None and resolved["speculative_algorithm"] is None:
            top = min(top, explicit)
    resolved["cuda_graph_max_bs_decode"] = top
    speculates = bool(resolved["speculative_num_steps"])
    padding = not resolved["disable_cuda_graph_padding"]
    resolved["cuda_graph_bs_decode"] = listed or capture_sizes(top, speculates, padding)


def _graph_config(resolved: dict[str, Any]) -> dict[str, Any]:
    if resolved["cuda_graph_config"] is None:
        return {}
    try:
        config = json.loads(resolved["cuda_graph_config"])
    except ValueError as error:
        raise ResolveError(f"ValueError: --cuda-graph-config: {error}") from None
    return config if isinstance(config, dict) else {}


def _resolve_memory(resolved: dict[str, Any], model: Model, host: Host) -> None:
    if resolved["mem_fraction_static"] is None:
        resolved["mem_fraction_static"] = default_fraction(resolved, model, host)


def _settings(
    resolved: dict[str, Any], env: Mapping[str, str], model: Model, host: Host
) -> Settings:
    decode = resolved["decode_attention_backend"] or resolved["attention_backend"]
    prefill = resolved["prefill_attention_backend"] or resolved["attention_backend"]
    graphs = resolved["cuda_graph_backend_decode"] != "disabled"
    speculates = resolved["speculative_algorithm"] is not None
    accept = env.get("SGLANG_SIMULATE_ACC_LEN")
    loader = resolved["model_loader_extra_config"] or ""
    chunk = resolved["chunked_prefill_size"]
    return Settings(
        engine="sglang",
        tp=resolved["tp_size"],
        attention=decode,
        prefill_attention=prefill,
        moe=resolved["moe_runner_backend"],
        kv_dtype="fp8" if resolved["kv_cache_dtype"].startswith(("fp8", "mxfp8")) else "bf16",
        mem_fraction=resolved["mem_fraction_static"],
        graph_max_bs=resolved["cuda_graph_max_bs_decode"] if graphs else 0,
        graph_sizes=len(resolved["cuda_graph_bs_decode"]) if graphs else 0,
        compiled=resolved["enable_torch_compile"],
        max_running=resolved["max_running_requests"],
        chunk_tokens=chunk if chunk > 0 else resolved["max_prefill_tokens"],
        mixed_chunk=resolved["enable_mixed_chunk"],
        overlap=not resolved["disable_overlap_schedule"],
        prefix_cache=not resolved["disable_radix_cache"],
        conservativeness=resolved["schedule_conservativeness"],
        page_size=resolved["page_size"],
        attention_dp=resolved["attn_dp_size"] or 1,
        expert_parallel=resolved["ep_size"] > 1,
        spec_steps=(resolved["speculative_num_steps"] or 0) if speculates else 0,
        spec_topk=(resolved["speculative_eagle_topk"] or 1) if speculates else 1,
        spec_accept=float(accept) if accept and float(accept) >= 1 else None,
        context=resolved["context_length"],
        max_tokens=resolved["max_total_tokens"],
        stream_interval=resolved["stream_interval"],
        recv_interval=resolved["scheduler_recv_interval"],
        host_threads=int(env.get("OMP_NUM_THREADS") or 0),
        fast_load="multithread" in loader or resolved["load_format"] == "fastsafetensors",
        dummy_weights=resolved["load_format"] == "dummy",
        expandable_segments="expandable_segments:True" in env.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        collective=_collective(resolved, env, model, host),
    )


def _collective(
    resolved: dict[str, Any], env: Mapping[str, str], model: Model, host: Host
) -> Collective:
    fusion = resolved["flashinfer_allreduce_fusion_backend"] is not None
    fusion |= resolved["enable_flashinfer_allreduce_fusion"] or host.arch != "sm120"
    fusion &= not resolved["enforce_disable_flashinfer_allreduce_fusion"] and bool(model.experts)
    read = collective_of(env)
    if resolved["enable_nccl_nvls"] or resolved["enable_symm_mem"]:
        read |= {"nvls": True, "cumem": True}
    return Collective(
        **read,  # type: ignore[arg-type]
        pcie_ipc=env.get("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "0") in ("1", "true")
        and host.link == "pcie",
        custom=not resolved["disable_custom_all_reduce"] and host.link == "nvlink",
        fusion=fusion and host.arch != "sm120",
    )
