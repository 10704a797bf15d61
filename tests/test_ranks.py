"""Which ranks of a server the others wait for, and that no other rank is ever named."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from autotune.engines.logs import pieces, rank_of
from autotune.engines.registry import engine_named
from autotune.ranks import Ranks

RECORDED = Path(__file__).parent / "data" / "logs" / "sglang-tp2.log"
STEPS = (
    "Init torch distributed begin.",
    "Load weight begin. avail mem=138.25 GB",
    "Load weight end. elapsed=0.25 s, avail mem=136.74 GB",
    "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 444815",
    "Capture target verify CUDA graph begin. backend=full",
)


def line(rank: str, message: str) -> str:
    return f"[2026-11-29 10:00:00 {rank}] {message}"


def ranks_after(lines: Iterable[str], engine: str = "sglang") -> Ranks:
    """What ranks had begun by the end of `lines`, all at second 0."""
    ranks = Ranks()
    for text in lines:
        progress, rank = engine_named(engine).progress_of(text), rank_of(text)
        if progress is not None and progress.step is not None and rank is not None:
            ranks.note(rank, progress.step, progress.detail, 0.0)
    return ranks


@pytest.mark.parametrize(
    ("last", "doing"),
    [
        ("Init torch distributed begin", "connecting the ranks"),
        ("Load weight begin", "loading weights"),
        ("Load weight end", "allocating the KV cache"),
        ("KV Cache is allocated", "preparing kernels"),
    ],
)
def test_the_slowest_rank_is_named_once_the_others_have_waited_for_it(
    last: str, doing: str
) -> None:
    recorded = list(pieces(RECORDED.read_text()))
    assert ranks_after(recorded).behind(60.0) == ""
    stopped = next(i for i, text in enumerate(recorded) if f"TP1] {last}" in text)
    stuck = [text for i, text in enumerate(recorded) if "TP1]" not in text or i <= stopped]
    assert ranks_after(stuck).behind(9.0) == "", "a few seconds apart is usual"
    assert ranks_after(stuck).behind(60.0) == f"TP1 of 2 ranks is still {doing}"


def test_many_ranks_that_are_behind_are_counted_in_the_order_of_their_numbers() -> None:
    ranks = Ranks()
    for rank in range(12):
        ranks.note(f"DP0 TP{rank}", 1, "connecting the ranks", 0.0)
    for rank in (0, 3, 4, 5):
        ranks.note(f"DP0 TP{rank}", 2, "loading weights", 5.0)
    names = "DP0 TP1, DP0 TP2, DP0 TP6, DP0 TP7 and 4 more"
    expected = f"{names} of 12 ranks are still connecting the ranks"
    assert (ranks.behind(14.0), ranks.behind(15.0)) == ("", expected)


@pytest.mark.parametrize("done", range(1, len(STEPS) + 1))
@pytest.mark.parametrize(
    "alone",
    [
        "Running FlashInfer autotune with tensor parallel",
        "Capture draft decode CUDA graph begin. backend=full",
        "Capture draft extend CUDA graph begin. backend=full",
    ],
)
def test_a_step_that_rank_0_alone_writes_accuses_nobody(done: int, alone: str) -> None:
    """All ranks are there, one says so."""
    lines = [line(f"TP{rank}", step) for step in STEPS[:done] for rank in range(8)]
    assert ranks_after([*lines, line("TP0", alone)]).behind(60.0) == ""


@pytest.mark.parametrize("again", [STEPS[:1], STEPS[:3], STEPS[1:3]])
def test_steps_begun_again_accuse_nobody(again: tuple[str, ...]) -> None:
    """A restarted rank, and the last pipeline stage, which alone loads a draft."""
    lines = [line(f"PP{rank} TP0", step) for step in STEPS[:3] for rank in range(2)]
    lines += [line("PP1 TP0", step) for step in again]
    assert ranks_after(lines).behind(60.0) == ""


def test_no_rank_of_vllm_is_named() -> None:
    """All its workers connect without saying which they are; of the rest rank 0 speaks alone."""
    lines = [
        "(Worker pid=301) INFO 03-19 06:21:47 [parallel_state.py:1395] world_size=2 rank=0 x",
        "(Worker pid=302) INFO 03-19 06:21:47 [parallel_state.py:1395] world_size=2 rank=1 x",
        "(Worker_TP1 pid=302) INFO 03-19 06:21:48 [parallel_state.py:1395] world_size=2 rank=1 x",
        "(Worker_TP0 pid=301) INFO 03-19 06:21:49 [gpu_model_runner.py:4492] Starting to load "
        "model /m...",
        "(Worker_TP0 pid=301) INFO 03-19 07:00:47 [default_loader.py:314] Loading weights took "
        "2337.04 seconds",
    ]
    assert ranks_after(lines, "vllm").behind(60.0) == ""
