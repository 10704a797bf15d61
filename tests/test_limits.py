"""Limits on measured figures."""

from __future__ import annotations

import pytest

from autotune.limits import is_upper_limit, violated, violations, worst_violation
from autotune.records import FIGURES, FailureKind, Measurement


def measured(**figures: float) -> Measurement:
    return Measurement(values={"peak_tok_s": 900.0}, spread={}, figures=figures)


def test_a_latency_is_limited_from_above_and_a_capacity_from_below() -> None:
    upper = {figure for figure in FIGURES if is_upper_limit(figure)}
    assert {"p99_ttft_ms", "p50_tpot_ms", "peak_failed_requests", "retractions"} <= upper
    assert not upper & {"kv_tokens", "goodput_rps", "peak_window_tok_s", "single_decode_tok_s"}


def test_kept_limits_are_no_failure() -> None:
    assert violated({"p99_ttft_ms": 4000, "kv_tokens": 100}, measured(p99_ttft_ms=4000)) is None


def test_the_worst_missed_limit_is_named_with_both_figures() -> None:
    measurement = measured(p99_ttft_ms=5000, kv_tokens=50)
    limits = {"p99_ttft_ms": 4000.0, "kv_tokens": 100.0}
    failure = violated(limits, measurement)
    assert failure is not None
    assert failure.kind is FailureKind.LIMIT_VIOLATED
    assert failure.cause == "kv_tokens is 50, under the limit of 100"
    assert list(violations(limits, measurement)) == ["kv_tokens", "p99_ttft_ms"]
    assert worst_violation(limits, measurement) == pytest.approx(0.5)


def test_an_objective_can_be_limited_too() -> None:
    failure = violated({"peak_tok_s": 1000.0}, measured())
    assert failure is not None
    assert "peak_tok_s is 900" in failure.cause
