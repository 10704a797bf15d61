"""Write a tiny Llama with random weights: enough for a real engine to load and serve.

Run by the interpreter of the engine's environment, which has torch and tokenizers:

    VENV/bin/python tiny_model.py FOLDER

The folder then holds config.json, generation_config.json, tokenizer.json, tokenizer_config.json
and model.safetensors (about 1 MB). Vocabulary 512, hidden size 128, 2 layers, context 2048.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

VOCABULARY, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_SIZE = 512, 128, 384, 2, 4, 2, 32
CONTEXT = 2048
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n"
    "{% endfor %}assistant:"
)
SENTENCES = [
    "A queue forms where requests come faster than they are served.",
    "Measure twice, launch once, and write down what you saw.",
]
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_SIZE,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}


def write_tokenizer(path: Path) -> None:
    """A byte-level BPE whose every id decodes, so that random output is readable text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 10, trainer)
    missing = range(tokenizer.get_vocab_size(), VOCABULARY)
    tokenizer.add_tokens([f" word{number}" for number in missing])
    tokenizer.save(str(path))


def write_weights(path: Path) -> None:
    """Random bfloat16 weights of standard deviation 0.02, the same on every host."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)

    def random(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns) * 0.02).to(torch.bfloat16)

    ones = torch.ones(HIDDEN, dtype=torch.bfloat16)
    tensors = {
        "model.embed_tokens.weight": random(VOCABULARY, HIDDEN),
        "lm_head.weight": random(VOCABULARY, HIDDEN),
        "model.norm.weight": ones.clone(),
    }
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_SIZE, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_SIZE, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_SIZE, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_SIZE),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    for layer in range(LAYERS):
        head = f"model.layers.{layer}."
        for name, shape in shapes.items():
            tensors[f"{head}{name}.weight"] = random(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{head}{name}.weight"] = ones.clone()
    save_file(tensors, path, metadata={"format": "pt"})


def write_model(folder: Path) -> None:
    """Write the whole model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = {
        "config.json": CONFIG,
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 1},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "pad_token": "<pad>",
            "model_max_length": CONTEXT,
            "chat_template": TEMPLATE,
        },
    }
    for name, content in documents.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")
    write_tokenizer(folder / "tokenizer.json")
    write_weights(folder / "model.safetensors")


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
