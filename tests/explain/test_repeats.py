"""A launch that repeats a trial is told what the trial is told: its configuration is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.explain import explain_text, findings_of
from autotune.explain.finding import Finding
from autotune.records import Outcome, Purpose
from autotune.rundir import Run
from tests.explain.synthetic import base, healthy, run_of
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


def test_a_repeat_s_heading_says_what_it_repeats(tmp_path: Path) -> None:
    text = explain_text(whole_run(tmp_path), 11)
    assert text.splitlines()[0].startswith("Trial 11 (trial 1, launched again): ")
