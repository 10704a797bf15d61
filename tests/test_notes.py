"""Notes for optuna-dashboard say what happened, and no cell or code block can break out."""

from __future__ import annotations

from pathlib import Path

from autotune.notes import fenced, study_note, table, trial_note
from autotune.run import read_run
from tests.runs import baseline, failed, measured, write_run


def test_a_failed_trial_s_note_has_cause_and_command() -> None:
    note = trial_note(failed(2))
    assert note.startswith("**infeasible** (search): attention_backend=flashinfer")
    assert "**out_of_memory** during load:" in note
    assert "torch.OutOfMemoryError: CUDA out of memory." in note
    assert "python -m sglang.launch_server \\\n--model-path acme/Tiny-1T \\\n" in note


def test_a_measured_trial_s_note_has_values_warnings_and_figures() -> None:
    outcome = measured(3, 81.9, 2370, warnings=("max_running_requests: asked 128, runs 48",))
    note = trial_note(outcome)
    assert "single stream: **81.9 ± 0.8** tok/s" in note
    assert "peak: **2,370 ± 11.8** tok/s" in note
    assert "- warning: max_running_requests: asked 128, runs 48" in note
    assert "| peak\\_concurrency | 128 |" in note
    assert "Time: 9.6 min (prepare 0 s, launch 40 s" in note


def test_the_study_s_note_has_front_and_failures(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", baseline(), measured(1, 90, 2000), failed(2)))
    note = study_note(run)
    assert note.startswith("synthetic: 3 trials, 2 measured, 1 infeasible; front of 1")
    assert (
        "| 1 | 90.0 ± 0.9 | 2,000 ± 10 | +12.5 % | +33.3 % | single, knee, peak | nothing |" in note
    )
    assert "| 1 | out\\_of\\_memory | load |" in note


def test_a_cell_cannot_end_its_row() -> None:
    (*_, row) = table(("a", "b"), [("x | y\nz", "<b>")])
    assert row == "| x \\| y z | \\<b> |"


def test_a_code_block_cannot_be_ended_from_inside() -> None:
    assert fenced(["```", "x"])[0] == "````"
