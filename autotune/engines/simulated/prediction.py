"""What one configuration reaches, without a server: the physics of its steps, added up.

The calibration holds these figures, and what a simulated server reaches over HTTP, to the rows in
docs/simulator.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.engines.simulated import physics
from autotune.engines.simulated.batch import effective_max_running
from autotune.engines.simulated.durations import capture_seconds, load_seconds
from autotune.engines.simulated.front_end import chunk_seconds, chunks_of
from autotune.engines.simulated.hosts import Host
from autotune.engines.simulated.memory import kv_capacity, memory_failure
from autotune.engines.simulated.models import Model
from autotune.engines.simulated.settings import Settings
from autotune.engines.simulated.support import PredictedFailure, kernel_failure


@dataclass(frozen=True)
class Load:
    """A closed-loop workload: the calibration rows used 128 tokens in, 256 out."""

    input_tokens: int = 128
    output_tokens: int = 256
    concurrency: int = 128


@dataclass(frozen=True)
class Prediction:
    """What one configuration reaches without noise, or what it dies of."""

    failure: PredictedFailure | None
    single_tok_s: float = 0.0
    peak_tok_s: float = 0.0
    step_ms: float = 0.0  # one decode step (or speculative cycle) at concurrency 1
    verify_ms: float = 0.0  # the verify part of it; 0 without speculation
    accept_length: float = 1.0
    ttft_ms: float = 0.0  # at concurrency 1
    prefill_tok_s: float = 0.0  # of a full chunk
    kv_tokens: int = 0
    max_running: int = 0
    graph_single: bool = False  # decode (or verify) runs from a CUDA graph at concurrency 1
    graph_peak: bool = False
    load_seconds: float = 0.0
    start_seconds: float = 0.0  # from exec to ready, kernel caches warm


def predict(host: Host, model: Model, settings: Settings, load: Load | None = None) -> Prediction:
    """Noiseless figures of one configuration under `load`, or what it dies of. Pure."""
    load = load or Load()
    failure = kernel_failure(host, model, settings) or memory_failure(host, model, settings)
    weights = load_seconds(model, settings, cold=False)
    if failure is not None:
        return Prediction(failure, load_seconds=weights, start_seconds=weights + 60.0)
    kv_tokens = kv_capacity(host, model, settings)
    running = effective_max_running(model, settings, kv_tokens)
    accept = physics.accept_curve(model, settings)[-1]
    mean_kv = load.input_tokens + load.output_tokens / 2
    step, verify = physics.cycle_ms(host, model, settings, 1, mean_kv)
    ttft = physics.prefill_ms(host, model, settings, load.input_tokens)
    single_ms = ttft + (load.output_tokens - 1) / accept * step
    chunk = settings.chunk_tokens
    return Prediction(
        failure=None,
        single_tok_s=load.output_tokens / single_ms * 1e3,
        peak_tok_s=_peak_tok_s(host, model, settings, load, kv_tokens, running),
        step_ms=step,
        verify_ms=verify,
        accept_length=accept,
        ttft_ms=ttft,
        prefill_tok_s=chunk / physics.prefill_ms(host, model, settings, chunk) * 1e3,
        kv_tokens=kv_tokens,
        max_running=running,
        graph_single=physics.graph_covers(model, settings, 1),
        graph_peak=physics.graph_covers(model, settings, min(load.concurrency, running)),
        load_seconds=weights,
        start_seconds=weights + capture_seconds(model, settings) + 60.0,
    )


def _peak_tok_s(
    host: Host, model: Model, settings: Settings, load: Load, kv_tokens: int, running: int
) -> float:
    """Steady state of a closed loop: a round prefills and decodes every running request once."""
    per_request = load.input_tokens + load.output_tokens
    fits = kv_tokens / (load.input_tokens + 0.6 * load.output_tokens)
    seqs = max(1, int(min(load.concurrency, running, fits)))
    mean_kv = seqs * (load.input_tokens + load.output_tokens / 2)
    accept = physics.accept_curve(model, settings)[-1]
    cycle, _ = physics.cycle_ms(host, model, settings, seqs, mean_kv)
    cycles = (load.output_tokens - 1) / accept
    chunks = seqs * chunks_of(settings, cycles, load.output_tokens - 1)
    decode = max(cycles * cycle, chunks * chunk_seconds(settings) * 1e3)
    first = physics.prefill_ms(host, model, settings, load.input_tokens)  # of a burst: alone
    prompt_tokens = max(seqs - 1, 1) * load.input_tokens
    batch = min(settings.chunk_tokens, prompt_tokens)
    prefill = physics.prefill_ms(
        host, model, settings, batch, max(1, seqs * batch // prompt_tokens)
    )
    prefill = prefill * prompt_tokens / batch + (first if seqs > 1 else 0.0)
    again = 1.08 if kv_tokens < seqs * per_request else 1.0  # retracted requests prefill again
    return seqs * load.output_tokens / (decode + prefill * again) * 1e3
