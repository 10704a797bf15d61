"""vLLM's flags, their types and choices, as 0.32.0's parser has them.

Known are the flags of its batching, memory, compilation, parallelism and speculation groups.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from autotune.engines.simulated.launch_args import Parser, add, size

BACKENDS = [
    "FLASH_ATTN",
    "FLASH_ATTN_DIFFKV",
    "TRITON_ATTN",
    "TRITON_ATTN_DIFFKV",
    "TRITON_FLASH_ATTN",
    "FLASHINFER",
    "TRITON_FLASHINFER",
    "FLASHINFER_MLA",
    "TOKENSPEED_MLA",
    "FLASHINFER_MLA_SPARSE",
    "FLASHINFER_MLA_SPARSE_SM120",
    "FLASHINFER_MLA_SPARSE_SM90",
    "TRITON_MLA",
    "CUTLASS_MLA",
    "FLASHMLA",
    "FLASHMLA_SPARSE",
    "FLASH_ATTN_MLA",
    "FLASH_ATTN_MLA_SPARSE",
    "B12X",
    "FLEX_ATTENTION",
    "TURBOQUANT",
]
_CHOICES: dict[str, Sequence[str]] = {
    "dtype": ["auto", "half", "float16", "bfloat16", "float", "float32"],
    "kv-cache-dtype": [
        "auto",
        "float16",
        "bfloat16",
        "fp8",
        "fp8_e4m3",
        "fp8_e5m2",
        "fp8_inc",
        "fp8_ds_mla",
        "nvfp4_ds_mla",
        "nvfp4",
    ],
    "moe-backend": [
        "auto",
        "triton",
        "cutlass",
        "deep_gemm",
        "flashinfer_trtllm",
        "flashinfer_cutlass",
        "flashinfer_cutedsl",
        "flashinfer_b12x",
        "b12x",
        "marlin",
        "humming",
    ],
    "linear-backend": [
        "auto",
        "triton",
        "cutlass",
        "deep_gemm",
        "flashinfer_cutlass",
        "b12x",
        "marlin",
    ],
    "performance-mode": ("balanced", "interactivity", "throughput"),
    "mm-encoder-tp-mode": ("weights", "data"),
    "distributed-executor-backend": ("ray", "mp", "uni", "external_launcher"),
    "safetensors-load-strategy": ("lazy", "eager", "prefetch", "torchao"),
    "all2all-backend": [
        "allgather_reducescatter",
        "deepep_high_throughput",
        "deepep_low_latency",
        "deepep_v2",
        "naive",
        "pplx",
    ],
    "dcp-comm-backend": ("ag_rs", "a2a"),
}
_TEXT = """
model tokenizer host revision quantization hf-overrides spec-method spec-model speculative-config
compilation-config attention-backend load-format chat-template tool-call-parser reasoning-parser
api-key download-dir additional-config model-loader-extra-config scheduling-policy
"""
_NUMBERS = """
port max-num-seqs max-num-active-seqs max-num-queued-reqs block-size
tensor-parallel-size=tp pipeline-parallel-size=pp data-parallel-size=dp
decode-context-parallel-size=dcp prefill-context-parallel-size spec-tokens
long-prefill-token-threshold stream-interval seed max-cudagraph-capture-size optimization-level
shutdown-timeout api-server-count max-logprobs
"""
_SWITCHES = """
trust-remote-code enforce-eager disable-custom-all-reduce enable-expert-parallel enable-eplb
enable-dbo numa-bind async-scheduling disable-log-stats enable-scale-out dcp-q-replicate
enable-ep-weight-filter fail-on-environ-validation enable-auto-tool-choice
no-enable-prefix-caching enable-prefix-caching enable-chunked-prefill no-enable-chunked-prefill
no-async-scheduling enable-log-requests no-enable-log-requests language-model-only
"""


def build_parser() -> Parser:
    """The parser of `vllm serve`; vLLM takes underscores for dashes, and abbreviations."""
    parser = Parser(prog="vllm serve", allow_abbrev=True)
    parser.add_argument("model_tag", nargs="?")
    for flag, choices in _CHOICES.items():
        parser.add_argument(f"--{flag}", choices=choices, default=None)
    add(parser, _TEXT, str)
    add(parser, _NUMBERS, int)
    add(parser, "gpu-memory-utilization", float)
    add(parser, "max-num-batched-tokens max-model-len kv-cache-memory-bytes", size)
    add(parser, _SWITCHES, bool)
    parser.add_argument("--served-model-name", nargs="+", default=None)
    parser.add_argument("--cudagraph-capture-sizes", type=int, nargs="+", default=None)
    return parser


_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dcp": "--decode-context-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-sc": "--speculative-config",
    "-cc": "--compilation-config",
    "-q": "--quantization",
    "-O": "--optimization-level",
}
_DOTTED = re.compile(
    r"^(?:--|-)((?:cc|compilation-config|sc|speculative-config|ac|attention-config)\.[\w.-]+)$"
)


def without_dotted(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Plain arguments, and the dotted ones (`-cc.mode=0`) by their dotted name."""
    plain, dotted, words = list[str](), dict[str, str](), list(argv)
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        if match := _DOTTED.match(flag):
            name = match[1].replace("compilation-config", "cc").replace("speculative-config", "sc")
            name = name.replace("attention-config", "ac")
            dotted[name] = value if equals else (words.pop(0) if words else "")
        elif re.fullmatch(r"-O\d", word):
            plain += ["--optimization-level", word[2:]]
        elif flag in _SHORT:
            plain.append(_SHORT[flag] + (equals + value if equals else ""))
        elif flag.startswith("--"):
            plain.append(flag.replace("_", "-") + equals + value)
        else:
            plain.append(word)
    return plain, dotted
