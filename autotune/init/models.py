"""What a model's `config.json`, or its well-known name, says about how it can be served."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from autotune.errors import InputError
from autotune.foreign_json import foreign_json

Quantization = Literal["bf16", "fp8", "int4", "nvfp4", "mxfp4"]
_BYTES_PER_PARAMETER: Mapping[Quantization, float] = {
    "bf16": 2.0, "fp8": 1.0, "int4": 0.56, "nvfp4": 0.58, "mxfp4": 0.55,
}  # fmt: skip


@dataclass(frozen=True)
class Drafter:
    """What can draft tokens for a model. `model` None: the checkpoint's own layer does."""

    kind: Literal["mtp", "eagle3", "draft_model"]
    model: str | None = None


@dataclass(frozen=True)
class ModelFacts:
    """What decides which flags make sense."""

    name: str  # as the engines get it: a folder or a hub name
    architecture: str
    mla: bool = False  # latent attention (DeepSeek's and Kimi's)
    sparse: bool = False  # with an indexer on top (DeepSeek V3.2, GLM-5)
    sinks: bool = False  # attention sinks (gpt-oss)
    moe: bool = False
    quantization: Quantization = "bf16"
    context: int = 32_768  # tokens
    weights_gb: float | None = None
    heads: int | None = None
    drafter: Drafter | None = None
    vision: bool = False
    own_code: bool = False  # needs trust-remote-code
    expert_blocks: int | None = None  # an expert's width in blocks of weights with one FP8 scale
    known_by: str = "its config.json"

    def whole_experts(self, gpus: int) -> bool:
        """Whether each expert must stay whole: engines load no slice that cuts an FP8 block."""
        blocks = self.expert_blocks if self.quantization == "fp8" else None
        return blocks is not None and blocks % gpus != 0


def read_model(name: str) -> ModelFacts:
    """Facts from the folder's config.json, else from the name.

    Raises:
        InputError: neither says what the model is.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _from_folder(name, folder)
    known = facts_from_name(name)
    if known is None:
        raise InputError(
            f"--model {name}: no such folder, and the name is not known here: give the folder "
            "that holds its config.json, or a name that tells the size, such as Some-Model-8B"
        )
    return known


def _from_folder(name: str, folder: Path) -> ModelFacts:
    path = folder / "config.json"
    try:
        whole = foreign_json(path.read_text(encoding="utf-8"))
    except OSError:
        raise InputError("is missing: --model needs a model's folder", file=path) from None
    except ValueError:
        raise InputError("is not JSON", file=path) from None
    if not isinstance(whole, dict):
        raise InputError("must be a JSON object", file=path)
    facts = facts_from_config(name, whole)
    return replace(facts, weights_gb=_weights_gb(folder), drafter=_drafter(facts, folder.name))


def facts_from_config(name: str, whole: Mapping[str, Any]) -> ModelFacts:
    """Facts from a parsed config.json; a vision model keeps the text part in `text_config`."""
    inner = whole.get("text_config")
    text = {**whole, **inner} if isinstance(inner, dict) else dict(whole)
    named = whole.get("architectures")
    architecture = str(named[0]) if isinstance(named, list) and named else "unknown"
    mtp = _count(text, "num_nextn_predict_layers", "num_mtp_modules") > 0
    return ModelFacts(
        name=name,
        architecture=architecture,
        mla=_count(text, "kv_lora_rank") > 0,
        sparse=_count(text, "index_topk") > 0,
        sinks=architecture.startswith("GptOss"),
        moe=_count(text, "n_routed_experts", "num_experts", "num_local_experts") > 1,
        quantization=_quantization(text),
        context=_count(text, "max_position_embeddings") or 32_768,
        heads=_count(text, "num_attention_heads") or None,
        drafter=Drafter("mtp") if mtp else None,
        vision="vision_config" in whole,
        own_code="auto_map" in whole,
        expert_blocks=_expert_blocks(text),
    )


def _count(config: Mapping[str, Any], *keys: str) -> int:
    values = (config.get(key) for key in keys)
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool)), 0)


def _quantization(config: Mapping[str, Any]) -> Quantization:
    found = config.get("quantization_config")
    if not isinstance(found, dict):
        return "bf16"
    text = json.dumps(found).lower()
    if "nvfp4" in text or "mxfp4" in text:
        return "nvfp4" if "nvfp4" in text else "mxfp4"
    if re.search(r'"(awq|gptq)[^"]*"', text) or re.search(r'"(num_bits|bits)": 4\b', text):
        return "int4"
    return "fp8" if "fp8" in text or '"num_bits": 8' in text else "bf16"


def _expert_blocks(config: Mapping[str, Any]) -> int | None:
    found = config.get("quantization_config")
    block = found.get("weight_block_size") if isinstance(found, dict) else None
    width = _count(config, "moe_intermediate_size")
    if not isinstance(block, list) or not block or not isinstance(block[0], int):
        return None
    return width // block[0] if width and block[0] > 0 and width % block[0] == 0 else None


def _weights_gb(folder: Path) -> float | None:
    """Size of the weight files, None where the folder holds none (dummy weights)."""
    files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    size = sum(file.stat().st_size for file in files)
    return size / 1e9 if size else None


def _drafter(facts: ModelFacts, folder: str) -> Drafter | None:
    """The drafter of the model that the folder's name tells, if its checkpoint has none."""
    known = facts_from_name(folder)
    return facts.drafter or (known.drafter if known else None)


def _eagle3(model: str) -> Drafter:
    return Drafter("eagle3", model)


