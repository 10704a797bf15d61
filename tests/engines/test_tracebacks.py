"""A program's own text, quoted in a traceback, is no cause, whoever writes the traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.engines.logs import Cause, first_cause, message_of, pieces
from autotune.engines.registry import engine_named
from autotune.records import FailureKind

RECORDED = Path(__file__).parent.parent / "data" / "logs" / "sglang-nccl_no_algorithm.log"
K = FailureKind
HEAD = "Traceback (most recent call last):"
FRAME = '  File "/opt/x/worker.py", line 3, in f'
SOURCE = '    raise RuntimeError(f"NCCL error: {reason}")'
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB"
TRACEBACK = (HEAD, FRAME, SOURCE, MEMORY)
VLLM = "(Worker_TP{0} pid=7{0}) ERROR 11-29 11:44:02 [x.py:1] "


def cause_in(*lines: str) -> Cause:
    cause = first_cause(list(pieces("\n".join(lines))), engine_named("sglang").failure_of)
    assert cause is not None
    return cause


def test_the_recorded_raise_is_not_what_happened() -> None:
    """Without NCCL_DEBUG=WARN the first line with the words is the `raise` that was executed."""
    lines = RECORDED.read_text().splitlines()
    cause = cause_in(*(line for line in lines if "NCCL WARN" not in line))
    assert cause.kind is K.COLLECTIVE
    assert cause.line.startswith("RuntimeError: NCCL error: invalid usage")


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[rank0]: ",
        "[2026-11-29 10:00:00 DP0 TP1] ",
        VLLM.format(1),
        "(pid=12) ",
        "(RayWorkerWrapper pid=12, ip=10.0.0.2) ",
        "(VllmWorker TP1 pid=12) ",
        "(EngineCore_DP0 pid=1) (RayWorkerWrapper pid=12) ERROR 11-29 11:44:02 [x.py:1] ",
        "  | ",
        "(APIServer pid=1)     | ",
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_traceback_ends_with_its_cause_behind_any_prefix(prefix: str, known: bool) -> None:
    last = MEMORY if known else "KeyError: 'x'"
    blank, more = "", '        "NCCL error",'  # of a statement of several lines, as 3.13 quotes it
    lines = (HEAD, FRAME, SOURCE, blank, more, "    ^^^^", last)
    cause = cause_in(*(f"{prefix}{line}" for line in lines))
    assert (cause.kind, cause.line) == (K.OUT_OF_MEMORY if known else K.CRASHED, last)


def test_the_groups_of_an_exception_group_are_read() -> None:
    cause = cause_in(
        "  + Exception Group Traceback (most recent call last):",
        f"  | {FRAME}",
        "  |     async with TaskGroup() as group:",
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
        *(f"    | {line}" for line in TRACEBACK),
        "    +------------------------------------",
    )
    assert cause.line == MEMORY


def test_a_traceback_within_a_message_does_not_hide_the_cause_behind_it() -> None:
    inner = ("    " + line for line in TRACEBACK)
    outer = (HEAD, FRAME, "    raise e", "RuntimeError: worker 1 failed:")
    assert cause_in(*outer, *inner).line == MEMORY


@pytest.mark.parametrize(
    "lines",
    [
        (HEAD, FRAME, "[2026-11-29 10:00:00 TP1] Load weight begin.", SOURCE, MEMORY),
        tuple(line for line in TRACEBACK for _ in range(2)),
        tuple(VLLM.format(rank) + line for line in TRACEBACK for rank in range(2)),
        (
            *(VLLM.format(0) + line for line in TRACEBACK[:2]),
            VLLM.format(1) + "Loading weights took 3 seconds",
            *(VLLM.format(0) + line for line in TRACEBACK[2:]),
        ),
    ],
)
def test_another_rank_s_lines_in_between_change_nothing(lines: tuple[str, ...]) -> None:
    assert cause_in(*lines).line == MEMORY


@pytest.mark.parametrize("frame", [FRAME, FRAME.replace("  File", "> File"), f"\t{FRAME.strip()}"])
def test_source_is_what_is_indented_more_than_its_frame(frame: str) -> None:
    source = f"\t{SOURCE}" if frame.startswith("\t") else f"\t{SOURCE.strip()}"
    assert cause_in(HEAD, frame, source, MEMORY).line == MEMORY
    level = " " * (len(frame.expandtabs()) - len(frame.expandtabs().lstrip(" >")))
    assert cause_in(HEAD, frame, source, level + "NCCL error: timeout").kind is K.COLLECTIVE


def test_a_message_has_none_of_several_prefixes() -> None:
    line = "(EngineCore_DP0 pid=1) (RayWorkerWrapper pid=12, ip=10.0.0.2) [rank3]: ValueError: no"
    assert message_of(line) == "ValueError: no"
    assert message_of("(elapsed 3 s) ready") == "(elapsed 3 s) ready"
