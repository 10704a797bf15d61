"""The settings of the collective: what is credited, what is chance, and what adds nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.explain.finding import Finding
from autotune.records import Outcome, Value
from autotune.run import read_run
from tests.explain.synthetic import SPECULATIVE, base, causes, healthy, named, run_of
from tests.runs import baseline, measured, write_run

LL: dict[str, Value] = {"nccl_proto": "LL", "nccl_min_channels": None}
LL_16: dict[str, Value] = {"nccl_proto": "LL", "nccl_min_channels": 16}


def timed(step_ms: float, first_token_ms: float, **figures: float) -> dict[str, float]:
    return healthy(single_p50_tpot_ms=step_ms, single_p50_ttft_ms=first_token_ms, **figures)


def settings_of(tmp_path: Path, *others: Outcome, number: int = 0, **fields: Any) -> Finding:
    """What is said of `number` among a baseline of 82.5 and 1,536 tok/s and these."""
    channels = {"nccl_min_channels": {"choices": [None, 16], "env": "NCCL_MIN_NCHANNELS"}}
    experiment = SPECULATIVE | {"parameters": SPECULATIVE["parameters"] | channels}
    slow = base(params={"nccl_min_channels": None}, **({"figures": timed(12.1, 100.0)} | fields))
    run = read_run(write_run(tmp_path / "run", slow, *others, experiment=experiment))
    return named(run, number, "collective_settings")


def test_the_collective_s_settings_are_judged_by_a_trial_that_differs_in_nothing_else(
    tmp_path: Path,
) -> None:
    fast = measured(1, 100, 1600, params={"nccl_proto": "LL"},
                    figures=healthy(single_p50_tpot_ms=9.8))  # fmt: skip
    run = run_of(tmp_path, base(), fast)
    finding = causes(run, 0)["collective_settings"]
    assert "trial 1 differs in nothing but nccl_proto unset → LL" in finding.statement
    assert "+21.2 % single stream" in finding.statement
    assert "all-reduce is at least 19% of it" in finding.statement
    assert named(run, 1, "collective_settings").kind == "fact"


def test_what_changes_nothing_is_not_advised_along(tmp_path: Path) -> None:
    """Two trials decode as fast; the one that changed more is ahead by its first token only."""
    plain = measured(1, 100, 1600, params=LL, figures=timed(9.80, 100.0))
    more = measured(2, 103, 1600, params=LL_16, figures=timed(9.79, 30.0))
    assert settings_of(tmp_path, plain, more).advice == "nccl_proto unset → LL"


def test_what_gains_at_peak_is_advised_though_the_step_is_the_same(tmp_path: Path) -> None:
    plain = measured(1, 84.5, 1540, params=LL, figures=timed(11.80, 100.0))
    more = measured(2, 84.6, 2400, params=LL_16, figures=timed(11.79, 100.0))
    assert settings_of(tmp_path, plain, more).advice == (
        "nccl_proto unset → LL, nccl_min_channels unset → 16"
    )


def test_a_tie_at_peak_does_not_hide_what_is_gained_in_single_stream(
    tmp_path: Path,
) -> None:
    """The plainer trial has the higher peak, though within the spread, and gains nothing else."""
    plain = measured(1, 82.5, 2410, params=LL, figures=timed(12.1, 100.0))
    more = measured(2, 100, 2400, params=LL_16, figures=timed(9.8, 100.0))
    assert "nccl_min_channels unset → 16" in settings_of(tmp_path, plain, more).advice


def test_the_collective_is_not_credited_with_the_time_to_the_first_token(tmp_path: Path) -> None:
    """On two H200: 4.66 ms a step in both, 150 and 90 ms to the first token."""
    run = run_of(
        tmp_path,
        baseline(192.3, 1500, figures=timed(4.66, 150.3)),
        measured(1, 200.6, 1500, params={"nccl_proto": "LL"}, figures=timed(4.65, 89.7)),
    )
    finding = named(run, 0, "collective_settings")
    assert finding.kind == "fact"
    assert "a decode step takes as long (4.66 and 4.65 ms)" in finding.statement
    assert "+4.3 % single stream, +0.0 % peak (within the spread)" in finding.statement
    assert "the time to the first token (150 and 90 ms)" in finding.statement
    assert not finding.advice


@pytest.mark.parametrize(
    ("own", "single", "peak", "other"),
    [
        # at peak, whatever it comes from
        (timed(12.1, 100.0, p50_tpot_ms=40.0, p50_ttft_ms=900.0), 82.5, 1900,
         timed(12.1, 100.0, p50_tpot_ms=40.0, p50_ttft_ms=200.0)),
        (timed(12.1, 100.0), 86, 1900, timed(12.1, 30.0)),
        # the client's figure in one trial, the scheduler's in the other
        (timed(12.1, 100.0, p50_tpot_ms=52.0), 82.5, 1900,
         timed(12.1, 100.0, p50_tpot_ms=40.0, peak_server_tpot_ms=52.0)),
        # more than a first token varies by itself
        (timed(12.1, 900.0), 98, 1536, timed(12.1, 200.0)),
    ],
    ids=["prefill at peak", "peak and first token", "other sources", "prefill alone"],
)  # fmt: skip
def test_a_gain_that_chance_does_not_explain_is_the_collective_s(
    tmp_path: Path, own: dict[str, float], single: float, peak: float, other: dict[str, float]
) -> None:
    fast = measured(1, single, peak, params=LL, figures=other)
    finding = settings_of(tmp_path, fast, figures=own)
    assert finding.kind == "cause"
    assert finding.advice == "nccl_proto unset → LL"
    assert "all-reduce is at least" not in finding.statement  # of a step that takes as long


def test_a_run_whose_own_launches_differ_more_allows_chance_more(tmp_path: Path) -> None:
    fast = measured(1, 86, 1536, params=LL, figures=timed(12.1, 300.0))
    own = timed(12.1, 450.0)
    assert settings_of(tmp_path / "a", fast, figures=own).kind == "cause"
    again = measured(2, 82.5, 1536, params={"nccl_min_channels": None}, purpose="drift",
                     repeats=0, figures=timed(12.1, 280.0))  # fmt: skip
    assert settings_of(tmp_path / "b", fast, again, figures=own).kind == "fact"


def test_what_gives_nothing_beyond_the_spread_is_said_to(tmp_path: Path) -> None:
    """The baseline's spread is 1 % and 0.5 %."""
    tie = measured(1, 83.3, 1541, params=LL, figures=timed(12.0, 100.0))
    assert "gives +1.0 % single stream, +0.3 % peak, both within the spread." in (
        settings_of(tmp_path / "tie", tie).statement
    )
    mixed = measured(1, 83.3, 1400, params=LL, figures=timed(12.0, 100.0))
    assert "gives +1.0 % single stream (within the spread), -8.9 % peak." in (
        settings_of(tmp_path / "mixed", mixed).statement
    )


def test_what_no_two_trials_tell_is_said_to_be_unknown(tmp_path: Path) -> None:
    other = measured(1, 90, 1400, params={"nccl_proto": "LL", "attention_backend": "triton"},
                     figures=healthy())  # fmt: skip
    finding = named(run_of(tmp_path, base(), other), 0, "collective_settings")
    assert finding.kind == "unknown"
    assert "Not known what nccl_proto is worth" in finding.statement
