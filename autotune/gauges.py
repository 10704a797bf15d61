"""Whether a sampled gauge of running requests can be believed.

A gauge is read about once a second, later on a busy machine, and some servers renew it rarely: it
may miss the moments of most requests. The client's own figures do not depend on such moments.
"""

from __future__ import annotations

from collections.abc import Mapping

_SOUND = 0.6  # below that share of what the client saw decode, the gauge is wrong


def decoding_requests(figures: Mapping[str, float], peak_tok_s: float | None) -> float | None:
    """How many requests decode at peak on average, by the client; None if it cannot tell.

    By Little's law tokens per second times seconds per token.
    """
    tpot = figures.get("p50_tpot_ms")
    return peak_tok_s * tpot / 1000 if tpot is not None and peak_tok_s is not None else None


def believed(name: str, figures: Mapping[str, float], peak_tok_s: float | None) -> float | None:
    """A gauge of running requests; None if there is none, or if the client disproves it."""
    value, decoding = figures.get(name), decoding_requests(figures, peak_tok_s)
    return value if value is None or decoding is None or value >= _SOUND * decoding else None
