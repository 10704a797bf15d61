"""The figures that the simulated physics must reproduce within 10 %.

The H200 rows were measured (SGLang 0.5.15, dummy weights, whole run of 128 requests at 64), the
others were reported by the team this tool was built for. All: 128 tokens in, 256 out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KIMI = "moonshotai/Kimi-K2.5"
_SGLANG = f"--model-path {KIMI} --tp-size 8 --mem-fraction-static 0.9 --trust-remote-code"
_EAGLE = (
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path lightseekorg/kimi-k2.5-eagle3 "
    "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3"
)
_H200 = (
    "--model-path /models/qwen3-8b --load-format dummy --mem-fraction-static 0.6 "
    "--cuda-graph-max-bs-decode 64 --cuda-graph-backend-prefill disabled"
)
NCCL_SET = {"NCCL_PROTO": "LL", "NCCL_P2P_LEVEL": "SYS", "NCCL_MIN_NCHANNELS": "8"}


@dataclass(frozen=True)
class Row:
    """One configuration and its figures, tokens/s; None where none was reported."""

    name: str
    host: str
    engine: str
    args: str
    single: float
    peak: float | None
    concurrency: int = 128
    env: dict[str, str] = field(default_factory=dict)

    @property
    def argv(self) -> list[str]:
        return self.args.split()


def _spec(steps: int, accept: float) -> tuple[str, dict[str, str]]:
    args = (
        f"{_H200} --attention-backend triton --max-running-requests 64 "
        "--speculative-algorithm STANDALONE --speculative-draft-model-path /models/qwen3-1b "
        f"--speculative-num-steps {steps} --speculative-eagle-topk 1 "
        f"--speculative-num-draft-tokens {steps + 1}"
    )
    return args, {"SGLANG_SIMULATE_ACC_LEN": str(accept)}


def _h200(name: str, single: float, peak: float, args: str, env: dict[str, str]) -> Row:
    return Row(name, "1x-h200", "sglang", args, single, peak, 64, env)


_RTX = "8x-rtx-pro-6000"
ROWS = (
    Row("kimi, vLLM default", _RTX, "vllm", f"{KIMI} --tensor-parallel-size 8 "
        "--max-model-len 32768", 82.5, 1536),
    Row("kimi, no CUDA graphs, triton", _RTX, "sglang",
        f"{_SGLANG} --attention-backend triton --disable-cuda-graph", 27.0, 2216),
    Row("kimi, CUDA graphs, triton", _RTX, "sglang", f"{_SGLANG} --attention-backend triton",
        63.6, 2370),
    Row("kimi, tuned: flashinfer, NCCL set", _RTX, "sglang",
        f"{_SGLANG} --attention-backend flashinfer", 82.5, None, env=NCCL_SET),
    Row("kimi, tuned + EAGLE-3, 2 steps", _RTX, "sglang",
        f"{_SGLANG} --attention-backend flashinfer {_EAGLE}", 60.0, None, env=NCCL_SET),
    _h200("8B, triton", 203.8, 9015, f"{_H200} --attention-backend triton", {}),
    _h200("8B, flashinfer", 202.3, 8997, f"{_H200} --attention-backend flashinfer", {}),
    _h200("8B, triton, no CUDA graphs", 38.4, 2765,
          f"{_H200} --attention-backend triton --disable-cuda-graph", {}),
    _h200("8B, 1B draft, 1 step", 243.8, 4615, *_spec(1, 1.83)),
    _h200("8B, 1B draft, 3 steps", 286.1, 5748, *_spec(3, 2.88)),
    _h200("8B, 1B draft, 5 steps", 275.1, 5834, *_spec(5, 3.46)),
)  # fmt: skip
