"""The models that can be served: sizes, shapes and what their drafters reach.

Known models have their published figures; any other is inferred from its `config.json` or, failing
that, from its name, as `autotune init` does ("Llama-3.3-70B" is a dense model of 70e9 parameters).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.foreign_json import foreign_json
from autotune.init.models import facts_from_name


@dataclass(frozen=True)
class Draft:
    """A drafter: its weights, its layers, and the mean accept length by number of steps.

    `accept[s]` counts the bonus token (1.0 = nothing accepted), `accept[0]` is 1.0.
    `host_ms` is the host's work per request and cycle, which no graph hides.
    """

    weight_bytes: float
    layers: int
    kv_bytes: float  # per token of its own KV cache
    accept: tuple[float, ...]
    accept_vllm: tuple[float, ...]
    host_ms: float
    built_in: bool = False  # MTP layers of the checkpoint itself


@dataclass(frozen=True)
class Model:
    """One checkpoint. Bytes are of the whole model, before it is split over GPUs."""

    name: str
    architecture: str
    layers: int
    hidden: int
    dense_bytes: float  # read in every forward pass
    expert_bytes: float  # routed experts, all of them
    experts: int
    experts_per_token: int
    active_params: float
    kv_bytes: float  # per token, all layers; latent (MLA) caches are whole on each GPU
    mla: bool
    quantization: str  # "int4", "nvfp4", "fp8", "bf16"
    context: int
    heads: int
    kernel_us: float  # GPU time per layer that does not shrink with the GPU (fitted)
    draft: Draft | None = None
    launches: float = 1.0  # host time to launch a layer's kernels, against a dense layer's
    sparse_attention: bool = False  # DSA
    vision: bool = False
    drift: float = 0.3  # how much slower the first tokens after the start are
    first_load_seconds: tuple[float, float] = (25.0, 40.0)  # cold page cache
    shards: int = 1

    @property
    def weight_bytes(self) -> float:
        return self.dense_bytes + self.expert_bytes


# Accept lengths by steps. KIMI: as the team behind this tool met it (about 2.0 at two steps, 15 %
# acceptance on vLLM). CODING: InferenceX's golden curve for Kimi-K2.5, which the H200 runs used.
_KIMI = (1.0, 1.52, 1.87, 2.12, 2.28, 2.39)
_KIMI_VLLM = (1.0, 1.28, 1.40, 1.45, 1.47, 1.48)
_CODING = (1.0, 1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77)
_MTP = (1.0, 1.80, 2.38, 2.76, 2.98, 3.10)

KIMI = Model(
    name="Kimi-K2.5",
    architecture="KimiK25ForConditionalGeneration",
    layers=61,
    hidden=7168,
    dense_bytes=25e9,
    expert_bytes=570e9,
    experts=384,
    experts_per_token=8,
    active_params=32e9,
    kv_bytes=61 * 576 * 2,
    mla=True,
    quantization="int4",
    context=262_144,
    heads=64,
    kernel_us=98.0,
    draft=Draft(2.6e9, 1, 1 * 576 * 2, _KIMI, _KIMI_VLLM, host_ms=0.14),
    vision=True,
    first_load_seconds=(313.0, 628.0),
    shards=64,
)

GLM5 = Model(
    name="GLM-5-NVFP4",
    architecture="GlmMoeDsaForCausalLM",
    layers=78,
    hidden=6144,
    dense_bytes=41e9,
    expert_bytes=506e9,
    experts=256,
    experts_per_token=8,
    active_params=40e9,
    kv_bytes=78 * 704 * 2,
    mla=True,
    quantization="nvfp4",
    context=202_752,
    heads=64,
    kernel_us=118.0,
    draft=Draft(7.0e9, 1, 1 * 704 * 2, _MTP, _MTP, host_ms=0.12, built_in=True),
    sparse_attention=True,
    first_load_seconds=(290.0, 520.0),
    shards=47,
)

DEEPSEEK_V3 = Model(
    name="DeepSeek-V3",
    architecture="DeepseekV3ForCausalLM",
    layers=61,
    hidden=7168,
    dense_bytes=17e9,
    expert_bytes=672e9,
    experts=256,
    experts_per_token=8,
    active_params=37e9,
    kv_bytes=61 * 576 * 2,
    mla=True,
    quantization="fp8",
    context=163_840,
    heads=128,
    kernel_us=90.0,
    draft=Draft(11.5e9, 1, 1 * 576 * 2, _MTP, _MTP, host_ms=0.12, built_in=True),
    first_load_seconds=(240.0, 420.0),
    shards=163,
)

QWEN3_8B = Model(
    name="Qwen3-8B",
    architecture="Qwen3ForCausalLM",
    layers=36,
    hidden=4096,
    dense_bytes=13.44e9,
    expert_bytes=0.0,
    experts=0,
    experts_per_token=0,
    active_params=6.7e9,
    kv_bytes=36 * 2 * 8 * 128 * 2,
    mla=False,
    quantization="bf16",
    context=40_960,
    heads=32,
    kernel_us=45.0,
    draft=Draft(1.78e9, 16, 16 * 2 * 8 * 128 * 2, _CODING, _CODING, host_ms=0.197),
    shards=5,
)

MINI = Model(
    name="mini-kimi",
    architecture="DeepseekV3ForCausalLM",
    layers=8,
    hidden=2048,
    dense_bytes=1.2e9,
    expert_bytes=4.74e9,
    experts=64,
    experts_per_token=8,
    active_params=0.9e9,
    kv_bytes=8 * 576 * 2,
    mla=True,
    quantization="bf16",
    context=32_768,
    heads=16,
    # Measured (H200, SGLang 0.5.15): a step alone takes 1.7-2.0 ms from a graph; without one 24 ms
    # with flashmla and 18 with flashinfer, 8 layers: bf16 experts are launched from Python.
    kernel_us=175.0,
    launches=4.0,
    draft=Draft(0.4e9, 1, 1 * 576 * 2, _CODING, _CODING, host_ms=0.1),
    drift=2.6,
    first_load_seconds=(8.0, 15.0),
)

NARROW = Model(  # of dummy_models.py: many narrow layers, so that all-reduces decide
    name="nccl-narrow",
    architecture="Qwen3ForCausalLM",
    layers=96,
    hidden=1024,
    dense_bytes=3.08e9,
    expert_bytes=0.0,
    experts=0,
    experts_per_token=0,
    active_params=1.51e9,
    kv_bytes=96 * 2 * 8 * 128 * 2,
    mla=False,
    quantization="bf16",
    context=32_768,
    heads=16,
    # Measured (two H200, SGLang 0.5.15): 4.66 ms a step with all-reduces of 4 us, 45 us a layer.
    kernel_us=37.0,
    draft=QWEN3_8B.draft,
    first_load_seconds=(9.0, 14.0),
)

_KNOWN = (
    ("nccl-narrow", NARROW),
    ("mini-kimi", MINI),
    ("kimi-k2", KIMI),
    ("kimi-k25", KIMI),
    ("glm-5", GLM5),
    ("glm5", GLM5),
    ("deepseek-v3", DEEPSEEK_V3),
    ("deepseek-r1", DEEPSEEK_V3),
    ("qwen3-8b", QWEN3_8B),
)


def model_named(path: str) -> Model:
    """The model at `path` (a folder or a hub name)."""
    text = path.lower().replace("_", "-")
    for part, model in _KNOWN:
        if part in text:
            return model
    config = Path(path) / "config.json"
    if config.is_file():
        return model_from_config(path, foreign_json(config.read_text()))
    sizes = re.findall(r"(\d+(?:\.\d+)?)b(?![a-z])", text)
    return _as_named(_dense(path, float(sizes[0]) * 1e9 if sizes else 8e9), path)


def _as_named(model: Model, path: str) -> Model:
    """With what `autotune init` knows of the name: a file that it wrote must start."""
    facts = facts_from_name(path)
    if facts is None:
        return model
    return replace(
        model,
        architecture=facts.architecture,
        context=facts.context,
        heads=facts.heads or model.heads,
        dense_bytes=(facts.weights_gb or model.dense_bytes / 1e9) * 1e9,
    )


def _dense(name: str, params: float) -> Model:
    """A dense bf16 model of `params` parameters with the proportions of Qwen3-8B."""
    ratio = params / 8e9
    layers = max(4, round(36 * ratio**0.33))
    hidden = max(512, round(4096 * ratio**0.33 / 256) * 256)
    return replace(
        QWEN3_8B,
        name=name.rstrip("/").rsplit("/", 1)[-1],
        layers=layers,
        hidden=hidden,
        dense_bytes=2 * params,
        active_params=params,
        kv_bytes=layers * 2 * 8 * 128 * 2,
        first_load_seconds=(6e-9 * params, 9e-9 * params),
    )


def model_from_config(name: str, config: dict[str, Any]) -> Model:
    """A model from its Hugging Face `config.json` (architecture, MLA, MoE, quantisation)."""
    text = {**config, **config.get("text_config", {})}
    layers, hidden = int(text.get("num_hidden_layers", 32)), int(text.get("hidden_size", 4096))
    experts = int(text.get("n_routed_experts") or text.get("num_experts") or 0)
    width = int(text.get("moe_intermediate_size") or text.get("intermediate_size") or 4 * hidden)
    per_expert = 3 * hidden * width
    mla = "kv_lora_rank" in text
    heads = int(text.get("num_attention_heads", 32))
    head_dim = int(text.get("head_dim") or hidden // heads)
    kv_heads = int(text.get("num_key_value_heads") or heads)
    latent = int(text.get("kv_lora_rank") or 0) + int(text.get("qk_rope_head_dim") or 64)
    kv = layers * (latent * 2 if mla else 4 * kv_heads * head_dim)
    quantization, size = _quantization(config)
    dense = layers * 4 * hidden * hidden + 2 * int(text.get("vocab_size", 32_000)) * hidden
    per_token = int(text.get("num_experts_per_tok") or 0)
    routed = layers * experts * per_expert
    dense += 0 if experts else layers * per_expert
    return Model(
        name=name.rstrip("/").rsplit("/", 1)[-1],
        architecture=str((config.get("architectures") or ["LlamaForCausalLM"])[0]),
        layers=layers,
        hidden=hidden,
        dense_bytes=2.0 * dense,
        expert_bytes=size * routed,
        experts=experts,
        experts_per_token=per_token,
        active_params=float(dense + layers * per_token * per_expert),
        kv_bytes=float(kv),
        mla=mla,
        quantization=quantization,
        context=int(text.get("max_position_embeddings", 32_768)),
        heads=heads,
        kernel_us=110.0 if experts else 40.0,
        draft=QWEN3_8B.draft,
        vision="vision_config" in config,
        first_load_seconds=(25.0 + 5e-10 * routed, 40.0 + 1e-9 * routed),
        shards=max(1, round((2.0 * dense + size * routed) / 5e9)),
    )


def _quantization(config: dict[str, Any]) -> tuple[str, float]:
    """Name and bytes per expert weight."""
    quant = config.get("quantization_config") or {}
    text = json.dumps(quant).lower()
    if "nvfp4" in text or "modelopt_fp4" in text:
        return "nvfp4", 0.5625
    if '"num_bits": 4' in text or '"bits": 4' in text or "int4" in text:
        return "int4", 0.5625
    if "fp8" in text:
        return "fp8", 1.0
    return "bf16", 2.0
