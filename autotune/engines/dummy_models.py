"""Model folders without weights, for real engines on a GPU host that can download nothing.

    python -m autotune.engines.dummy_models FOLDER

writes the models below and `prompts.jsonl`. An engine started with `--load-format dummy` fills
the weights with random numbers: start-up, memory and speed are real, the text is noise. The
tokenizer splits at white space and knows the words w0, w1, …, so n words are n tokens; other
words are all one unknown token, which is why prompts of real text would all be alike here.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VOCABULARY, CONTEXT, SPECIAL = 32_000, 32_768, ("<unk>", "<s>", "</s>")
PROMPTS, PROMPT_WORDS = 2_048, 120

Config = dict[str, Any]


def _common(**shape: Any) -> Config:
    return {
        "attention_bias": False,
        "bos_token_id": VOCABULARY - 2,
        "eos_token_id": VOCABULARY - 1,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        **shape,
    }


def _qwen3(layers: int, hidden: int, inner: int, heads: int, kv_heads: int) -> Config:
    """A dense model with grouped-query attention and heads of 128."""
    return _common(
        architectures=["Qwen3ForCausalLM"],
        model_type="qwen3",
        head_dim=128,
        hidden_size=hidden,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_hidden_layers=layers,
        num_key_value_heads=kv_heads,
        rope_theta=1_000_000.0,
    )


def _latent_attention_and_experts() -> Config:
    """The shape of Kimi K2 and DeepSeek V3, with 8 layers and 64 experts of which 8 work."""
    return _common(
        architectures=["DeepseekV3ForCausalLM"],
        model_type="deepseek_v3",
        hidden_size=2048,
        intermediate_size=6144,
        num_attention_heads=16,
        num_hidden_layers=8,
        num_key_value_heads=16,
        num_nextn_predict_layers=0,
        rope_scaling=None,
        rope_theta=50_000.0,
        kv_lora_rank=512,
        q_lora_rank=1536,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        first_k_dense_replace=1,
        moe_intermediate_size=1024,
        moe_layer_freq=1,
        n_group=1,
        n_routed_experts=64,
        n_shared_experts=1,
        norm_topk_prob=True,
        num_experts_per_tok=8,
        routed_scaling_factor=2.5,
        scoring_func="sigmoid",
        topk_group=1,
        topk_method="noaux_tc",
    )


MODELS: Mapping[str, Config] = {
    "qwen3-8b": _qwen3(36, 4096, 12_288, 32, 8),
    "qwen3-1b": _qwen3(16, 2048, 6144, 16, 8),  # a draft model for qwen3-8b
    "mini-kimi": _latent_attention_and_experts(),
    # Many narrow layers: two all-reduces a layer, and little to compute between them.
    "nccl-narrow": _qwen3(96, 1024, 3072, 16, 8),
}


def write_models(folder: Path) -> None:
    """Write every model and the prompts below `folder` (0.6 MB a model)."""
    for name, config in MODELS.items():
        model = folder / name
        model.mkdir(parents=True, exist_ok=True)
        _dump(model / "config.json", config)
        _dump(model / "tokenizer.json", _tokenizer())
        _dump(model / "tokenizer_config.json", _TOKENIZER_CONFIG)
    rng = random.Random(0)
    words = [f"w{number}" for number in range(VOCABULARY - len(SPECIAL))]
    prompts = (" ".join(rng.choices(words, k=PROMPT_WORDS)) for _ in range(PROMPTS))
    lines = (json.dumps({"prompt": prompt}) + "\n" for prompt in prompts)
    (folder / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")


_TOKENIZER_CONFIG: Config = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "model_max_length": CONTEXT,
    "chat_template": "{% for message in messages %}{{ message['content'] }} {% endfor %}",
}


def _tokenizer() -> Config:
    words = [f"w{number}" for number in range(VOCABULARY - len(SPECIAL))]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "", "cleanup": True},
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate([*words, *SPECIAL])},
            "unk_token": SPECIAL[0],
        },
    }


def _dump(path: Path, content: Config) -> None:
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_models(Path(sys.argv[1]))
