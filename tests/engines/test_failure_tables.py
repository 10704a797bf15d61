"""Every recorded death, and a variation of each with other numbers, paths and ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.engines.logs import first_cause, pieces
from autotune.engines.registry import engine_named
from autotune.postmortem import failure_of
from autotune.records import Failure, FailureKind, Phase

LOGS = Path(__file__).parent.parent / "data" / "logs"
K = FailureKind


def failure_in(engine_name: str, text: str, phase: Phase = Phase.LAUNCH) -> Failure | None:
    engine = engine_named(engine_name)
    lines = list(pieces(text))
    cause = first_cause(lines, engine.failure_of)
    return None if cause is None else failure_of(cause, lines, engine, phase)


RECORDED = [
    ("sglang-oom.log", K.OUT_OF_MEMORY, Phase.LOAD, "Tried to allocate 1.74 GiB"),
    ("sglang-draft_oom.log", K.OUT_OF_MEMORY, Phase.LOAD, "Tried to allocate 1.19 GiB"),
    ("sglang-cublas_oom.log", K.OUT_OF_MEMORY, Phase.LOAD, "CUBLAS_STATUS_ALLOC_FAILED"),
    ("sglang-no_kernel.log", K.UNSUPPORTED, Phase.LOAD, "cannot import name 'flash_ops'"),
    (
        "sglang-nccl_no_algorithm.log",
        K.UNSUPPORTED,
        Phase.CAPTURE,
        "NCCL WARN Error : no algorithm/protocol available for function AllGather",
    ),
    ("sglang-rank_killed.log", K.CRASHED, Phase.CAPTURE, "Rank 1 scheduler died during init"),
    ("vllm-bad_flag.log", K.BAD_FLAGS, Phase.LAUNCH, "unrecognized arguments: --no-such-flag 3"),
    ("vllm-bad_value.log", K.BAD_FLAGS, Phase.LAUNCH, "2 validation errors for SchedulerConfig"),
    ("vllm-kv_too_small.log", K.NO_KV_ROOM, Phase.LOAD, "No available memory for the cache"),
]
SERVING = [
    ("vllm-worker_killed_idle.log", "Worker proc VllmWorker-0 died unexpectedly (exit code: -9)"),
    ("vllm-worker_died_first_request.log", "Worker proc VllmWorker-0 died unexpectedly"),
]


@pytest.mark.parametrize(("name", "kind", "phase", "cause"), RECORDED)
def test_a_recorded_death_is_classified_by_its_first_causal_line(
    name: str, kind: FailureKind, phase: Phase, cause: str
) -> None:
    failure = failure_in(name.partition("-")[0], (LOGS / name).read_text())
    assert failure is not None
    assert (failure.kind, failure.phase) == (kind, phase)
    assert cause in failure.cause
    assert any(cause in line for line in failure.excerpt)


@pytest.mark.parametrize(("name", "cause"), SERVING)
def test_a_death_while_serving_has_the_phase_of_the_trial(name: str, cause: str) -> None:
    failure = failure_in("vllm", (LOGS / name).read_text(), Phase.PEAK)
    assert failure is not None
    assert (failure.kind, failure.phase) == (K.CRASHED, Phase.PEAK)
    assert cause in failure.cause


VARIATIONS = [
    (
        "sglang-oom.log",
        {"1.74 GiB": "19.03 GiB", "GPU 0": "GPU 5", "/opt/sglang": "/home/u/env", "[2026": "[2027"},
        K.OUT_OF_MEMORY,
        "Tried to allocate 19.03 GiB. GPU 5",
    ),
    (
        "sglang-draft_oom.log",
        {
            "1.19 GiB": "640.00 MiB",
            "line 1525": "line 9",
            "/opt/sglang": "/srv/venv",
            "[2026": "[2027",
        },
        K.OUT_OF_MEMORY,
        "Tried to allocate 640.00 MiB",
    ),
    (
        "sglang-no_kernel.log",
        {
            "'flash_ops'": "'flash_ops_v4'",
            "FA3": "FA4",
            "/opt/sglang": "/srv/venv",
            "[2026": "[2027",
        },
        K.UNSUPPORTED,
        "cannot import name 'flash_ops_v4' from 'sgl_kernel'",
    ),
    (
        "vllm-bad_flag.log",
        {"--no-such-flag 3": "--attention_backnd FLASH_ATTN --x"},
        K.BAD_FLAGS,
        "unrecognized arguments: --attention_backnd",
    ),
    (
        "vllm-bad_value.log",
        {"2 validation errors for SchedulerConfig": "1 validation error for ParallelConfig"},
        K.BAD_FLAGS,
        "1 validation error for ParallelConfig",
    ),
    (
        "vllm-kv_too_small.log",
        {"7698": "91", "ERROR 11-29": "ERROR 03-01", "core.py:1510": "core.py:77"},
        K.NO_KV_ROOM,
        "No available memory for the cache blocks",
    ),
    (
        "vllm-worker_killed_idle.log",
        {"VllmWorker-0": "VllmWorker-6", "exit code: -9": "exit code: -7", "5031": "88"},
        K.CRASHED,
        "VllmWorker-6 died unexpectedly (exit code: -7)",
    ),
    (
        "vllm-worker_died_first_request.log",
        {"VllmWorker-0": "VllmWorker-3", "exit code: None": "exit code: -4"},
        K.CRASHED,
        "VllmWorker-3 died unexpectedly (exit code: -4)",
    ),
]


@pytest.mark.parametrize(("name", "changes", "kind", "cause"), VARIATIONS)
def test_a_changed_number_path_or_rank_does_not_change_the_class(
    name: str, changes: dict[str, str], kind: FailureKind, cause: str
) -> None:
    text = (LOGS / name).read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    failure = failure_in(name.partition("-")[0], text, Phase.READY)
    assert failure is not None
    assert failure.kind is kind
    assert cause in failure.cause


@pytest.mark.parametrize(
    "name",
    [
        "sglang-triton.log",
        "sglang-triton_nocg.log",
        "sglang-flashinfer.log",
        "sglang-spec1.log",
        "sglang-spec3.log",
        "vllm-clean_start_stop.log",
        "vllm-ngram_spec.log",
    ],
)
def test_a_healthy_log_states_no_cause(name: str) -> None:
    assert failure_in(name.partition("-")[0], (LOGS / name).read_text()) is None


# One line of a death each, written after the engines' sources and their users' reports.
LINES = [
    (
        "sglang",
        "sglang serve: error: argument --kv-cache-dtype: invalid choice: 'fp8'",
        K.BAD_FLAGS,
    ),
    (
        "sglang",
        "launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match "
        "--cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill",
        K.BAD_FLAGS,
    ),
    (
        "sglang",
        "[2026-11-29 12:18:14 TP3] RuntimeError: Not enough memory. Please try to increase "
        "--mem-fraction-static. Current value: mem_fraction_static=0.6",
        K.NO_KV_ROOM,
    ),
    (
        "sglang",
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 20.00 MiB",
        K.OUT_OF_MEMORY,
    ),
    ("sglang", "Exception: Capture cuda graph failed: list index out of range", K.CRASHED),
    (
        "sglang",
        "RuntimeError: Error in function 'TllmGenFmhaRunner' at /x/fmhaRunner.cuh:37: "
        "Unsupported architecture",
        K.UNSUPPORTED,
    ),
    (
        "sglang",
        "ValueError: CuteDSL MLA backend is only supported on Blackwell GPUs (SM100).",
        K.UNSUPPORTED,
    ),
    (
        "sglang",
        "ValueError: EAGLE is not supported in decode attention backend wave",
        K.UNSUPPORTED,
    ),
    (
        "sglang",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        K.UNSUPPORTED,
    ),
    ("sglang", "RuntimeError: CUDA error: an illegal memory access was encountered", K.CRASHED),
    (
        "sglang",
        "[rank5]:[E1129 12:00:00.1 ProcessGroupNCCL.cpp:685] [Rank 5] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600000 milliseconds",
        K.COLLECTIVE,
    ),
    (
        "vllm",
        "(Worker_TP2 pid=71) ERROR 11-29 12:38:18 [multiproc_executor.py:9] RuntimeError: NCCL "
        "error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        K.COLLECTIVE,
    ),
    (
        "vllm",
        "torch.distributed.DistBackendError: NCCL error in: /x.cpp:3, ncclSystemError",
        K.COLLECTIVE,
    ),
    (
        "sglang",
        "ValueError: TP rank 3 could finish the model loading, but there are other ranks that "
        "didn't finish loading. It is likely due to unexpected failures",
        K.COLLECTIVE,
    ),
    (
        "sglang",
        "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        K.STALLED,
    ),
    (
        "sglang",
        "Rank 2 scheduler died during initialization (exit code: -9). If exit code is -9 "
        "(SIGKILL), a common cause is the OS OOM killer",
        K.CRASHED,
    ),
    (
        "vllm",
        "ValueError: To serve at least one request with the model's max seq len (262144), (17.16 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (2.1 GiB).",
        K.NO_KV_ROOM,
    ),
    (
        "vllm",
        "ValueError: Free memory on device cuda:0 (9.1/79.1 GiB) on startup is less than desired "
        "GPU memory utilization (0.92, 72.8 GiB).",
        K.OUT_OF_MEMORY,
    ),
    (
        "vllm",
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 8 dummy requests",
        K.OUT_OF_MEMORY,
    ),
    ("vllm", "ValueError: Unknown attention backend: 'NOPE'. Valid options are: A, B", K.BAD_FLAGS),
    ("vllm", "ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)])", K.UNSUPPORTED),
    (
        "vllm",
        "ValueError: Total number of attention heads (4) must be divisible by tensor parallel "
        "size (8).",
        K.BAD_FLAGS,
    ),
    ("openai", "my-server: error: argument --slots: invalid int value: 'x'", K.BAD_FLAGS),
    ("openai", "autotune: cannot start my-server: [Errno 2] No such file", K.BAD_FLAGS),
]


@pytest.mark.parametrize(("engine", "line", "kind"), LINES)
def test_a_line_that_states_a_cause_has_its_kind(engine: str, line: str, kind: FailureKind) -> None:
    failure = failure_in(engine, line)
    assert failure is not None
    assert failure.kind is kind


def test_the_cause_of_eight_ranks_is_the_first_that_any_of_them_states() -> None:
    """Seven ranks lose their peer and say so before the one that ran out of memory does."""
    lost = [
        f"[2026-11-29 12:18:1{rank} TP{rank}] RuntimeError: NCCL error: remote process exited or "
        "there was a network error"
        for rank in range(8)
        if rank != 3
    ]
    guilty = (
        "[2026-11-29 12:18:19 TP3] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/opt/x.py", line 1, in f\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 3 has"
    )
    failure = failure_in("sglang", "\n".join([*lost, guilty, "Received sigquit from a child"]))
    assert failure is not None
    assert failure.kind is K.OUT_OF_MEMORY
    assert failure.cause.startswith("torch.OutOfMemoryError")


def test_ranks_that_only_lost_each_other_have_crashed() -> None:
    failure = failure_in("sglang", "[2026-11-29 12:18:14 TP1] Connection closed by remote peer")
    assert failure is not None
    assert failure.kind is K.CRASHED
    assert failure.cause == "Connection closed by remote peer"


def test_an_unknown_exception_before_anything_was_loaded_is_a_refusal_of_the_arguments() -> None:
    traceback = 'Traceback (most recent call last):\n  File "x.py", line 3, in f\n'
    refused = traceback + "AssertionError: priority scheduling needs fcfs"
    early = failure_in("sglang", refused)
    late = failure_in("sglang", "Load weight begin. avail mem=1 GB\n" + refused)
    assert early is not None and late is not None
    assert (early.kind, early.phase) == (K.BAD_FLAGS, Phase.LAUNCH)
    assert (late.kind, late.phase) == (K.CRASHED, Phase.LOAD)


def test_a_renamed_flag_is_named_with_its_new_spelling() -> None:
    line = "sglang serve: error: ambiguous option: --cuda-graph-max-bs could match --x, --y"
    failure = failure_in("sglang", line)
    assert failure is not None
    assert "--cuda-graph-max-bs is now --cuda-graph-max-bs-decode" in failure.cause


def test_a_warning_about_memory_or_support_is_no_cause() -> None:
    warnings = (
        "(APIServer pid=1) WARNING 11-29 11:43:26 [x.py:1] Custom allreduce is disabled because "
        "it's not supported on more than two PCIe-only GPUs\n"
        "[2026-11-29 12:00:00 TP0] Setup symmetric memory failed with CUDA error, falling back\n"
        "(APIServer pid=1) WARNING 11-29 11:43:26 [x.py:1] Found ulimit of 2000 `OSError: [Errno "
        "24] Too many open files`"
    )
    assert failure_in("vllm", warnings) is None


def test_what_nccl_says_is_the_same_in_every_trial() -> None:
    line = "gpu-host:{0}:{0} [{1}] misc/socket.cc:8{1} NCCL WARN NCCL error : timeout\n"
    causes = {
        failure.cause
        for pid in (11, 12)
        if (failure := failure_in("sglang", line.format(pid, pid - 11)))
    }
    assert causes == {"NCCL WARN NCCL error : timeout"}