_KIMI = ModelFacts(
    "", "KimiK25ForConditionalGeneration", mla=True, moe=True, quantization="int4",
    context=262_144, weights_gb=595, heads=64, vision=True, own_code=True,
)  # fmt: skip
_DEEPSEEK = ModelFacts(
    "", "DeepseekV3ForCausalLM", mla=True, moe=True, quantization="fp8", context=163_840,
    weights_gb=689, heads=128, drafter=Drafter("mtp"), own_code=True,
)  # fmt: skip
_GLM5 = ModelFacts(
    "", "GlmMoeDsaForCausalLM", mla=True, sparse=True, moe=True, quantization="bf16",
    context=202_752, weights_gb=1490, heads=64, drafter=Drafter("mtp"),
)  # fmt: skip
_QWEN3_DRAFT = Drafter("draft_model", "Qwen/Qwen3-0.6B")
_QWEN3 = ModelFacts("", "Qwen3ForCausalLM", context=40_960, drafter=_QWEN3_DRAFT)
_QWEN3_MOE = ModelFacts("", "Qwen3MoeForCausalLM", moe=True, context=40_960)
_QWEN3_LONG = replace(_QWEN3_MOE, context=262_144)
_LLAMA_DRAFT = Drafter("draft_model", "meta-llama/Llama-3.2-1B-Instruct")
_LLAMA = ModelFacts("", "LlamaForCausalLM", context=131_072, drafter=_LLAMA_DRAFT)
_GPT_OSS = ModelFacts(
    "", "GptOssForCausalLM", sinks=True, moe=True, quantization="mxfp4", context=131_072,
    weights_gb=65, heads=64,
)  # fmt: skip

_KNOWN: tuple[tuple[str, ModelFacts], ...] = (
    # Drafters: the ones that both engines' published recipes name.
    (r"kimi-k2\.?6", replace(_KIMI, drafter=_eagle3("lightseekorg/kimi-k2.6-eagle3-mla"))),
    (r"kimi-k2\.?5", replace(_KIMI, drafter=_eagle3("lightseekorg/kimi-k2.5-eagle3-mla"))),
    (r"kimi-k2-thinking", replace(_KIMI, architecture="DeepseekV3ForCausalLM", vision=False)),
    (r"kimi-k2", replace(_KIMI, architecture="DeepseekV3ForCausalLM", vision=False, context=131_072,
                         quantization="fp8", weights_gb=1030,
                         drafter=_eagle3("AQ-MedAI/Kimi-K2-Instruct-eagle3"))),
    (r"deepseek-v3\.2", replace(_DEEPSEEK, architecture="DeepseekV32ForCausalLM", sparse=True)),
    (r"deepseek-(v3|r1(?!-distill))", _DEEPSEEK),
    (r"glm-?5.*nvfp4.*mtp", replace(_GLM5, quantization="nvfp4", weights_gb=450)),
    (r"glm-?5.*nvfp4", replace(_GLM5, quantization="nvfp4", weights_gb=440, drafter=None)),
    (r"glm-?5.*fp8", replace(_GLM5, quantization="fp8", weights_gb=750)),
    (r"glm-?5", _GLM5),
    (r"qwen3-(coder-)?next", replace(_QWEN3_LONG, architecture="Qwen3NextForCausalLM",
                                     expert_blocks=4)),
    (r"qwen3-coder-480b", replace(_QWEN3_LONG, expert_blocks=20)),
    (r"qwen3-235b.*2507", replace(_QWEN3_LONG, expert_blocks=12)),
    (r"qwen3-235b", replace(_QWEN3_MOE, expert_blocks=12)),
    (r"qwen3-30b.*2507|qwen3-coder-30b", replace(_QWEN3_LONG, expert_blocks=6)),
    (r"qwen3-30b", replace(_QWEN3_MOE, expert_blocks=6)),
    (r"qwen3(?!\.).*-a\d+b", _QWEN3_MOE),
    (r"qwen3(?!\.)", _QWEN3),  # later ones are built otherwise
    (r"llama-?3", _LLAMA),
    (r"gpt-oss-20b", replace(_GPT_OSS, weights_gb=14)),
    (r"gpt-oss", _GPT_OSS),
)  # fmt: skip


def facts_from_name(name: str) -> ModelFacts | None:
    """What a well-known name, or at least the size in it, says; None if it says nothing."""
    text = name.lower().replace("_", "-")
    facts = next((facts for pattern, facts in _KNOWN if re.search(pattern, text)), None)
    size = re.search(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b(?![a-z0-9])", text)
    if facts is None and size is None:
        return None
    known_by = "its well-known name" if facts else "the size in its name"
    facts = facts or ModelFacts("", "unknown", moe=re.search(r"-a\d+b", text) is not None)
    facts = replace(facts, name=name, known_by=known_by)
    if facts.quantization in ("bf16", "fp8"):
        facts = replace(facts, quantization=_quantization_in_name(text) or facts.quantization)
    if facts.weights_gb is None and size is not None:
        per_parameter = _BYTES_PER_PARAMETER[facts.quantization]
        facts = replace(facts, weights_gb=float(size[1]) * per_parameter)
    return _without_a_drafter_of_its_own_size(facts)


def _quantization_in_name(text: str) -> Quantization | None:
    if "nvfp4" in text or "-fp4" in text:
        return "nvfp4"
    if re.search(r"awq|gptq|int4|w4a16", text):
        return "int4"
    return "fp8" if "fp8" in text else None


def _without_a_drafter_of_its_own_size(facts: ModelFacts) -> ModelFacts:
    """A model of a few GB gains nothing from a drafter of one or two."""
    small = facts.weights_gb is not None and facts.weights_gb < 8
    separate = facts.drafter is not None and facts.drafter.kind == "draft_model"
    return replace(facts, drafter=None) if small and separate else facts
