"""Every diagnosis names its cause from the figures, and a healthy trial is left in peace.

The figures are synthetic, of the size that was seen on 8 GPUs with a 1T-parameter model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.explain import explain_document, explain_text, findings_of, run_findings
from autotune.front_end import front_end_text
from autotune.records import SINGLE, Override, Value
from autotune.worth import worth_of, worth_text
from tests.explain.synthetic import base, causes, healthy, named, run_of
from tests.runs import baseline, failed, measured, study


def test_a_healthy_trial_has_no_cause_and_nothing_unknown(tmp_path: Path) -> None:
    run = run_of(tmp_path, base(), measured(1, 83, 1540, params={"nccl_proto": "LL"},
                                            figures=healthy(single_p50_tpot_ms=12.0)))  # fmt: skip
    for number in (0, 1):
        assert {finding.kind for finding in findings_of(run, number)} == {"fact"}


def test_the_decode_step_is_given_against_the_baseline(tmp_path: Path) -> None:
    slow = measured(1, 63.6, 1600, figures=healthy(single_p50_tpot_ms=15.7))
    finding = named(run_of(tmp_path, base(), slow), 1, "decode_step")
    assert (
        "takes 15.7 ms at one request, 30 % more than the baseline's 12.1 ms" in finding.statement
    )
    assert finding.figures == {"step_ms": 15.7, "baseline_step_ms": 12.1}


def test_the_team_s_speculation_is_diagnosed_as_an_expert_would(tmp_path: Path) -> None:
    """Verify of 29.4 ms without a graph, plain decode of 12.1 ms, accept length 2.0."""
    figures = healthy(
        single_p50_tpot_ms=14.7, single_accept_length=2.0, single_decode_graph_share=0.0
    )
    spec = measured(1, 61, 1400, params={"num_steps": 3}, figures=figures)
    run = run_of(tmp_path, base(), spec)
    cycle = named(run, 1, "speculation_loses")
    assert "A verify cycle takes 29.4 ms against 12.1 ms for plain decode" in cycle.statement
    assert "needs an accept length over 2.43, it has 2.00: it loses 18 %" in cycle.statement
    assert "Of 3 drafted tokens 1.00 are accepted, 33%" in cycle.statement
    assert set(causes(run, 1)) == {"verify_without_graph"}
    assert "another attention backend" in causes(run, 1)["verify_without_graph"].advice
    off = measured(1, 61, 1400, params={"num_steps": 3, "cuda_graph": False}, figures=figures)
    without = causes(run_of(tmp_path / "off", base(), off), 1)["verify_without_graph"]
    assert without.advice == "CUDA graphs, which this trial switches off"
    assert "did not run from a CUDA graph (0% of the steps did)" in (
        causes(run, 1)["verify_without_graph"].statement
    )


def test_a_low_accept_length_is_the_cause_only_with_the_verify_in_a_graph(tmp_path: Path) -> None:
    figures = healthy(single_p50_tpot_ms=14.0, single_accept_length=1.25)
    spec = measured(1, 66, 1300, params={"num_steps": 3}, figures=figures)
    run = run_of(tmp_path, base(), spec)
    assert set(causes(run, 1)) == {"accept_length_low"}
    assert causes(run, 1)["accept_length_low"].figures["break_even"] == pytest.approx(17.5 / 12.1)


def test_speculation_that_pays_is_a_fact(tmp_path: Path) -> None:
    figures = healthy(single_p50_tpot_ms=8.0, single_accept_length=2.9)
    spec = measured(1, 118, 1300, params={"num_steps": 3}, figures=figures)
    run = run_of(tmp_path, base(), spec)
    assert causes(run, 1) == {}
    assert "it gains 51 %" in named(run, 1, "speculation_pays").statement
    assert "costs 15 %: 1,300 against 1,536 tok/s" in named(run, 1, "speculation_at_peak").statement


def test_a_peak_of_half_as_many_requests_says_nothing_of_speculation(tmp_path: Path) -> None:
    """One H200: 2 steps at 31 of 64 requests, 4,434 against 9,206 tok/s, "cost 52 %"."""
    figures = healthy(
        single_p50_tpot_ms=8.0, single_accept_length=2.9, running_requests_max=62.0,
        max_running_requests=64.0,
    )  # fmt: skip
    spec = measured(1, 118, 740, params={"num_steps": 3}, figures=figures)
    run = run_of(tmp_path, base(), spec)
    assert all(finding.name != "speculation_at_peak" for finding in findings_of(run, 1))
    assert "it gains 51 %" in named(run, 1, "speculation_pays").statement


def test_break_even_is_not_known_without_a_trial_to_compare_with(tmp_path: Path) -> None:
    figures = healthy(single_p50_tpot_ms=8.0, single_accept_length=2.9)
    run = run_of(tmp_path, measured(1, 118, 1300, params={"num_steps": 3}, figures=figures))
    finding = named(run, 1, "speculation")
    assert finding.kind == "unknown"
    assert "Not known where speculation breaks even" in finding.statement


def test_launch_overhead_comes_from_the_pair_with_and_without_graphs(tmp_path: Path) -> None:
    figures = healthy(single_p50_tpot_ms=37.0, single_decode_graph_share=0.0)
    eager = measured(1, 27, 1400, params={"cuda_graph": False}, figures=figures)
    finding = causes(run_of(tmp_path, base(), eager), 1)["decode_without_graph"]
    assert "a step takes 37.0 ms, with them 12.1 ms (trial 0)" in finding.statement
    assert "costs 24.9 ms, 67% of a step" in finding.statement


def test_a_limit_of_requests_below_the_concurrency_is_named(tmp_path: Path) -> None:
    figures = healthy(
        single_accept_length=2.9,
        max_running_requests=48.0,
        running_requests_max=48.0,
        queued_requests_mean=79.6,
    )
    spec = measured(1, 118, 900, params={"num_steps": 3}, figures=figures)
    finding = causes(run_of(tmp_path, base(), spec), 1)["max_running_below_concurrency"]
    assert "at most 48 requests at once, 128 were sent, 80 waited on average" in finding.statement
    assert "lowers the limit by itself when it speculates" in finding.statement


def test_a_small_kv_cache_is_named_with_what_it_holds(tmp_path: Path) -> None:
    figures = healthy(
        running_requests_max=107.0, kv_tokens=120_000.0, kv_usage_max=0.99, retractions=31.0
    )
    run = run_of(tmp_path, base(), measured(1, 82, 1200, figures=figures))
    assert set(causes(run, 1)) == {"kv_too_small"}
    statement = causes(run, 1)["kv_too_small"].statement
    assert "128 requests were sent, 107 ran at most" in statement
    assert "it holds 120,000 tokens, 163,840 are needed for all" in statement
    assert "31 requests were put back" in statement


def test_a_workload_whose_numbers_are_text_is_read_as_the_experiment_reads_it(
    tmp_path: Path,
) -> None:
    figures = healthy(running_requests_max=107.0, kv_tokens=120_000.0)
    trial = measured(1, 82, 1200, figures=figures)
    run = run_of(tmp_path, base(), trial, input_tokens="1024", output_tokens="256")
    assert "163,840 are needed for all" in causes(run, 1)["kv_too_small"].statement


NO_GAUGE = [{"running_requests_max": -1.0}, {"running_requests_max": 3.0, "p50_tpot_ms": 83.0}]
no_gauge = pytest.mark.parametrize("gauge", NO_GAUGE, ids=["absent", "contradicted"])


@no_gauge
@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        # 128 x (1,024 + 128): what all take on average is 147,456.
        ({"kv_tokens": 147_000.0}, "cannot hold them all (it holds 147,000 tokens, 163,840"),
        ({"retractions": 31.0}, "31 requests were put back"),
        ({"kv_tokens": 150_000.0, "kv_usage_max": 0.99}, "up to 99% of it was used"),
    ],
)
def test_a_small_kv_cache_is_named_without_a_gauge_to_believe(
    tmp_path: Path, gauge: dict[str, float], evidence: dict[str, float], words: str
) -> None:
    trial = measured(1, 78, 1077, figures=healthy(**gauge, **evidence))
    run = run_of(tmp_path, base(), trial)
    assert words in causes(run, 1)["kv_too_small"].statement


@no_gauge
@pytest.mark.parametrize(
    "figures",
    [
        {"kv_tokens": 148_000.0},  # all may have run: no wave need be at its end at once
        {"kv_tokens": 165_000.0, "kv_usage_max": 0.95},  # full, and large enough for all
        {"kv_tokens": -1.0},
    ],
)
def test_what_no_figure_settles_is_not_known(
    tmp_path: Path, gauge: dict[str, float], figures: dict[str, float]
) -> None:
    trial = measured(1, 78, 1077, figures=healthy(**gauge, **figures))
    run = run_of(tmp_path, base(), trial)
    assert causes(run, 1) == {}
    assert named(run, 1, "running_requests").kind == "unknown"


@pytest.mark.parametrize(
    ("workload", "fields"),
    [
        ({"prompts": "mine.jsonl"}, {}),  # of lengths that the experiment does not tell
        ({"shared_prefix_tokens": 512}, {}),
        ({}, {"warnings": ("ignore_eos has no effect: answers end where the model ends them",)}),
        ({}, {"effective": {"dp_size": 2}}),  # as much on each of two ranks
    ],
    ids=["own prompts", "shared prefix", "early ends", "two ranks"],
)
def test_a_kv_cache_that_may_hold_all_requests_is_not_called_small(
    tmp_path: Path, workload: dict[str, Any], fields: dict[str, Any]
) -> None:
    figures = healthy(kv_tokens=140_000.0, running_requests_max=-1.0)
    run = run_of(tmp_path, base(), measured(1, 82, 1200, figures=figures, **fields), **workload)
    assert causes(run, 1) == {}


def test_a_queue_that_nothing_explains_is_not_known(tmp_path: Path) -> None:
    run = run_of(tmp_path, base(), measured(1, 82, 1200, figures=healthy(running_requests_max=60)))
    assert causes(run, 1) == {}
    assert "Not known why" in named(run, 1, "running_requests").statement


def test_graphs_that_end_below_the_concurrency_are_named(tmp_path: Path) -> None:
    outcome = measured(
        1,
        82,
        1000,
        figures=healthy(peak_decode_graph_share=0.02),
        effective={"cuda_graph_max_bs_decode": 16},
    )
    run = run_of(tmp_path, base(), outcome)
    assert set(causes(run, 1)) == {"graph_batch_below_concurrency"}
    assert "the largest captured batch is 16, 128 requests ran" in (
        causes(run, 1)["graph_batch_below_concurrency"].statement
    )


def test_the_batch_that_ran_is_not_taken_from_a_gauge_that_is_contradicted(tmp_path: Path) -> None:
    figures = healthy(peak_decode_graph_share=0.02, running_requests_mean=3.0, p50_tpot_ms=83.0)
    outcome = measured(1, 78, 1077, figures=figures, effective={"cuda_graph_max_bs_decode": 16})
    finding = causes(run_of(tmp_path, base(), outcome), 1)["graph_batch_below_concurrency"]
    assert "the largest captured batch is 16, 89 requests ran" in finding.statement


def test_a_front_end_that_sends_later_than_the_scheduler_decodes_is_the_limit(
    tmp_path: Path,
) -> None:
    """Figures of a model of 8 layers on one H200; those of an 8B model that kept up."""
    gauge = {"running_requests_mean": -1.0}
    behind = healthy(p50_tpot_ms=5.32, p50_itl_ms=4.98, peak_server_tpot_ms=3.19,
                     peak_window_tok_s=10_248, **gauge)  # fmt: skip
    statement = causes(run_of(tmp_path, base(), measured(1, 78, 10_248, figures=behind)), 1)
    assert "3.19 ms apart, clients get them 4.98" in statement["front_end_limited"].statement


@pytest.mark.parametrize(
    ("tpot", "itl", "server", "peak", "accept"),
    [
        (6.42, 5.91, 5.98, 9_055, 1.0),  # 8B on one H200, 130 tokens in
        (85.37, 55.65, 55.50, 1_076, 1.0),  # Kimi's size, 1,024 tokens in: waits for prefills
        (124.6, 101.7, 80.3, 980, 2.2),  # the same with speculation, accepting unevenly
    ],
)
def test_a_front_end_that_keeps_up_or_has_little_to_do_is_left_in_peace(
    tmp_path: Path, tpot: float, itl: float, server: float, peak: float, accept: float
) -> None:
    figures = {"p50_tpot_ms": tpot, "p50_itl_ms": itl, "peak_server_tpot_ms": server,
               "peak_window_tok_s": peak, "peak_accept_length": accept}  # fmt: skip
    assert front_end_text(figures) is None


BEHIND = {"p50_tpot_ms": 5.32, "peak_server_tpot_ms": 3.19, "peak_window_tok_s": 10_248.0}
NOTHING_OF_THE_GPUS = "how their peaks compare says nothing about the GPUs"


@pytest.mark.parametrize(
    ("name", "rule"),
    [("attention_backend", "without_effect"), ("nccl_proto", "collective_settings")],
)
def test_a_tie_of_two_peaks_that_front_ends_limit_says_nothing_about_the_gpus(
    tmp_path: Path, name: str, rule: str
) -> None:
    params: dict[str, Value] = {name: {"attention_backend": "triton", "nccl_proto": "LL"}[name]}
    behind = measured(1, 82.4, 10_200, params=params, figures=healthy(**BEHIND))
    both = run_of(tmp_path / "both", baseline(82.5, 10_248, figures=healthy(**BEHIND)), behind)
    statement = named(both, 1, rule).statement
    assert NOTHING_OF_THE_GPUS in statement
    assert "It does not matter here" not in statement

    one = run_of(tmp_path / "one", baseline(82.5, 10_248, figures=healthy()), behind)
    assert NOTHING_OF_THE_GPUS not in named(one, 1, rule).statement


def test_all_trials_together_give_what_a_parameter_is_worth(tmp_path: Path) -> None:
    """The synthetic study gives LL 12 % in single stream."""
    effect = worth_of(run_of(tmp_path, *study(40)))[SINGLE]["nccl_proto"]
    assert (effect.best, effect.worst) == ("LL", None)
    assert effect.low < 1.12 < effect.high < 1.2
    assert worth_text(effect).startswith("LL over unset: +12 % (")


def test_a_gauge_that_contradicts_the_tokens_is_not_believed(tmp_path: Path) -> None:
    figures = healthy(running_requests_max=0.0, p50_tpot_ms=83.0)
    run = run_of(tmp_path, measured(0, 78, 1077, figures=figures))
    finding = named(run, 0, "running_requests")
    assert finding.kind == "unknown"
    assert "its gauge contradicts the tokens that came" in finding.statement


def test_a_setting_that_the_server_changed_is_a_cause(tmp_path: Path) -> None:
    override = Override(
        setting="attention_backend", asked="trtllm_mla", effective="triton", source="server_info"
    )
    run = run_of(tmp_path, base(), measured(1, 82, 1500, figures=healthy(), overrides=(override,)))
    assert "attention_backend: trtllm_mla was asked, the server runs triton (server_info)" in (
        causes(run, 1)["ignored_flag"].statement
    )


def test_a_setting_that_the_figures_contradict_is_a_cause(tmp_path: Path) -> None:
    eager = measured(1, 82, 1500, params={"cuda_graph": False}, figures=healthy())
    assert "yet 100% of the decode steps ran from a CUDA graph" in (
        causes(run_of(tmp_path, base(), eager), 1)["ignored_flag"].statement
    )


def test_a_parameter_without_any_effect_is_pointed_out(tmp_path: Path) -> None:
    same = measured(1, 82.4, 1537, params={"attention_backend": "triton"}, figures=healthy())
    finding = named(run_of(tmp_path, base(), same), 1, "without_effect")
    assert "attention_backend made no difference: with flashinfer trial 0" in finding.statement


def test_a_cold_first_request_is_pointed_out(tmp_path: Path) -> None:
    run = run_of(tmp_path, base(figures=healthy(single_cold_tok_s=20.7)))
    assert "The first request ran at 20.7 tok/s, warm ones at 82.5" in (
        named(run, 0, "cold_start").statement
    )


def test_a_start_that_compiled_is_pointed_out(tmp_path: Path) -> None:
    cold = base(seconds={"load": 320.0, "capture": 250.0})
    warm = [measured(n, 80 + n, 1500, seconds={"load": 300.0, "capture": 20.0}) for n in (1, 2, 3)]
    run = run_of(tmp_path, cold, *warm)
    assert "It took 570 s to start, 320 s is usual" in named(run, 0, "cold_start").statement
    assert "cold_start" not in {finding.name for finding in findings_of(run, 1)}


def test_a_machine_that_changed_is_a_cause_for_the_whole_run(tmp_path: Path) -> None:
    again = base().model_copy(
        update={"number": 9, "repeats": 0, "purpose": "drift",
                "values": {SINGLE: 74.0, "peak_tok_s": 1530.0}}
    )  # fmt: skip
    (finding,) = run_findings(run_of(tmp_path, base(), again))
    assert finding.name == "host_drift"
    assert "launched again as trial 9" in finding.statement
    assert "-10.3 % single stream" in finding.statement
    assert "peak" not in finding.statement.split("has ")[1].split(".")[1]


def test_a_machine_that_stayed_the_same_is_not_mentioned(tmp_path: Path) -> None:
    again = base().model_copy(update={"number": 9, "repeats": 0, "purpose": "drift"})
    assert run_findings(run_of(tmp_path, base(), again)) == ()


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"client_ceiling_tok_s": 2900.0}, "it reaches 2,900 tok/s at all, the peak is 53%"),
        ({"client_cpu_us_per_token": 450.0}, "it used 69% of a core at peak, 450 µs a token"),
    ],
)
def test_a_client_near_its_own_limit_is_a_cause(tmp_path: Path, figures, words: str) -> None:
    run = run_of(tmp_path, base(figures=healthy(**figures)))
    assert words in causes(run, 0)["client_overloaded"].statement


def test_a_first_claim_that_did_not_hold_is_pointed_out(tmp_path: Path) -> None:
    again = [measured(n, 60.0, 1540, purpose="finalist", repeats=1) for n in (2, 3)]
    run = run_of(tmp_path, base(), measured(1, 94.0, 1540, figures=healthy()), *again)
    assert "94.0 tok/s did not hold: 2 fresh launches give 60.0 (-36.2 %)" in (
        named(run, 1, "first_claim_too_high").statement
    )


def test_a_failed_trial_is_explained_by_its_cause(tmp_path: Path) -> None:
    run = run_of(tmp_path, base(), failed(1))
    assert "failed during load: out_of_memory" in causes(run, 1)["failed"].statement


def test_a_silent_engine_leaves_things_unknown_and_invents_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path, baseline(82.5, 1536, figures={}))
    assert {finding.kind for finding in findings_of(run, 0)} == {"unknown"}


def test_the_text_and_the_document_explain_the_choices_and_what_held_others_back(
    tmp_path: Path,
) -> None:
    eager = healthy(single_p50_tpot_ms=37.0, single_decode_graph_share=0.0)
    slow = measured(2, 27, 1400, params={"cuda_graph": False}, figures=eager)
    run = run_of(tmp_path, base(), measured(1, 90, 1600, figures=healthy()), slow)
    text = explain_text(run)
    assert "Trial 1 (single, knee, peak): attention_backend=flashinfer" in text
    assert "! decode without graph: trial 2" in text
    document = json.loads(json.dumps(explain_document(run)))
    assert document["other_causes"] == {"decode_without_graph": [2]}
    assert set(document["trials"]) == {"0", "1"}
    assert "Trial 2:" in explain_text(run, 2)


def test_a_run_without_a_measured_trial_says_where_to_look(tmp_path: Path) -> None:
    assert "Nothing was measured" in explain_text(run_of(tmp_path, failed(0)))
