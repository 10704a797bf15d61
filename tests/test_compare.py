"""A difference is one only where it is larger than the spreads of both sides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.compare import (
    compare_replay,
    compare_runs,
    comparison_document,
    comparison_text,
    ratio_of,
)
from autotune.errors import InputError
from autotune.records import PEAK, SINGLE
from autotune.run import read_run
from autotune.rundir import RunDir
from tests.runs import EXPERIMENT, baseline, failed, measured, write_run


def test_a_ratio_s_spread_joins_both_sides() -> None:
    ratio = ratio_of(100.0, 3.0, 104.0, 4.16)
    assert ratio.ratio == pytest.approx(1.04)
    assert ratio.spread == pytest.approx(1.04 * 0.05)  # 3 % and 4 %
    assert ratio.sign == "same"
    assert ratio_of(100.0, 1.0, 104.0, 1.0).sign == "faster"
    assert ratio_of(100.0, 1.0, 96.0, 1.0).sign == "slower"


def test_a_replay_within_the_spread_agrees() -> None:
    comparison = compare_replay(measured(7, 90.0, 2000), measured(7, 90.9, 2005, repeats=7))
    assert comparison.agrees
    assert "trial 7, launched again: the same within the spread" in comparison.text()
    assert json.loads(json.dumps(comparison.document()))["agrees"] is True


def test_a_replay_outside_the_spread_says_what_else_changed() -> None:
    new = measured(7, 61.0, 2000, engine_version="0.5.24", effective={"page_size": 64})
    old = measured(7, 94.0, 2000, effective={"page_size": 1})
    comparison = compare_replay(old, new)
    assert not comparison.agrees
    text = comparison.text()
    assert "NOT the same" in text
    assert "single stream: 94.0 → 61.0 tok/s, -35.1 ± 0.9 %: slower" in text
    assert "peak: 2,000 → 2,000 tok/s, +0.0 ± 0.7 %: same" in text
    assert "engine version: 0.5.23 then, 0.5.24 now" in text
    assert "page_size: the server ran 1 then, 64 now" in text


def test_a_replay_that_failed_agrees_with_nothing() -> None:
    comparison = compare_replay(measured(7, 94.0, 2000), failed(7))
    assert not comparison.agrees
    assert "this time it failed: out_of_memory during load" in comparison.text()


def test_two_runs_are_compared_by_configuration(tmp_path: Path) -> None:
    fast = {"attention_backend": "triton"}
    a = write_run(tmp_path / "a", baseline(80, 1500), measured(1, 90, 1600, params=fast), failed(2))
    b = write_run(
        tmp_path / "b",
        baseline(80.2, 1500, engine_version="0.5.24"),
        measured(5, 70, 1700, params=fast),
        machine={"hostname": "b", "settings": {"gpu.driver": "580"}},
    )
    comparison = compare_runs(read_run(a), read_run(b))
    assert [(pair.a, pair.b) for pair in comparison.pairs] == [(0, 0), (1, 5)]
    assert comparison.pairs[0].ratios[SINGLE].sign == "same"
    assert comparison.pairs[1].ratios[SINGLE].sign == "slower"
    assert comparison.pairs[1].ratios[PEAK].sign == "faster"
    (flip,) = comparison.flips  # A finds triton faster at one request, B slower
    assert (flip.objective, flip.first, flip.second) == (SINGLE, 1, 0)
    assert "sglang: 0.5.23 in A, 0.5.24, 0.5.23 in B" in comparison.differences
    assert any(
        text.startswith("machine gpu.driver: None in A, 580 in B")
        for text in comparison.differences
    )
    text = comparison_text(comparison)
    assert "rank flip (single stream): A finds trial 1 faster than trial 0" in text
    assert json.loads(json.dumps(comparison_document(comparison)))["flips"]


@pytest.mark.parametrize(
    ("name", "held", "said"),
    [
        ("mine.jsonl", "one", []),
        ("moved/mine.jsonl", "one", []),
        (
            "mine.jsonl",
            "two",
            ["workload prompts: mine.jsonl (7692c3ad) in A, mine.jsonl (3fc4ccfe) in B"],
        ),
    ],
)
def test_prompts_differ_by_what_they_hold(
    tmp_path: Path, name: str, held: str, said: list[str]
) -> None:
    runs = []
    for run, prompts, text in (("a", "mine.jsonl", "one"), ("b", name, held)):
        workload = EXPERIMENT["workload"] | {"prompts": prompts}
        experiment = EXPERIMENT | {"workload": workload}
        runs.append(write_run(tmp_path / run, baseline(), experiment=experiment))
        RunDir(runs[-1]).prompts.write_text(text)
    a, b = map(read_run, runs)
    assert list(compare_runs(a, b).differences) == said


def test_what_the_experiment_files_fix_is_named_where_it_differs(tmp_path: Path) -> None:
    section = EXPERIMENT["engines"]["sglang"]
    args = section["args"] | {"tp-size": 4}
    other = {"sglang": section | {"args": args, "env": {"NCCL_DEBUG": "WARN"}}}
    a = read_run(write_run(tmp_path / "a", baseline()))
    b = read_run(write_run(tmp_path / "b", baseline(), experiment=EXPERIMENT | {"engines": other}))
    differences = [
        "sglang args tp-size: 8 in A, 4 in B",
        "sglang env NCCL_DEBUG: None in A, WARN in B",
    ]
    assert list(compare_runs(a, b).differences) == differences
    alike = "machine, engine versions, fixed arguments and workload are the same"
    assert alike not in comparison_text(compare_runs(a, b))
    assert alike in comparison_text(compare_runs(a, a))


def test_what_failed_on_one_side_only_is_named(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", failed(0))
    b = write_run(tmp_path / "b", baseline())
    text = comparison_text(compare_runs(read_run(a), read_run(b)))
    assert "failed in A only: trial 0: out_of_memory during load" in text


def test_runs_without_a_common_configuration_are_refused(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", baseline())
    b = write_run(tmp_path / "b", measured(0, 1, 1, params={"num_steps": 5}))
    with pytest.raises(InputError, match="no configuration in common"):
        compare_runs(read_run(a), read_run(b))
