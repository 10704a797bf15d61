from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from autotune.engines.base import Effective, Place
from autotune.engines.registry import engine_named
from autotune.engines.sglang import SGLang

LOGS = Path(__file__).parent.parent / "data" / "logs"
PLACE = Place("127.0.0.1", 31000, "autotune-0001", Path("/tmp/t"))


def silent() -> httpx.AsyncClient:
    """A client of a server that knows none of the paths asked for."""
    return httpx.AsyncClient(
        base_url="http://x", transport=httpx.MockTransport(lambda request: httpx.Response(404))
    )


async def test_the_effective_settings_are_read_from_the_log_of_a_recorded_server() -> None:
    log = (LOGS / "sglang-spec3.log").read_text()
    async with silent() as http:
        effective = await SGLang().effective(http, log)
    assert effective.settings["attention_backend"] == "triton"
    assert effective.settings["mem_fraction_static"] == 0.6
    assert effective.settings["speculative_num_draft_tokens"] == 4
    assert effective.figures == {"kv_tokens": 343_791.0, "max_running_requests": 64.0}


async def test_a_dictionary_of_arguments_is_read_too_and_its_key_is_masked() -> None:
    log = "[2027-01-01 00:00:00] server_args={'api_key': 's3cret-key', 'tp_size': 8, 'x': None}\n"
    async with silent() as http:
        effective = await SGLang().effective(http, log)
    assert effective.settings == {"api_key": "***", "tp_size": 8, "x": None}


async def test_a_limit_that_speculation_lowered_unasked_is_an_override() -> None:
    info = {
        "version": "0.5.23",
        "max_running_requests": 48,
        "speculative_algorithm": "EAGLE3",
        "speculative_num_draft_tokens": 4,
        "tp_size": 8,
        "internal_states": [{"effective_max_running_requests_per_dp": 48}],
        "max_total_num_tokens": 100_000,
    }
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=info))
    async with httpx.AsyncClient(base_url="http://x", transport=transport) as http:
        effective = await SGLang().effective(http, "")
    asked = {
        "speculative-algorithm": "EAGLE3",
        "speculative-num-steps": 3,
        "speculative-num-draft-tokens": 8,
        "tensor-parallel-size": 8,
    }
    overrides = {o.setting: (o.asked, o.effective) for o in SGLang().overrides(asked, effective)}
    assert overrides == {
        "max_running_requests": (None, 48.0),
        "speculative_num_draft_tokens": (8, 4),
    }
    assert effective.version == "0.5.23"


@pytest.mark.parametrize("ran", ["EAGLE", "NEXTN"])
def test_an_algorithm_by_its_other_name_is_what_was_asked(ran: str) -> None:
    """Every DeepSeek launch with speculation was said to have lost it."""
    ran_eagle = Effective({"version": "0.5.23", "speculative_algorithm": ran}, {}, "0.5.23")
    assert SGLang().overrides({"speculative-algorithm": "NEXTN"}, ran_eagle) == []
    (lost,) = SGLang().overrides({"speculative-algorithm": "EAGLE3"}, ran_eagle)
    assert (lost.asked, lost.effective) == ("EAGLE3", ran)


