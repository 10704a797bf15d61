"""The interactions that make one-at-a-time tuning miss the best."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.engines.simulated.hosts import HOSTS, host_named, infer_host
from autotune.engines.simulated.models import (
    DEEPSEEK_V3,
    GLM5,
    KIMI,
    QWEN3_8B,
    model_from_config,
    model_named,
)
from autotune.engines.simulated.noise import AcceptSampler, EvenAccept
from autotune.engines.simulated.prediction import Load, Prediction, predict
from autotune.engines.simulated.settings import Collective, Settings

RTX, NO_P2P = host_named("8x-rtx-pro-6000"), host_named("8x-rtx-pro-6000-no-p2p")
BASE = Settings(tp=8, mem_fraction=0.9, graph_max_bs=128, max_running=128)
MIXED = Load(1024, 256, 128)


def found(settings: Settings, host=RTX, model=KIMI, load=MIXED) -> Prediction:  # type: ignore[no-untyped-def]
    prediction = predict(host, model, settings, load)
    assert prediction.failure is None, prediction.failure
    return prediction


def test_the_best_attention_backend_depends_on_speculation() -> None:
    def single(attention: str, steps: int) -> float:
        settings = replace(
            BASE, attention=attention, spec_steps=steps, collective=Collective(proto="LL")
        )
        return found(settings).single_tok_s

    assert single("flashinfer", 0) > single("triton", 0)
    assert single("flashinfer", 3) < single("flashinfer", 0)
    assert single("triton", 3) > 1.2 * single("triton", 0)


def test_the_all_reduce_for_one_stream_is_not_the_one_for_many() -> None:
    def both(**variables: object) -> tuple[float, float]:
        p = found(replace(BASE, collective=Collective(**variables)))  # type: ignore[arg-type]
        return p.single_tok_s, p.peak_tok_s

    plain, low_latency = both(), both(proto="LL")
    assert low_latency[0] > 1.05 * plain[0]
    assert low_latency[1] < plain[1]
    assert both(min_channels=16)[1] > plain[1]


def test_the_pcie_all_reduce_flips_its_sign_with_peer_access() -> None:
    ipc = replace(BASE, collective=Collective(pcie_ipc=True))
    assert found(ipc).single_tok_s > 1.15 * found(BASE).single_tok_s
    assert found(ipc, NO_P2P).single_tok_s < 0.6 * found(BASE, NO_P2P).single_tok_s


def test_no_p2p_with_channels_helps_prefill_only_where_peers_talk_through_the_cpu() -> None:
    off = Collective(p2p_disabled=True, min_channels=16, buffer_bytes=33_554_432)
    without = replace(BASE, collective=off)
    gain = {
        host.name: found(without, host).prefill_tok_s / found(BASE, host).prefill_tok_s
        for host in (RTX, NO_P2P)
    }
    assert gain[NO_P2P.name] > 1.05 > gain[RTX.name]


def test_graphs_pay_only_up_to_the_captured_batch() -> None:
    small = replace(BASE, graph_max_bs=16)
    assert found(small).step_ms == found(BASE).step_ms
    assert found(small).graph_single and not found(small).graph_peak
    assert found(small).peak_tok_s < found(BASE).peak_tok_s


def test_speculation_costs_kv_room() -> None:
    assert found(replace(BASE, spec_steps=3)).kv_tokens < 0.97 * found(BASE).kv_tokens


def test_a_fraction_can_be_too_low_and_too_high() -> None:
    def failure(fraction: float, **more: object) -> str | None:
        settings = replace(BASE, mem_fraction=fraction, **more)  # type: ignore[arg-type]
        prediction = predict(RTX, KIMI, settings, MIXED)
        return prediction.failure and f"{prediction.failure.kind}@{prediction.failure.phase}"

    assert failure(0.70) == "no_kv_room@load"
    assert failure(0.92) is None
    assert failure(0.93, chunk_tokens=32768) == "out_of_memory@peak"
    big = {"graph_max_bs": 512, "graph_sizes": 67, "spec_steps": 3}
    assert failure(0.98, collective=Collective(pcie_ipc=True), **big) == "out_of_memory@capture"
    assert failure(0.995) == "out_of_memory@load"


def test_the_moe_backend_that_wins_flips_with_load() -> None:
    def both(moe: str) -> tuple[float, float]:
        settings = replace(BASE, moe=moe, kv_dtype="fp8", attention="dsa", prefill_attention="dsa")
        p = found(settings, model=GLM5)
        return p.single_tok_s, p.peak_tok_s

    assert both("marlin")[0] > both("auto")[0]
    assert both("marlin")[1] < both("auto")[1]


def test_a_fp8_cache_on_kimi_and_sm120_is_slow_and_flashinfer_refuses_it() -> None:
    assert found(replace(BASE, kv_dtype="fp8")).single_tok_s == pytest.approx(16, rel=0.2)
    refused = replace(BASE, kv_dtype="fp8", attention="flashinfer")
    assert predict(RTX, KIMI, refused).failure is not None


def test_p2p_off_with_the_ipc_all_reduce_hangs() -> None:
    settings = replace(BASE, collective=Collective(pcie_ipc=True, p2p_disabled=True))
    failure = predict(RTX, KIMI, settings).failure
    assert failure is not None and failure.kind == "collective"


def test_one_at_a_time_tuning_misses_the_best_single_stream() -> None:
    """From the baseline, each best single change is taken in turn; a joint search does better."""
    options: dict[str, tuple[object, ...]] = {
        "attention": ("triton", "flashinfer"),
        "spec_steps": (0, 1, 2, 3, 4, 5),
        "collective": (Collective(), Collective(proto="LL"), Collective(pcie_ipc=True)),
    }
    start = replace(BASE, attention="flashinfer")
    greedy = start
    for name, values in options.items():
        greedy = max(
            (replace(greedy, **{name: value}) for value in values),  # type: ignore[arg-type]
            key=lambda s: found(s).single_tok_s,
        )
    joint = max(
        found(replace(start, attention=a, spec_steps=s, collective=c)).single_tok_s  # type: ignore[arg-type]
        for a in options["attention"]
        for s in options["spec_steps"]
        for c in options["collective"]
    )
    assert joint > 1.2 * found(greedy).single_tok_s


def test_every_known_model_runs_where_its_search_space_wants_it() -> None:
    for name, model, host, extra in (
        ("kimi", KIMI, "8x-h200", {"attention": "fa3"}),
        ("glm5", GLM5, "8x-rtx-pro-6000", {"attention": "dsa", "kv_dtype": "fp8"}),
        ("deepseek", DEEPSEEK_V3, "8x-h200", {"attention": "fa3"}),
        ("deepseek", DEEPSEEK_V3, "8x-b200", {"attention": "trtllm_mla"}),
        ("qwen", QWEN3_8B, "1x-h200", {"tp": 1}),
    ):
        settings = replace(BASE, **{"prefill_attention": extra.get("attention", "triton"), **extra})
        assert found(settings, HOSTS[host], model).single_tok_s > 30, name


def test_accept_lengths_follow_the_curve() -> None:
    curve = (1.0, 1.83, 2.43, 2.88)
    sampler = AcceptSampler(curve, 1.0, 7)
    assert sampler.tokens(40_000) / 40_000 == pytest.approx(2.88, rel=0.01)


def test_simulated_acceptance_gives_its_mean_evenly() -> None:
    even = EvenAccept(2.5)
    assert [even.tokens(cycles) for cycles in (1, 1, 1, 1, 32)] == [2, 3, 2, 3, 80]


@pytest.mark.parametrize(
    ("name", "gpus", "host"),
    [
        ("kimi-k2.5", 8, "8x-rtx-pro-6000"),
        ("kimi_h200", 8, "8x-h200"),
        ("glm5-nvfp4", 8, "8x-rtx-pro-6000"),
        ("deepseek_v3", 8, "8x-h200"),
        ("qwen3_8b_1gpu", 1, "1x-h200"),
        ("kimi b200", 8, "8x-b200"),
    ],
)
def test_the_host_is_inferred_from_the_experiment(name: str, gpus: int, host: str) -> None:
    assert infer_host(name, gpus) == host


def test_unknown_models_are_sized_by_name_or_config() -> None:
    assert model_named("meta-llama/Llama-3.3-70B").weight_bytes == pytest.approx(140e9)
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
    }
    model = model_from_config("Qwen3-30B-A3B", config)
    assert model.weight_bytes == pytest.approx(60e9, rel=0.1)
    assert model.active_params == pytest.approx(3.3e9, rel=0.2)
    assert not model.mla
