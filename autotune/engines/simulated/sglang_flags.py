"""SGLang's flags, their types and choices, as 0.5.23's parser has them.

About 170 of its 550 arguments are known here. One that is not known is refused as SGLang refuses
an unknown one.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.engines.simulated.launch_args import Parser, add, size

ATTENTION = [
    "triton",
    "torch_native",
    "flex_attention",
    "dsa",
    "nsa",
    "qsa",
    "dsv4",
    "compressed",
    "fa3",
    "fa4",
    "flashinfer",
    "llada2_cfg_flashinfer",
    "flashmla",
    "trtllm_mla",
    "cutedsl_mla",
    "tokenspeed_mla",
    "trtllm_mha",
    "hpc_ops",
    "minicpm_flashattn",
    "aiter",
    "wave",
    "intel_amx",
    "ascend",
    "intel_xpu",
]
_MOE = [
    "auto",
    "deep_gemm",
    "triton",
    "triton_kernel",
    "flashinfer_trtllm",
    "experimental_sgl_trtllm",
    "flashinfer_trtllm_routed",
    "flashinfer_cutlass",
    "flashinfer_mxfp4",
    "flashinfer_cutedsl",
    "flashinfer_megamoe",
    "cutlass",
    "aiter",
    "marlin",
    "humming",
    "experimental_sgl_marlin",
    "hpc_ops",
    "megamoe",
    "intel_xpu",
]
_CHOICES: dict[str, Sequence[str]] = {
    "attention-backend": ATTENTION,
    "prefill-attention-backend": ATTENTION,
    "decode-attention-backend": ATTENTION,
    "sampling-backend": ("flashinfer", "pytorch", "ascend", "intel_xpu"),
    "grammar-backend": ("xgrammar", "outlines", "llguidance", "none"),
    "moe-runner-backend": _MOE,
    "speculative-moe-runner-backend": _MOE,
    "moe-a2a-backend": [
        "none",
        "deepep",
        "mooncake",
        "nixl",
        "mori",
        "flashinfer",
        "megamoe",
        "deepep_v2",
        "pplx",
    ],
    "fp8-gemm-backend": [
        "auto",
        "deep_gemm",
        "flashinfer_trtllm",
        "flashinfer_cutlass",
        "flashinfer_deepgemm",
        "flashinfer_cutedsl",
        "cutlass",
        "triton",
        "aiter",
    ],
    "fp4-gemm-backend": [
        "auto",
        "flashinfer_cudnn",
        "flashinfer_cutedsl",
        "flashinfer_cutlass",
        "flashinfer_trtllm",
        "marlin",
    ],
    "bf16-gemm-backend": ["auto", "cutedsl", "gemv", "torch"],
    "kv-cache-dtype": [
        "auto",
        "fp8_e5m2",
        "fp8_e4m3",
        "mxfp8",
        "bf16",
        "bfloat16",
        "nvfp4",
        "fp4_mx_block16",
    ],
    "schedule-policy": [
        "lpm",
        "random",
        "fcfs",
        "dfs-weight",
        "lof",
        "priority",
        "routing-key",
        "hrrn",
        "shortest-prefill-first",
    ],
    "speculative-algorithm": [
        "EAGLE",
        "EAGLE3",
        "NEXTN",
        "STANDALONE",
        "NGRAM",
        "DFLASH",
        "DSPARK",
        "UNO",
    ],
    "speculative-attention-mode": ("prefill", "decode"),
    "cuda-graph-backend-decode": ("full", "breakable", "disabled"),
    "cuda-graph-backend-prefill": ("full", "breakable", "disabled"),
    "flashinfer-allreduce-fusion-backend": ("auto", "trtllm", "mnnvl", "cutedsl"),
    "load-format": [
        "auto",
        "pt",
        "safetensors",
        "instanttensor",
        "npcache",
        "dummy",
        "sharded_state",
        "presharded",
        "gguf",
        "bitsandbytes",
        "fastsafetensors",
        "runai_streamer",
    ],
    "dtype": ["auto", "half", "float16", "bfloat16", "float", "float32"],
    "startup-weight-load-mode": ("serial", "overlap"),
    "dsa-prefill-backend": [
        "flashmla_sparse",
        "flashmla_kv",
        "flashmla_auto",
        "flashinfer_sparse_mla",
        "triton_sparse_mla",
        "fa3",
        "tilelang",
        "triton",
        "trtllm",
    ],
    "dsa-decode-backend": [
        "flashmla_sparse",
        "flashmla_kv",
        "flashmla_auto",
        "flashinfer_sparse_mla",
        "fa3",
        "tilelang",
        "triton",
        "trtllm",
    ],
}
_TEXT = """
model-path=model tokenizer-path host served-model-name revision quantization
model-loader-extra-config json-model-override-args
speculative-draft-model-path=speculative-draft-model
speculative-draft-model-revision speculative-draft-load-format speculative-draft-model-quantization
speculative-draft-attention-backend speculative-draft-kv-cache-dtype speculative-token-map
speculative-adaptive-config mm-attention-backend cuda-graph-config chat-template reasoning-parser
tool-call-parser log-level log-level-http crash-dump-folder download-dir
dist-init-addr=nccl-init-addr api-key tokenizer-mode device warmups weight-cache-mode
speculative-moe-a2a-backend
"""
_NUMBERS = """
port tp-size=tensor-parallel-size=tp pp-size=pipeline-parallel-size dp-size=data-parallel-size
ep-size=ep=expert-parallel-size attn-dp-size moe-dp-size attn-cp-size dcp-size page-size
max-running-requests max-queued-requests chunked-prefill-size max-prefill-tokens
prefill-decode-interval prefill-decode-interval-min-bs prefill-max-requests min-free-slots-delay
scheduler-recv-interval stream-interval cuda-graph-max-bs-decode cuda-graph-max-bs-prefill
cuda-graph-max-seq-len-prefill torch-compile-max-bs speculative-num-steps speculative-eagle-topk
speculative-num-draft-tokens speculative-draft-window-size speculative-draft-sink-size nccl-port
dist-timeout context-length random-seed decode-log-interval num-continuous-decode-steps
tokenizer-worker-num weight-loader-prefetch-num-threads nnodes node-rank
triton-attention-num-kv-splits cpu-offload-gb
"""
_REALS = """
mem-fraction-static schedule-conservativeness speculative-accept-threshold-single
speculative-accept-threshold-acc watchdog-timeout soft-watchdog-timeout
"""
_SWITCHES = """
trust-remote-code enable-metrics disable-radix-cache disable-overlap-schedule enable-mixed-chunk
disable-cuda-graph disable-decode-cuda-graph disable-prefill-cuda-graph disable-cuda-graph-padding
enable-torch-compile enable-dp-attention enable-dp-lm-head disable-custom-all-reduce
enable-mscclpp enable-torch-symm-mem enable-symm-mem enable-nccl-nvls pre-warm-nccl
enable-p2p-check enable-flashinfer-allreduce-fusion enforce-disable-flashinfer-allreduce-fusion
speculative-use-rejection-sampling speculative-use-block-verification speculative-adaptive
weight-loader-prefetch-checkpoints weight-loader-disable-mmap skip-server-warmup
skip-tokenizer-init disable-flashinfer-autotune enable-deterministic-inference
enable-two-batch-overlap enable-single-batch-overlap sleep-on-idle use-ray enable-mfu-metrics
triton-attention-reduce-in-fp32 disable-shared-experts-fusion enable-hierarchical-cache
enable-cache-report enable-eplb language-only enable-multimodal disable-chunked-prefix-cache
mm-enable-dp-encoder numa-node
"""


def build_parser() -> Parser:
    """The parser; prefixes of flags are accepted, as by SGLang."""
    parser = Parser(prog="sglang serve", allow_abbrev=True)
    for flag, choices in _CHOICES.items():
        parser.add_argument(f"--{flag}", choices=choices, default=None)
    add(parser, _TEXT, str)
    add(parser, _NUMBERS, int)
    add(parser, _REALS, float)
    add(parser, _SWITCHES, bool)
    parser.add_argument("--max-total-tokens", type=size, default=None)
    for flag in ("cuda-graph-bs-decode", "cuda-graph-bs-prefill"):
        parser.add_argument(f"--{flag}", type=int, nargs="+", default=None)
    return parser
