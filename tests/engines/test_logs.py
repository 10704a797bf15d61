from __future__ import annotations

from pathlib import Path

import pytest

from autotune.engines.logs import LogReader, message_of, pieces, rank_of
from autotune.engines.registry import engine_named
from autotune.records import Phase

LOGS = Path(__file__).parent.parent / "data" / "logs"


def test_a_progress_bar_is_as_many_pieces_as_it_had_updates() -> None:
    text = "before\n\r  0%|  | 0/2 [00:00<?, ?it/s]\rhalf 1/2\rdone 2/2\nafter\n"
    assert list(pieces(text)) == [
        "before",
        "  0%|  | 0/2 [00:00<?, ?it/s]",
        "half 1/2",
        "done 2/2",
        "after",
    ]


def test_a_warning_glued_behind_a_bar_is_a_piece_of_its_own() -> None:
    found = list(pieces((LOGS / "sglang-spec3.log").read_text()))
    bars = [piece for piece in found if piece.endswith("0/27 [00:00<?, ?it/s]")]
    assert bars
    assert any(piece.startswith("/opt/venv/lib/python3.12/site-packages/triton") for piece in found)


def test_colours_are_no_part_of_a_piece() -> None:
    assert list(pieces("\x1b[1;33m'--old' is deprecated\x1b[0m\n")) == ["'--old' is deprecated"]


def test_a_message_has_no_time_rank_or_process() -> None:
    assert message_of("[2026-11-29 12:18:14 DP0 TP3] Load weight begin.") == "Load weight begin."
    vllm = "(EngineCore pid=7698) ERROR 11-29 11:44:02 [core.py:1510] ValueError: no"
    assert message_of(vllm) == "ValueError: no"


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[2026-11-29 12:18:14 DP0 TP3] Load weight begin.", "DP0 TP3"),
        ("[2026-11-29 12:18:14] server_args=ServerArgs()", None),
        ("(Worker_TP1 pid=7) INFO 11-29 11:44:02 [gpu_model_runner.py:1] Loading", "TP1"),
        ("(Worker_DP0_TP1_EP1 pid=7) INFO 11-29 11:44:02 [x.py:1] Loading", "DP0_TP1_EP1"),
        ("(EngineCore pid=7698) ERROR 11-29 11:44:02 [core.py:1510] ValueError: no", None),
        ("TP3 is a word", None),
    ],
)
def test_the_rank_that_wrote_a_line(line: str, rank: str | None) -> None:
    assert rank_of(line) == rank


def test_a_reader_returns_each_piece_once_and_keeps_what_is_unfinished(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    reader = LogReader(log)
    assert reader.read() == []
    with log.open("a") as file:
        file.write("one\ntw")
        file.flush()
        assert reader.read() == ["one"]
        assert reader.unfinished == "tw"
        file.write("o\r 50% 1/2")
        file.flush()
        assert reader.read() == ["two"]
        assert reader.unfinished == " 50% 1/2"


def test_a_letter_cut_by_a_read_is_not_broken(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    data = "4%|▎ |\n".encode()
    log.write_bytes(data[:4])
    reader = LogReader(log)
    reader.read()
    log.write_bytes(data)
    assert reader.read() == ["4%|▎ |"]


def phases(engine: str, name: str) -> list[Phase]:
    found: list[Phase] = []
    for piece in pieces((LOGS / name).read_text()):
        phase = engine_named(engine).phase_of(piece)
        if phase is not None and phase not in found:
            found.append(phase)
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sglang-triton.log", [Phase.LOAD, Phase.CAPTURE, Phase.READY]),
        ("sglang-spec3.log", [Phase.LOAD, Phase.CAPTURE, Phase.READY]),
        ("sglang-triton_nocg.log", [Phase.LOAD, Phase.READY]),
        ("sglang-tp2.log", [Phase.LOAD, Phase.CAPTURE, Phase.READY]),
        ("sglang-oom.log", [Phase.LOAD]),
        ("vllm-clean_start_stop.log", [Phase.LOAD, Phase.READY]),
        ("vllm-bad_flag.log", []),
    ],
)
def test_the_phases_of_a_recorded_start_are_found_in_order(
    name: str, expected: list[Phase]
) -> None:
    assert phases(name.partition("-")[0], name) == expected


def test_bars_say_how_far_weights_and_graphs_are() -> None:
    sglang = engine_named("sglang")
    shards = "Multi-thread loading shards:  37% Completed | 61/163 [03:51<06:26,  3.79s/it]"
    graphs = (
        "Capturing batches (bs=64 avail_mem=55.36 GB):   4%|▎         | 1/27 [01:16<33:05, 76s/it]"
    )
    for line, detail, fraction in (
        (shards, "loading weights 61/163 shards", 61 / 163),
        (graphs, "capturing CUDA graphs 1/27", 1 / 27),
    ):
        progress = sglang.progress_of(line)
        assert progress is not None
        assert progress.detail == detail
        assert progress.fraction == pytest.approx(fraction)
    vllm = "Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 114.44it/s]"
    progress = engine_named("vllm").progress_of(vllm)
    assert progress is not None
    assert progress.detail == "loading weights 1/1 shards"


def test_a_long_line_of_settings_is_no_bar() -> None:
    bar = "loading shards:  37% Completed | 61/163"
    assert engine_named("openai").progress_of(bar) is not None
    settings = ", ".join(f"loading_{number}=None" for number in range(100))
    assert engine_named("openai").progress_of(f"server_args=Args({settings}, x='{bar}')") is None
