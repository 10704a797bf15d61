"""What the server says about itself: `/metrics` and `/server_info`."""

from __future__ import annotations

from typing import Any

from autotune.engines.simulated.hosts import GIB
from autotune.engines.simulated.memory import budget
from autotune.engines.simulated.scheduler import Scheduler
from autotune.engines.simulated.simulation import Simulation

SGLANG_VERSION, VLLM_VERSION = "0.5.23", "0.32.0"


def metrics(sim: Simulation, scheduler: Scheduler) -> str:
    """The Prometheus page."""
    values = _sglang(sim, scheduler) if sim.args.engine == "sglang" else _vllm(sim, scheduler)
    lines = ["# simulated: every figure on this page is a simulation"]
    lines += [f"{name} {float(value)}" for name, value in values]
    return "\n".join(lines) + "\n"


def accept_length(scheduler: Scheduler) -> float | None:
    """Mean tokens a verify step gave since the last flush."""
    counters = scheduler.counters
    return counters.spec_tokens / counters.spec_cycles if counters.spec_cycles else None


def _sglang(sim: Simulation, scheduler: Scheduler) -> list[tuple[str, float]]:
    c = scheduler.counters
    labels = f'model_name="{sim.args.served_name}",engine_type="unified",tp_rank="0"'
    gauges = scheduler.gauges
    usage = gauges.kv_used / max(1, scheduler.kv_tokens)
    rows: list[tuple[str, float]] = [
        ("num_running_reqs", gauges.running),
        ("num_queue_reqs", gauges.waiting),
        ("token_usage", usage),
        ("full_token_usage", usage),
        ("cache_hit_rate", c.cached_tokens / max(1, c.prompt_tokens)),
        ("num_retracted_requests_total", c.retracted),
        ("max_total_num_tokens", scheduler.kv_tokens),
        ("prompt_tokens_total", c.prompt_tokens),
        ("cached_tokens_total", c.cached_tokens),
        ("generation_tokens_total", c.generated_tokens),
        ("num_requests_total", c.finished),
        ("num_aborted_requests_total", c.aborted),
    ]
    found = [(f"sglang:{name}{{{labels}}}", float(value)) for name, value in rows]
    for mode, steps in (
        ("decode_cuda_graph", c.graph_steps),
        ("decode_none", c.eager_steps),
        ("prefill_none", c.prefill_steps),
    ):
        found.append((f'sglang:cuda_graph_passes_total{{{labels},mode="{mode}"}}', float(steps)))
    accept = accept_length(scheduler)
    if accept is not None:
        rate = (accept - 1) / sim.settings.spec_steps
        found.append((f"sglang:spec_accept_length{{{labels}}}", accept))
        found.append((f"sglang:spec_accept_rate{{{labels}}}", rate))
        found.append((f"sglang:spec_verify_calls_total{{{labels}}}", float(c.cycles)))
    return found


def _vllm(sim: Simulation, scheduler: Scheduler) -> list[tuple[str, float]]:
    c = scheduler.counters
    labels = f'engine="0",model_name="{sim.args.served_name}"'
    gauges = scheduler.gauges
    usage = gauges.kv_used / max(1, scheduler.kv_tokens)
    rows: list[tuple[str, float]] = [
        ("num_requests_running", gauges.running),
        ("num_requests_waiting", gauges.waiting),
        ("kv_cache_usage_perc", usage),
        ("num_preemptions_total", c.retracted),
        ("prompt_tokens_total", c.prompt_tokens),
        ("generation_tokens_total", c.generated_tokens),
        ("prefix_cache_queries_total", c.prompt_tokens),
        ("prefix_cache_hits_total", c.cached_tokens),
        ("time_to_first_token_seconds_sum", c.ttft_sum),
        ("time_to_first_token_seconds_count", c.ttft_count),
    ]
    if sim.settings.spec_steps:
        rows += [
            ("spec_decode_num_drafts_total", c.cycles),
            ("spec_decode_num_draft_tokens_total", c.cycles * sim.settings.spec_steps),
            ("spec_decode_num_accepted_tokens_total", c.accepted),
        ]
    found = [(f"vllm:{name}{{{labels}}}", float(value)) for name, value in rows]
    for reason, count in (("length", c.finished), ("abort", c.aborted)):
        name = f'vllm:request_success_total{{{labels},finished_reason="{reason}"}}'
        found.append((name, float(count)))
    page, settings = sim.settings.page_size, sim.settings
    info = (
        f'block_size="{page}",cache_dtype="{sim.args.resolved["kv_cache_dtype"] or "auto"}",'
        f'engine="0",gpu_memory_utilization="{settings.mem_fraction}",'
        f'num_gpu_blocks="{scheduler.kv_tokens // page}"'
    )
    return [*found, (f"vllm:cache_config_info{{{info}}}", 1.0)]


def server_info(sim: Simulation, scheduler: Scheduler) -> dict[str, Any]:
    """SGLang's `/server_info`: resolved arguments, limits, internal states."""
    resolved = dict(sim.args.resolved)
    plan = budget(sim.host, sim.model, sim.settings)
    state: dict[str, Any] = {
        **resolved,
        "world_size": sim.settings.tp,
        "effective_max_running_requests_per_dp": scheduler.max_running,
        "last_gen_throughput": 0.0,
        "memory_usage": {
            "weight": round(plan.weights / GIB, 2),
            "kvcache": round(plan.pool / GIB, 2),
            "token_capacity": scheduler.kv_tokens,
            "graph": {"decode": round(plan.graphs / GIB, 2)},
        },
        "decode_cuda_graph_bs": list(resolved["cuda_graph_bs_decode"]),
        "decode_cuda_graph_memory_gb": round(plan.graphs / GIB, 2),
    }
    accept = accept_length(scheduler)
    if accept is not None:
        state["avg_spec_accept_length"] = accept
    return {
        **resolved,
        "version": SGLANG_VERSION,
        "simulated": True,
        "max_total_num_tokens": scheduler.kv_tokens,
        "max_req_input_len": (sim.settings.context or sim.model.context) - 6,
        "startup_time": {
            "load_weight": sim.timings.get("load_weight", 0.0),
            "cuda_graph": {"decode": sim.timings.get("capture", 0.0)},
        },
        "internal_states": [state],
    }
