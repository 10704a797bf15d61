"""`show` prints one JSON document of a fixed shape, or tables that fit a person's terminal."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from autotune.records import FailureKind
from autotune.run import read_run
from autotune.rundir import RunDir
from autotune.show import show_document, show_tables
from tests.runs import baseline, failed, measured, write_run


def rendered(path: Path, width: int = 150) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        for part in show_tables(read_run(path)):
            console.print(part)
    return console.export_text()


def test_the_document_has_the_agreed_shape(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", baseline(), measured(1, 90, 1400), failed(2))
    RunDir(path).create_trial(3)
    document = json.loads(json.dumps(show_document(read_run(path))))
    assert set(document) == {"name", "engine_versions", "machine", "baseline", "front", "trials"}
    assert document["front"] == [1, 0]
    assert document["engine_versions"] == {"sglang": "0.5.23"}
    keys = {"number", "state", "failure", "params", "command", "env", "values", "spread"}
    for trial in document["trials"]:
        assert set(trial) == keys | {"figures", "seconds", "warnings"}
    states = [trial["state"] for trial in document["trials"]]
    assert states == ["ok", "ok", "infeasible", "interrupted"]
    assert document["trials"][2]["values"] is None
    assert document["trials"][2]["failure"] == {
        "kind": "out_of_memory",
        "phase": "load",
        "cause": "torch.OutOfMemoryError: CUDA out of memory.",
    }


def test_the_front_is_shown_with_gains_and_changes_against_the_baseline(tmp_path: Path) -> None:
    path = write_run(
        tmp_path / "run",
        baseline(80, 1500),
        measured(1, 100, 1600, params={"nccl_proto": "LL"}),
    )
    lines = [line for line in rendered(path).splitlines() if "100.0 ± 1.0" in line]
    assert len(lines) == 1
    assert "+25.0 %" in lines[0]
    assert "+6.7 %" in lines[0]
    (changes,) = [line for line in rendered(path).splitlines() if "1 sets" in line]
    assert changes.strip() == "1 sets nccl_proto=LL"
    assert any("baseline" in line and "80.0 ± 0.8" in line for line in rendered(path).splitlines())


def test_nothing_is_cut_off_on_a_terminal_of_eighty_columns(tmp_path: Path) -> None:
    long = {"a_parameter_with_a_very_long_name": "and_a_value_that_is_longer_than_any_column"}
    path = write_run(tmp_path / "run", baseline(), measured(1, 100, 1600, params=long), failed(2))
    text = rendered(path, width=80)
    assert "…" not in text
    assert "and_a_value_that_is_longer_than_any_column" in text


def test_numbers_that_are_missing_and_launches_that_count_for_nothing_are_explained(
    tmp_path: Path,
) -> None:
    whole = write_run(tmp_path / "whole", baseline(), failed(1))
    assert "lost" not in rendered(whole) and "not launched" not in rendered(whole)
    lost = (measured(n, 90, 1400, state="lost", values=None) for n in (2, 5))
    path = write_run(tmp_path / "run", baseline(), *lost, failed(7))
    RunDir(path).create_trial(6)
    lines = [line.strip() for line in rendered(path).splitlines()]
    assert "lost with their host or worker, and counted for nothing: trials 2, 5" in lines
    (gaps,) = [line for line in lines if line.startswith("not launched: trials 1, 3, 4 (")]
    assert "planned for later" in gaps and "taken back" in gaps  # known_good beyond the budget
    numbers = [trial["number"] for trial in show_document(read_run(path))["trials"]]
    assert sorted(numbers) == [0, 2, 5, 6, 7]


def test_failures_are_counted_by_cause(tmp_path: Path) -> None:
    path = write_run(
        tmp_path / "run",
        baseline(),
        failed(1, cause="CUDA out of memory. 0.19 GiB is free"),
        failed(2, cause="CUDA out of memory. 12.5 GiB is free"),
        failed(3, FailureKind.BAD_FLAGS, "error: argument --x: [odd] choice"),
    )
    text = rendered(path)
    rows = [line.split() for line in text.splitlines() if "out_of_memory" in line]
    assert rows[0][0] == "2"
    assert "argument --x: [odd] choice" in text  # not eaten as markup


def test_a_trial_that_was_cut_off_is_shown(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", baseline())
    RunDir(path).create_trial(1)
    assert "2 trials, 1 measured, 1 interrupted" in rendered(path)


def test_a_kind_of_warning_is_shown_once_with_the_trials_that_gave_it(tmp_path: Path) -> None:
    stranger = "stranger on a GPU: pid 17 [python] holds 512 MiB"
    path = write_run(
        tmp_path / "run",
        baseline(),
        measured(1, 90, 1400, warnings=("2 of 8 waves at peak are outliers",)),
        failed(2, warnings=(stranger,)),
        measured(3, 95, 1300, warnings=("3 of 9 waves at peak are outliers", stranger)),
    )
    lines = [line.strip() for line in rendered(path).splitlines()]
    waves = "2 of 8 waves at peak are outliers (trials 1, 3; these are the figures of trial 1)"
    assert waves in lines
    assert f"{stranger} (trials 2, 3)" in lines  # brackets are not eaten as markup


def test_a_run_without_warnings_has_no_heading_for_them(tmp_path: Path) -> None:
    assert "Warnings" not in rendered(write_run(tmp_path / "run", baseline()))


def test_a_front_without_a_measured_baseline_is_compared_with_nothing(tmp_path: Path) -> None:
    first = failed(0, purpose="baseline")
    text = rendered(write_run(tmp_path / "run", first, measured(1, 90, 1400)))
    assert "the baseline (trial 0) failed: no gains can be given" in text
    assert "against the baseline" not in text
    (settings,) = [line for line in text.splitlines() if line.startswith("  1 is ")]
    assert "attention_backend=flashinfer" in settings  # all of it, not what differs from nothing


def test_a_run_without_a_baseline_shows_whole_configurations(tmp_path: Path) -> None:
    text = rendered(write_run(tmp_path / "run", measured(1, 90, 1400)))
    assert "nothing" not in text
    assert (
        text.count("attention_backend=flashinfer num_steps=0") == 2
    )  # the front's and the trial's
