"""Which kernels a GPU lacks: what starts, loads for minutes, and then dies."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.engines.simulated.hosts import Host
from autotune.engines.simulated.models import Model
from autotune.engines.simulated.settings import Settings


@dataclass(frozen=True)
class PredictedFailure:
    """What a configuration dies of. `kind` and `phase` are values of the records' enums.

    `line` is the causal line of the engine's log. A `collective` failure is a hang: it has no
    line, all GPUs are 100 % busy.
    """

    kind: str
    phase: str
    line: str


_NO_IMAGE = (
    "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"
)
_NOT_ON_SM120 = (
    "deep_gemm",
    "cutlass",
    "flashinfer_trtllm",
    "flashinfer_cutedsl",
    "flashinfer_mxfp4",
)
_TRTLLM = (
    "RuntimeError: Error in function 'TllmGenFmhaRunner' at fmhaRunner.cuh:37: "
    "Unsupported architecture"
)


def kernel_failure(host: Host, model: Model, settings: Settings) -> PredictedFailure | None:
    """The failure that this combination of GPU, model and settings has, if any."""
    collective = settings.collective
    if settings.tp > host.gpus:
        return PredictedFailure(
            "unsupported", "launch", "torch.AcceleratorError: CUDA error: invalid device ordinal"
        )
    if collective.pcie_ipc and collective.p2p_disabled and host.link == "pcie":
        return PredictedFailure("collective", "launch", "")
    if settings.engine == "vllm":
        return _vllm_attention(host, model, settings) or _all_gather(settings)
    return (
        _sglang_attention(host, model, settings)
        or _sglang_other(host, model, settings)
        or _all_gather(settings)
    )


def _all_gather(settings: Settings) -> PredictedFailure | None:
    """Ranks gather their logits, SGLang first in a graph (seen on two H200 with NCCL 2.28), or for
    the first request where it has none, and vLLM when it profiles (both not measured)."""
    if settings.tp <= 1 or settings.collective.all_gather:
        return None
    phase = "capture" if settings.graph_max_bs or settings.engine == "vllm" else "ready"
    line = "RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)"
    return PredictedFailure("unsupported", phase, line)


def _sglang_attention(host: Host, model: Model, settings: Settings) -> PredictedFailure | None:
    for name in {settings.attention, settings.prefill_attention}:
        line = ""
        if name == "trtllm_mla" and host.arch != "sm100":
            line = _TRTLLM
        elif name == "trtllm_mha" and model.mla:
            line = "RuntimeError: trtllm_mha: head_dim 576 is not supported"
        elif (name == "fa3" and host.arch != "sm90") or (
            name == "flashmla" and host.arch not in ("sm90", "sm100")
        ):
            line = _NO_IMAGE
        elif name == "flashinfer" and model.mla and settings.kv_dtype == "fp8":
            if not model.sparse_attention:
                line = "ValueError: FlashInfer MLA does not support FP8 KV cache"
        elif name == "dsa" and settings.kv_dtype != "fp8" and host.arch == "sm120":
            line = _NO_IMAGE
        if line:
            return PredictedFailure("unsupported", "load", line)
    if settings.spec_steps and settings.attention in ("torch_native", "flex_attention", "fa4"):
        line = (
            f"ValueError: EAGLE is not supported in decode attention backend {settings.attention}"
        )
        return PredictedFailure("unsupported", "load", line)
    return None


def _sglang_other(host: Host, model: Model, settings: Settings) -> PredictedFailure | None:
    # An INT4 checkpoint binds to Marlin whatever is asked, so nothing breaks there.
    asks_kernels = model.experts and model.quantization != "int4" and host.arch == "sm120"
    if asks_kernels and settings.moe in _NOT_ON_SM120:
        return PredictedFailure("unsupported", "load", _NO_IMAGE)
    if settings.collective.pcie_ipc and settings.expandable_segments and settings.graph_max_bs:
        line = "torch.AcceleratorError: CUDA error: invalid argument (cudaIpcGetMemHandle)"
        return PredictedFailure("crashed", "capture", line)
    return None


_VLLM_MLA = {  # GPU -> what vLLM's selector accepts for latent attention
    "sm120": {"TRITON_MLA"},
    "sm100": {"FLASHINFER_MLA", "TOKENSPEED_MLA", "CUTLASS_MLA", "FLASHMLA", "TRITON_MLA"},
    "sm90": {"FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA"},
}
_VLLM_MHA = {"FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"}


def _vllm_attention(host: Host, model: Model, settings: Settings) -> PredictedFailure | None:
    name = settings.attention
    if model.mla and model.sparse_attention:
        allowed = {"FLASHINFER_MLA_SPARSE_SM120", "FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE"}
    else:
        allowed = _VLLM_MLA[host.arch] if model.mla else _VLLM_MHA
    if name in allowed or name == "auto":
        return None
    line = (
        f"ValueError: Selected backend AttentionBackendEnum.{name} is not valid for this "
        "configuration. Reason: ['compute capability not supported']"
    )
    return PredictedFailure("unsupported", "load", line)