def test_what_measuring_needs_is_added_unless_given() -> None:
    args = SGLang().complete(
        {"model-path": "M", "random_seed": 7, "trust-remote-code": True}, PLACE
    )
    assert list(args)[:3] == ["model-path", "random_seed", "trust-remote-code"]
    assert args["port"] == 31000
    assert args["served-model-name"] == "autotune-0001"
    assert args["enable-metrics"] is True
    assert "random-seed" not in args
    args = SGLang().complete({"watchdog": 60, "s": 1}, PLACE)  # SGLang takes it cut short, too
    assert args["watchdog"] == 60 and "watchdog-timeout" not in args
    assert args["served-model-name"] == "autotune-0001"


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        ({"num-st": 3}, {"num-st": 3, "eagle-topk": 1, "num-draft-tokens": 4}),
        ({"num-steps": 3}, {"num-steps": 3, "eagle-topk": 1, "num-draft-tokens": 4}),
        ({"num-draft-tokens": 6}, {"num-steps": 5, "eagle-topk": 1, "num-draft-tokens": 6}),
        (
            {"num-steps": 3, "eagle-topk": 4, "num-draft-tokens": 16},
            {"num-steps": 3, "eagle-topk": 4, "num-draft-tokens": 16},
        ),
        ({}, {}),
    ],
)
def test_the_three_speculation_flags_come_together(
    given: dict[str, int], completed: dict[str, int]
) -> None:
    args = {"speculative-algorithm": "EAGLE3"} | {f"speculative-{n}": v for n, v in given.items()}
    found = SGLang().complete(args, PLACE)
    prefix = "speculative-"
    three = {n.removeprefix(prefix): v for n, v in found.items() if n.startswith(prefix)}
    assert three == {"algorithm": "EAGLE3", **completed}


def test_decode_lines_give_what_metrics_would() -> None:
    sample = SGLang().sample_from_log((LOGS / "sglang-spec3.log").read_text())
    assert sample.running == 64
    assert sample.queued == 0
    assert sample.accept_length == pytest.approx(2.86, abs=0.03)
    assert sample.accept_rate == pytest.approx((2.86 - 1) / 3, abs=0.02)
    assert sample.eager_steps_total == 0
    assert (sample.graph_steps_total or 0) > 10
    eager = SGLang().sample_from_log((LOGS / "sglang-triton_nocg.log").read_text())
    assert eager.graph_steps_total == 0
    assert (eager.eager_steps_total or 0) > 10


def test_decode_lines_of_a_full_batch_tell_how_fast_the_scheduler_is() -> None:
    """A model of 8 layers at 64 requests: 20,000 tokens/s decoded, 12,000 streamed."""
    decoded = SGLang().sample_from_log((LOGS / "sglang-mini_kimi.log").read_text()).decode_tpot_ms
    assert decoded == pytest.approx(64 / 20.0, rel=0.06)
    alone = [
        line
        for line in (LOGS / "sglang-mini_kimi.log").read_text().splitlines()
        if "#running-req: 1," in line
    ]
    assert SGLang().sample_from_log("\n".join(alone)).decode_tpot_ms == pytest.approx(2.0, rel=0.1)


async def test_metrics_give_counters_and_gauges() -> None:
    page = (
        "# TYPE sglang:num_running_reqs gauge\n"
        'sglang:num_running_reqs{model_name="m",tp_rank="0"} 128.0\n'
        'sglang:num_queue_reqs{model_name="m"} 3.0\n'
        'sglang:token_usage{model_name="m"} 0.42\n'
        'sglang:generation_tokens_total{model_name="m"} 1.5e+06\n'
        'sglang:spec_accept_length{model_name="m"} 2.9\n'
        'sglang:spec_accept_rate{model_name="m"} 0.63\n'
        'sglang:cuda_graph_passes_total{mode="decode_cuda_graph"} 900.0\n'
        'sglang:cuda_graph_passes_total{mode="decode_none"} 100.0\n'
        'sglang:cuda_graph_passes_total{mode="prefill_none"} 7.0\n'
    )
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=page))
    async with httpx.AsyncClient(base_url="http://x", transport=transport) as http:
        sample = await SGLang().sample(http)
    assert (sample.running, sample.queued, sample.kv_usage) == (128, 3, 0.42)
    assert sample.generated_tokens_total == 1.5e6
    assert (sample.graph_steps_total, sample.eager_steps_total) == (900, 100)
    assert (sample.accept_length, sample.accept_rate) == (2.9, 0.63)
    assert sample.retractions_total is None


def test_an_unknown_engine_is_told_which_there_are() -> None:
    with pytest.raises(Exception, match="sglang, vllm, openai"):
        engine_named("tgi")
