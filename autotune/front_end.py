"""Whether a server's scheduler or what stands between it and the client decides the peak.

One process of a server streams all answers over HTTP. A small model on a fast GPU makes tokens
faster than that process sends them (H200, SGLang 0.5.15, a model of 8 layers: 20,000 tokens/s
were decoded, 12,000 arrived), and then no kernel, graph or batch limit changes the peak.
"""

from __future__ import annotations

from collections.abc import Mapping

BEHIND = 1.15
"""From this delay on the front end is behind. Real servers that kept up: 0.97 to 1.03; that did
not: 1.23 and 1.53."""
BUSY_CHUNKS_S = 4000.0
"""Fewer chunks a second keep no HTTP process busy: 12,000 to 15,000 did."""


def front_end_delay(figures: Mapping[str, float]) -> float | None:
    """How many times slower clients get tokens than the scheduler makes them; None if unknown.

    By the smaller of two figures of the client's: the time per output token has the pauses in it
    while others' prompts are read, of which the median of the scheduler's decode lines knows
    nothing; the gap between tokens depends on how many a speculative step accepts.
    """
    server = figures.get("peak_server_tpot_ms")
    client = [figures[name] for name in ("p50_tpot_ms", "p50_itl_ms") if name in figures]
    return min(client) / server if client and server else None


def front_end_text(figures: Mapping[str, float]) -> str | None:
    """What is to be said of a front end that is behind and busy; None where it is not both."""
    delay = front_end_delay(figures)
    if delay is None or delay < BEHIND or _chunks_per_second(figures) < BUSY_CHUNKS_S:
        return None
    made = figures["peak_server_tpot_ms"]
    return (
        f"the scheduler makes a request's tokens {made:.2f} ms apart, clients get them "
        f"{made * delay:.2f} ms apart: the server's HTTP process, or this host's CPUs, limit the "
        "peak, not the GPU"
    )


def _chunks_per_second(figures: Mapping[str, float]) -> float:
    """Streamed chunks: one a step, which speculation fills with several tokens."""
    tokens = figures.get("peak_window_tok_s", 0.0)
    return tokens / max(1.0, figures.get("peak_accept_length", 1.0))
