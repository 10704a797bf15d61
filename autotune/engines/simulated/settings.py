"""What a launch comes down to, whichever engine's flags said it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.engines.simulated import nccl


@dataclass(frozen=True)
class Collective:
    """How ranks talk: read from NCCL's variables and the engine's all-reduce switches."""

    proto: str = ""  # NCCL_PROTO as written
    algo: str = ""  # the only one that NCCL_ALGO leaves the all-reduce, in lower case
    all_gather: bool = True  # NCCL_ALGO leaves the all-gather one at all
    p2p_disabled: bool = False
    p2p_level: str = ""
    min_channels: int = 0
    max_channels: int = 0
    buffer_bytes: int = 0
    nvls: bool = False
    cumem: bool = False
    pcie_ipc: bool = False  # FlashInfer's PCIe-IPC all-reduce
    custom: bool = True  # the engine's own custom all-reduce, where the link allows it
    fusion: bool = False  # all-reduce + norm fusion (SM90, SM100)


@dataclass(frozen=True)
class Settings:
    """Resolved settings of one server, engine-neutral.

    `graph_max_bs` 0 means decode without CUDA graphs. `spec_steps` 0 means no speculation;
    `spec_accept` overrides the drafter's mean accept length.
    """

    engine: str = "sglang"
    tp: int = 1
    attention: str = "triton"  # decode and verify
    prefill_attention: str = "triton"
    moe: str = "auto"
    kv_dtype: str = "bf16"  # or "fp8"
    mem_fraction: float = 0.9
    graph_max_bs: int = 256
    graph_sizes: int = 35
    compiled: bool = False
    max_running: int | None = None
    chunk_tokens: int = 8192
    mixed_chunk: bool = False
    overlap: bool = True
    prefix_cache: bool = True
    conservativeness: float = 1.0
    page_size: int = 1
    attention_dp: int = 1  # data-parallel attention: KV is not repeated on every GPU
    context_parallel: int = 1  # decode context parallelism: the same, for one more collective
    expert_parallel: bool = False
    spec_steps: int = 0
    spec_topk: int = 1
    spec_accept: float | None = None
    context: int | None = None
    max_tokens: int | None = None  # limit on KV tokens
    stream_interval: int = 1
    host_threads: int = 0  # OMP_NUM_THREADS
    recv_interval: int = 1
    fast_load: bool = False
    dummy_weights: bool = False
    expandable_segments: bool = False
    collective: Collective = field(default_factory=Collective)


def collective_of(env: Mapping[str, str]) -> dict[str, object]:
    """The NCCL part of a `Collective`, from the environment."""
    return {
        "proto": env.get("NCCL_PROTO", ""),
        "algo": nccl.all_reduce_algorithm(env.get("NCCL_ALGO", "")),
        "all_gather": bool(nccl.algorithms(env.get("NCCL_ALGO", ""), "allgather")),
        "p2p_disabled": env.get("NCCL_P2P_DISABLE", "0") == "1",
        "p2p_level": env.get("NCCL_P2P_LEVEL", ""),
        "min_channels": _number(env.get("NCCL_MIN_NCHANNELS")),
        "max_channels": _number(env.get("NCCL_MAX_NCHANNELS")),
        "buffer_bytes": _number(env.get("NCCL_BUFFSIZE")),
        "nvls": env.get("NCCL_NVLS_ENABLE", "0") == "1",
        "cumem": env.get("NCCL_CUMEM_ENABLE", "0") == "1",
    }


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
