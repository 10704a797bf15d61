"""The other tools' command lines and results: recorded against the mock server, 50 ms and 10 ms."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from autotune.errors import AutotuneError
from autotune.verify_tools import TOOLS, Job, Tool, find_tool, run_tool

RECORDED = Path(__file__).parent / "data" / "verify"


def job(folder: Path, tokenizer: str = "m") -> Job:
    return Job(
        url="http://127.0.0.1:1",
        model="m",
        tokenizer=tokenizer,
        engine=None,
        concurrency=4,
        requests=16,
        warm_up=4,
        input_tokens=128,
        output_tokens=32,
        seed=7,
        prompts=folder / "prompts.json",
        folder=folder,
    )


@pytest.mark.parametrize("name", ["aiperf", "guidellm", "sglang"])
def test_a_recorded_result_gives_the_mock_s_figures(name: str) -> None:
    figures = TOOLS[name].read(RECORDED / name)
    assert figures["answer_tokens"] == 32
    assert figures["ttft_ms"] == pytest.approx(50, rel=0.1)
    assert figures["tpot_ms"] == pytest.approx(10, rel=0.02)
    assert 290 < figures["tok_s"] < 4 * 32 / 0.36  # four streams, 32 tokens in 360 ms


def test_guidellm_is_told_to_leave_out_the_warm_up(tmp_path: Path) -> None:
    words = TOOLS["guidellm"].arguments(job(tmp_path, "/models/a,b"))
    given = {words[i]: json.loads(words[i + 1]) for i in range(0, len(words) - 1, 2)}
    assert given["--profile"] == {
        "kind": "concurrent",
        "streams": [4],
        "warmup": {"value": 4, "mode": "requests"},
    }
    assert given["--constraint"]["count"] == 20
    assert given["--tokenizer"]["model"] == "/models/a,b"


def fake(tmp_path: Path, code: str) -> tuple[Tool, tuple[str, ...]]:
    """A tool that runs some Python instead of a benchmark."""
    return Tool("fake", lambda: None, lambda job: [], TOOLS["aiperf"].read, ("HIDDEN",)), (
        sys.executable,
        "-c",
        code,
    )


def test_a_failed_tool_is_told_by_the_error_it_names(tmp_path: Path) -> None:
    panel = "print('│ TokenizerError: no such folder │\\n│ Profiling │\\n╰──────╯'); exit(1)"
    tool, command = fake(tmp_path, panel)
    with pytest.raises(
        AutotuneError, match=r"fake: exit status 1: TokenizerError: no such folder \("
    ):
        run_tool(tool, command, job(tmp_path))


def test_a_tool_that_failed_without_a_folder_for_its_tokenizer_is_told_of_one(
    tmp_path: Path,
) -> None:
    tool, command = fake(tmp_path, "print('offline'); exit(1)")
    with pytest.raises(AutotuneError, match=r"offline \(its tokenizer was m, .*--tokenizer FOLDER"):
        run_tool(tool, command, job(tmp_path))
    with pytest.raises(AutotuneError, match=r"offline$"):
        run_tool(tool, command, job(tmp_path, str(tmp_path)))


def test_a_tool_without_a_result_is_told_by_its_last_lines(tmp_path: Path) -> None:
    tool, command = fake(tmp_path, "print('done')")
    with pytest.raises(AutotuneError, match=r"no result that can be read: .*: done \("):
        run_tool(tool, command, job(tmp_path))


def test_a_variable_that_a_tool_trips_over_is_hidden_for_a_tokenizer_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDEN", "1")
    result = RECORDED / "aiperf" / "profile_export_aiperf.json"
    shutil.copy(result, tmp_path)
    tool, command = fake(tmp_path, "import os; exit('HIDDEN' in os.environ)")
    assert run_tool(tool, command, job(tmp_path, str(tmp_path)))["answer_tokens"] == 32
    with pytest.raises(AutotuneError):
        run_tool(tool, command, job(tmp_path, "a-name-on-a-hub"))


def test_sglang_s_bench_empties_no_cache_of_another_engine(tmp_path: Path) -> None:
    """It would ask for an endpoint that only SGLang has."""
    assert "--flush-cache" not in TOOLS["sglang"].arguments(job(tmp_path))


def test_an_interpreter_that_is_not_there_has_no_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_SGLANG_PYTHON", "/nowhere/python")
    with pytest.raises(AutotuneError, match="sglang is not installed"):
        find_tool("sglang")


def test_every_tool_has_a_name_and_a_wrong_one_lists_them() -> None:
    with pytest.raises(AutotuneError, match="choose from vllm, sglang, aiperf, guidellm"):
        find_tool("wrk")
