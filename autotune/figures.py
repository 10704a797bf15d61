"""From replies to figures: rates over a window, latencies, tokens over time.

Tokens come from the server's `usage` alone. Within a reply they are laid on its deltas: the
first delta holds `first_tokens` (1 unless the server says otherwise), the rest lie evenly on
the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.statistics import median, percentile
from autotune.stream import Reply


def tpot_seconds(reply: Reply, first_tokens: int) -> float | None:
    """(last token - first token) / (n - tokens in the first delta); None for one delta."""
    later = reply.completion_tokens - (reply.first_tokens or first_tokens)
    if not reply.streamed or later < 1 or not reply.deltas or reply.last == reply.deltas[0]:
        return None
    return (reply.last - reply.deltas[0]) / later


def end_to_end_tok_s(reply: Reply) -> float:
    """Completion tokens / request time, send to last token."""
    return reply.completion_tokens / reply.e2e_seconds if reply.e2e_seconds > 0 else 0.0


def decode_tok_s(reply: Reply, first_tokens: int) -> float | None:
    """Completion tokens after the first delta / time after it."""
    seconds = tpot_seconds(reply, first_tokens)
    return 1 / seconds if seconds else None


class TokenLine:
    """How many tokens had come by any moment, over all replies of a run."""

    def __init__(self, replies: Sequence[Reply], first_tokens: int) -> None:
        times = [_times(reply) for reply in replies]
        weights = [_weights(reply, first_tokens) for reply in replies]
        stamps = np.concatenate(times) if times else np.empty(0)
        order = np.argsort(stamps, kind="stable")
        self._stamps = stamps[order]
        self._totals = np.concatenate(
            [[0.0], np.cumsum((np.concatenate(weights) if weights else np.empty(0))[order])]
        )

    def until(self, moment: float) -> float:
        """Tokens that came up to and including `moment`."""
        return float(self._totals[np.searchsorted(self._stamps, moment, side="right")])

    def rate(self, start: float, end: float) -> float:
        """Tokens per second in (start, end]."""
        return (self.until(end) - self.until(start)) / (end - start) if end > start else 0.0


def _times(reply: Reply) -> NDArray[np.float64]:
    if reply.streamed and reply.deltas:
        return np.frombuffer(reply.deltas, dtype=np.float64)
    # Without a stream, or without text, nothing tells when the tokens came: lay them evenly.
    return np.linspace(reply.sent, reply.last, reply.completion_tokens + 1)[1:]


def _weights(reply: Reply, first_tokens: int) -> NDArray[np.float64]:
    tokens = reply.completion_tokens
    if not (reply.streamed and reply.deltas):
        return np.ones(tokens)
    count = len(reply.deltas)
    if count == 1:
        return np.array([float(tokens)])
    first = min(reply.first_tokens or first_tokens, tokens)
    weights = np.full(count, (tokens - first) / (count - 1))
    weights[0] = first
    return weights


def latencies(replies: Sequence[Reply], first_tokens: int, prefix: str = "") -> dict[str, float]:
    """p50 and p99 of TTFT, TPOT, ITL and E2E in ms, named as in FIGURES; absent if unknown."""
    tpots = [tpot_seconds(reply, first_tokens) for reply in replies]
    samples: dict[str, Sequence[float] | NDArray[np.float64]] = {
        "ttft": [reply.ttft_seconds for reply in replies if reply.ttft_seconds is not None],
        "tpot": [tpot for tpot in tpots if tpot is not None],
        "itl": _gaps(replies, first_tokens),
        "e2e": [reply.e2e_seconds for reply in replies],
    }
    return {
        f"{prefix}p{percent}_{name}_ms": 1000 * percentile(values, percent)
        for name, values in samples.items()
        for percent in (50, 99)
        if len(values)
    }


def _gaps(replies: Sequence[Reply], first_tokens: int) -> NDArray[np.float64]:
    """Seconds between tokens: the gap between two deltas over the tokens that one brings."""
    gaps = [
        np.diff(_times(reply)) / _weights(reply, first_tokens)[1:]
        for reply in replies
        if reply.streamed and len(reply.deltas) > 1
    ]
    return np.concatenate(gaps) if gaps else np.empty(0)


def first_delta_tokens(replies: Sequence[Reply]) -> int:
    """Tokens in a first delta, from replies with usage in every chunk; 1 if none says so."""
    said = [reply.first_tokens for reply in replies if reply.first_tokens]
    return max(1, round(median(said))) if said else 1


def cached_share(replies: Sequence[Reply], expected_tokens: int) -> float | None:
    """Share of prompt tokens served from the prefix cache beyond those expected of a request."""
    told = [reply for reply in replies if reply.cached_tokens is not None and reply.prompt_tokens]
    if not told:
        return None
    cached = sum(max(0, (reply.cached_tokens or 0) - expected_tokens) for reply in told)
    return cached / sum(reply.prompt_tokens or 0 for reply in told)
