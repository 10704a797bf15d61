"""The figures that the simulated physics must reproduce within 10 %, or within what a row states.

The H200 rows were measured (SGLang 0.5.15, dummy weights; by hand, a whole run of 128 requests at
64, or by a study of this tool, "study", on one or two of them), the others were reported by the
team this tool was built for. All: 128 tokens in, 256 out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KIMI = "moonshotai/Kimi-K2.5"
_SGLANG = f"--model-path {KIMI} --tp-size 8 --mem-fraction-static 0.9 --trust-remote-code"
_EAGLE = (
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path lightseekorg/kimi-k2.5-eagle3 "
    "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3"
)
_DUMMY = "--load-format dummy --mem-fraction-static 0.6 --cuda-graph-backend-prefill disabled"
_H200 = f"--model-path /models/qwen3-8b {_DUMMY} --cuda-graph-max-bs-decode 64"
_PAIR = (
    f"--model-path /models/nccl-narrow {_DUMMY} --tp-size 2 --attention-backend triton "
    "--max-running-requests 64"
)
_NCCL = f"{_PAIR} --cuda-graph-max-bs-decode 64 --disable-custom-all-reduce"
_MINI = f"--model-path /models/mini-kimi {_DUMMY}"
NCCL_SET = {"NCCL_PROTO": "LL", "NCCL_P2P_LEVEL": "SYS", "NCCL_MIN_NCHANNELS": "8"}


@dataclass(frozen=True)
class Row:
    """One configuration and its figures, tokens/s; None where none was reported.

    `warm_seconds` is the time from exec to ready, kernels compiled and weights cached.
    """

    name: str
    host: str
    engine: str
    args: str
    single: float
    peak: float | None
    concurrency: int = 128
    env: dict[str, str] = field(default_factory=dict)
    peak_tolerance: float = 0.10
    warm_seconds: float | None = None

    @property
    def argv(self) -> list[str]:
        return self.args.split()


def _spec(
    steps: int, accept: float, more: str = "--max-running-requests 64"
) -> tuple[str, dict[str, str]]:
    args = f"{_H200} --attention-backend triton {more} {_drafts(steps)}"
    return args, {"SGLANG_SIMULATE_ACC_LEN": str(accept)}


def _drafts(steps: int) -> str:
    return (
        "--speculative-algorithm STANDALONE --speculative-draft-model-path /models/qwen3-1b "
        f"--speculative-num-steps {steps} --speculative-eagle-topk 1 "
        f"--speculative-num-draft-tokens {steps + 1}"
    )


def _h200(
    name: str,
    single: float,
    peak: float,
    args: str,
    env: dict[str, str] | None = None,
    *,
    peak_tolerance: float = 0.10,
    warm: float | None = None,
) -> Row:
    return Row(name, "1x-h200", "sglang", args, single, peak, 64, env or {}, peak_tolerance, warm)


def _pair(name: str, single: float, peak: float, args: str, **more: Any) -> Row:
    return Row(f"2 GPUs, {name}, study", "8x-h200", "sglang", args, single, peak, 64, **more)


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
    _h200("8B, triton", 203.8, 9015, f"{_H200} --attention-backend triton"),
    _h200("8B, triton, study", 204.5, 9206, f"{_H200} --attention-backend triton", warm=51),
    _h200("8B, flashinfer", 202.3, 8997, f"{_H200} --attention-backend flashinfer"),
    _h200("8B, flashinfer, study", 198.8, 9030, f"{_H200} --attention-backend flashinfer"),
    # Without graphs the host's CPU decides: two machines with this GPU. The simulated one is
    # between them, near the geometric means of 35.3 and 2,068.
    _h200("8B, triton, no CUDA graphs", 38.4, 2765,
          f"{_H200} --attention-backend triton --disable-cuda-graph", peak_tolerance=0.25),
    _h200("8B, triton, no CUDA graphs, study", 32.5, 1547,
          f"{_H200} --attention-backend triton --disable-cuda-graph", peak_tolerance=0.45),
    _h200("8B, 1B draft, 1 step", 243.8, 4615, *_spec(1, 1.83)),
    _h200("8B, 1B draft, 3 steps", 286.1, 5748, *_spec(3, 2.88)),
    _h200("8B, 1B draft, 5 steps", 275.1, 5834, *_spec(5, 3.46)),
    _h200("8B, 1B draft, 1 step, 32 running, graphs up to 32, chunks of 2048, study", 246.2, 3795,
          *_spec(1, 1.83, "--max-running-requests 32 --chunked-prefill-size 2048 "
                 "--cuda-graph-max-bs-decode 32 --mem-fraction-static 0.8"), warm=52),
    _h200("8B, 1B draft, 2 steps, 32 running, chunks of 2048, study", 280.3, 4434,
          *_spec(2, 2.43, "--max-running-requests 32 --chunked-prefill-size 2048"), warm=76),
    _h200("8B, 1B draft, 3 steps, study", 290.5, 6088, *_spec(3, 2.88), warm=68),
    _h200("8B, 1B draft, 3 steps, chunks of 4096, study", 284.6, 5954,
          *_spec(3, 2.88, "--max-running-requests 64 --chunked-prefill-size 4096 "
                 "--mem-fraction-static 0.8"), warm=74),
    _h200("8B, 1B draft, 5 steps, 32 running, study", 279.3, 4759,
          *_spec(5, 3.46, "--max-running-requests 32"), warm=66),
    # The front end's speed decided these two peaks, and it drifted within each.
    _h200("mini-kimi, triton, study", 468.0, 10_248, f"{_MINI} --attention-backend triton "
          "--cuda-graph-max-bs-decode 64 --max-running-requests 64", peak_tolerance=0.18),
    _h200("mini-kimi, flashinfer, study", 512.7, 13_555, f"{_MINI} --attention-backend flashinfer "
          "--cuda-graph-max-bs-decode 64 --max-running-requests 64", peak_tolerance=0.18,
          warm=69),
    _h200("mini-kimi, flashinfer, graphs up to 16, study", 548.1, 3148,
          f"{_MINI} --attention-backend flashinfer --cuda-graph-max-bs-decode 16 "
          "--max-running-requests 64", warm=58),
    _h200("mini-kimi, flashinfer, graphs up to 16, 32 running, study", 570.5, 1682,
          f"{_MINI} --attention-backend flashinfer --cuda-graph-max-bs-decode 16 "
          "--max-running-requests 32"),
    _h200("mini-kimi, flashmla, no CUDA graphs, 32 running, no overlap, study", 41.6, 1097,
          f"{_MINI} --attention-backend flashmla --disable-cuda-graph "
          "--max-running-requests 32 --disable-overlap-schedule"),
    _pair("SGLang's all-reduce", 191.2, 8623, f"{_PAIR} --cuda-graph-max-bs-decode 64",
          warm_seconds=60),
    _pair("SGLang's all-reduce, LL128, 16 channels", 192.8, 8193,
          f"{_PAIR} --cuda-graph-max-bs-decode 64",
          env={"NCCL_PROTO": "LL128", "NCCL_MIN_NCHANNELS": "16"}),
    _pair("NCCL", 163.5, 7271, _NCCL, warm_seconds=67),
    _pair("NCCL, no peer access", 151.4, 5561, _NCCL, env={"NCCL_P2P_DISABLE": "1"},
          warm_seconds=60),
    _pair("NCCL, Simple", 120.6, 5408, _NCCL, env={"NCCL_PROTO": "Simple"}, warm_seconds=64),
    # The host's CPU again: a cycle took 203 ms at one request and 194 at 64.
    _pair("no CUDA graphs, 3 steps", 14.0, 938, f"{_PAIR} --disable-cuda-graph {_drafts(3)}",
          env={"SGLANG_SIMULATE_ACC_LEN": "2.88"}, peak_tolerance=0.15),
)  # fmt: skip
