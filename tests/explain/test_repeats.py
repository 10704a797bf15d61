"""A launch that repeats a trial is told what the trial is told: its configuration is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.explain import explain_text, findings_of
from autotune.explain.finding import Finding
from autotune.records import Outcome, Purpose
from autotune.run import Run
from tests.explain.synthetic import base, causes, healthy, named, run_of
from tests.runs import measured

SPECULATES = healthy(single_p50_tpot_ms=8.0, single_accept_length=2.9)


def again(first: Outcome, number: int, purpose: Purpose, **changes: object) -> Outcome:
    return first.model_copy(
        update={"number": number, "repeats": first.number, "purpose": purpose, **changes}
    )


def whole_run(tmp_path: Path) -> Run:
    """Each rule that compares trials has something to compare the repeated ones with."""
    spec = measured(1, 118, 1300, params={"num_steps": 3}, figures=SPECULATES)
    eager = measured(
        2, 27, 1400, params={"cuda_graph": False},
        figures=healthy(single_p50_tpot_ms=37.0, single_decode_graph_share=0.0),
    )  # fmt: skip
    fast = measured(3, 100, 1600, params={"nccl_proto": "LL"},
                    figures=healthy(single_p50_tpot_ms=9.8))  # fmt: skip
    same = measured(4, 82.4, 1537, params={"attention_backend": "triton"}, figures=healthy())
    firsts = (base(), spec, eager, fast, same)
    repeats = (
        again(firsts[0], 10, "drift"),
        again(spec, 11, "finalist", values={"single_stream_tok_s": 90.0, "peak_tok_s": 1300.0}),
        again(eager, 12, "finalist"),
        again(fast, 13, "finalist"),
        again(same, 14, "finalist"),
    )
    return run_of(tmp_path, *firsts, *repeats)


def said(run: Run, number: int) -> dict[str, Finding]:
    """All but the step against the baseline, which the baseline itself is not told."""
    return {f.name: f for f in findings_of(run, number) if f.name != "decode_step"}


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "collective_settings"),
        (1, "speculation_pays"),
        (1, "speculation_at_peak"),
        (1, "first_claim_too_high"),
        (2, "decode_without_graph"),
        (3, "collective_settings"),
        (4, "without_effect"),
    ],
)
def test_a_repeat_is_told_what_its_original_is_told(tmp_path: Path, number: int, name: str) -> None:
    run = whole_run(tmp_path)
    assert name in said(run, number)
    assert said(run, number + 10) == said(run, number)


def test_a_trial_whose_repeat_failed_is_still_compared(tmp_path: Path) -> None:
    """It has no pooled figures then: its own are taken."""
    spec = measured(1, 118, 1300, params={"num_steps": 3}, figures=SPECULATES)
    run = run_of(tmp_path, base(), spec, again(spec, 2, "finalist", state="infeasible"))
    assert "(trial 0)" in said(run, 1)["speculation_pays"].statement
    assert "1,300 against 1,536 tok/s" in said(run, 1)["speculation_at_peak"].statement


def test_a_repeat_is_not_what_others_are_compared_with(tmp_path: Path) -> None:
    spec = measured(2, 118, 1300, params={"num_steps": 3}, figures=SPECULATES)
    run = run_of(tmp_path, base(), again(base(), 1, "drift"), spec)
    assert "(trial 0)" in said(run, 2)["speculation_pays"].statement


def noisy(first: Outcome, number: int, tok_s: float, tpot_ms: float) -> Outcome:
    """A launch of the same, at another speed."""
    figures = {**first.figures, "single_p50_tpot_ms": tpot_ms}
    peak = (first.values or {})["peak_tok_s"]
    values = {"single_stream_tok_s": tok_s, "peak_tok_s": peak}
    return again(first, number, "finalist", values=values, figures=figures)


def test_a_step_is_that_of_all_launches_and_differs_by_more_than_they_do(tmp_path: Path) -> None:
    slow = measured(1, 78, 1536, params={"nccl_proto": "LL"},
                    figures=healthy(single_p50_tpot_ms=12.8))  # fmt: skip
    alone = named(run_of(tmp_path / "alone", base(), slow), 1, "decode_step").statement
    assert "takes 12.8 ms at one request, 6 % more than the baseline's 12.1 ms" in alone
    launches = (noisy(base(), 2, 79, 12.7), noisy(base(), 3, 84, 11.9))
    run = run_of(tmp_path / "repeated", base(), slow, *launches)
    assert (
        "takes 12.8 ms at one request, no other than the baseline's 12.1 ms: launches of one"
        in (named(run, 1, "decode_step").statement)
    )
    assert causes(run, 1) == {}


def test_speculation_neither_pays_nor_loses_by_less_than_launches_differ_by(tmp_path: Path) -> None:
    figures = healthy(single_p50_tpot_ms=12.5, single_accept_length=1.4)
    spec = measured(1, 80, 1500, params={"num_steps": 3}, figures=figures)
    run = run_of(tmp_path / "once", base(), spec)
    assert set(causes(run, 1)) == {"accept_length_low"}
    run = run_of(tmp_path / "twice", base(), spec, noisy(base(), 2, 79, 12.8))
    assert causes(run, 1) == {}
    assert "it loses 0 %, which is within" in named(run, 1, "speculation_breaks_even").statement


def test_the_launch_that_made_a_finalist_still_tells_how_far_launches_lie_apart(
    tmp_path: Path,
) -> None:
    """A fresh launch alone counts for the figures; what it differs by from the first is luck."""
    first = measured(1, 95, 1536, params={"nccl_proto": "LL"}, figures=healthy())
    run = run_of(tmp_path, base(), first, noisy(first, 2, 85, 12.1))
    said = named(run, 0, "collective_settings").statement
    assert said.startswith("No setting of the collective was seen that is better")
    assert "+3.0 % single stream, +0.0 % peak, both within the spread" in said


def test_a_peak_within_the_spread_is_neither_a_gain_nor_a_cost(tmp_path: Path) -> None:
    spec = measured(1, 118, 1530, params={"num_steps": 3}, figures=SPECULATES)
    said = named(run_of(tmp_path, base(), spec), 1, "speculation_at_peak").statement
    assert said.startswith(
        "At peak speculation neither gains nor costs more than the spread: 1,530"
    )


def test_a_repeat_s_heading_says_what_it_repeats(tmp_path: Path) -> None:
    text = explain_text(whole_run(tmp_path), 11)
    assert text.splitlines()[0].startswith("Trial 11 (trial 1, launched again): ")
