"""Whether a server's scheduler or what stands between it and the client decides the peak.

One process of a server streams all answers over HTTP. A small model on a fast GPU makes tokens
faster than that process sends them (H200, SGLang 0.5.15, a model of 8 layers: 20,000 tokens/s
were decoded, 12,000 arrived), and then no kernel, graph or batch limit changes the peak.
"""

from __future__ import annotations

from collections.abc import Mapping

BEHIND = 1.25
"""From this delay on the front end decides. Real servers that kept up: 0.99 to 1.13; that did
not: 1.44 and 1.67."""


def front_end_delay(figures: Mapping[str, float]) -> float | None:
    """How many times slower clients get tokens than the scheduler makes them; None if unknown."""
    client, server = figures.get("p50_tpot_ms"), figures.get("peak_server_tpot_ms")
    return client / server if client is not None and server else None


def front_end_text(figures: Mapping[str, float]) -> str | None:
    """What is to be said of a front end that is behind; None where it keeps up."""
    delay = front_end_delay(figures)
    if delay is None or delay < BEHIND:
        return None
    return (
        f"the scheduler makes a request's tokens {figures['peak_server_tpot_ms']:.2f} ms apart, "
        f"clients get them {figures['p50_tpot_ms']:.2f} ms apart: the server's HTTP process, or "
        "this host's CPUs, limit the peak, not the GPU"
    )
