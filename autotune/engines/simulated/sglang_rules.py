"""SGLang's automatic values: attention backend, page size, capture sizes, memory fraction."""

from __future__ import annotations

from typing import Any

from autotune.engines.simulated.hosts import Host
from autotune.engines.simulated.models import Model


def default_attention(host: Host, model: Model, speculates: bool) -> str:
    """MHA: Hopper fa3, SM100 trtllm_mha, else flashinfer. MLA: fa3, trtllm_mla, else triton."""
    if model.sparse_attention:
        return "dsa"
    if host.arch == "sm90":
        return "fa3"
    if host.arch == "sm100":
        return "trtllm_mla" if model.mla else "trtllm_mha"
    return "triton" if model.mla else "flashinfer"


def page_size_of(backend: str, model: Model, asked: int | None) -> tuple[int, str | None]:
    """The page size that is used, and the warning if it is not what was asked."""
    if model.sparse_attention:
        return 64, "Setting page size to 64 for DeepSeek DSA." if asked != 64 else None
    forced = {
        "flashmla": (64,),
        "trtllm_mla": (64, 32),
        "cutedsl_mla": (64, 32),
        "trtllm_mha": (64, 16, 32, 128),
    }.get(backend)
    if forced is None or asked in forced:
        return asked or 1, None
    name = {"trtllm_mha": "TensorRT-LLM MHA", "flashmla": "FlashMLA"}.get(
        backend, "TensorRT-LLM MLA"
    )
    sizes = " or ".join(str(size) for size in sorted(forced))
    return forced[0], (
        f"{name} only supports page_size of {sizes}, changing page_size from {asked or 1} to "
        f"{forced[0]}."
    )


def default_graph_max_bs(host: Host, tp: int) -> int:
    """The largest decode batch that is captured."""
    if host.memory_mib < 60_000:
        return 160 if tp >= 4 else 32
    if host.memory_mib < 160_000:
        return 512 if tp >= 4 else 256
    return 512


def capture_sizes(top: int, speculates: bool, padding: bool) -> list[int]:
    """The batch sizes that get a graph."""
    if not padding:
        return list(range(1, top + 1))
    if speculates:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8)]
        sizes += [*range(272, top + 1, 16)]
    else:
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, top + 1, 32)]
    kept = [size for size in sizes if size <= top]
    return kept if top in kept else [*kept, top]


def default_fraction(resolved: dict[str, Any], model: Model, host: Host) -> float:
    """`--mem-fraction-static` where it is unset: what graphs and activations leave.

    The rule of 0.5.23: Kimi-K2.5 on 97,887 MiB at tp 8 gives about 0.758 (it is a vision model),
    a GLM-5 shape about 0.833.
    """
    reserved = 512 + 1.5 * max(resolved["chunked_prefill_size"], 2048)
    reserved += resolved["tp_size"] * resolved["pp_size"] / 8 * 1024
    if resolved["cuda_graph_backend_decode"] != "disabled":
        reserved += 2 * resolved["cuda_graph_max_bs_decode"]
    if resolved["cuda_graph_backend_prefill"] != "disabled":
        reserved += 1536 if model.mla else 8 * 58
    attention_dp = resolved["attn_dp_size"] or 1
    if attention_dp > 1:
        reserved += 3 * resolved["cuda_graph_max_bs_decode"] * attention_dp
    reserved = max(reserved, 10_240) if host.memory_mib > 60_000 else reserved
    fraction = (host.memory_mib - reserved) / host.memory_mib
    return float(round(fraction * (0.91 if model.vision else 1.0), 3))
