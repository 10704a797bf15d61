"""The peak phase: the workload's concurrency, over the time in which all of it was active.

The unit of repetition is a *wave*: as many completions as there are requests in flight. A
window that begins and ends at a wave holds whole requests only, however they run in step, so
their prefills and decodes are in it in their true proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from autotune.figures import TokenLine, cached_share, latencies
from autotune.front_end import front_end_text
from autotune.load import Run
from autotune.observe import Observation, capacity_warning
from autotune.records import Phase
from autotune.session import Session, check_faults, failed
from autotune.single import expected_cached, warn_of_cache
from autotune.statistics import (
    PEAK_PRIOR,
    Estimate,
    is_steady,
    mean_interval,
    outliers,
    settled_from,
)
from autotune.stream import Reply

_FEWEST_WAVES = 3
_MOST_WAVES = 20
_SHARE_OF_LIMIT = 0.55
_DRIFT_TOLERANCE = 0.03
_ROUGH_PRIOR = 0.05  # what a single wave, with the ramp in it, is off by
_SAFETY = 1.25


@dataclass(frozen=True)
class Peak:
    """The peak figure and everything measured with it."""

    estimate: Estimate
    figures: dict[str, float]
    texts: tuple[str, ...]


def cannot_reach(
    front: Sequence[tuple[float, float]], single: Estimate, decode: Estimate, concurrency: int
) -> bool:
    """Whether no peak figure this server can have would bring it to the front.

    A stream under load is never faster than a stream alone. So the peak is at most
    `concurrency` times the decode speed (its interval's upper end, and 25 % for safety). If
    some measured configuration is better than that bound *and* better in single-stream (beyond
    the interval), it beats this one whatever the peak phase says.
    """
    bound = _SAFETY * concurrency * (decode.value + decode.half_width)
    return any(s > single.value + single.half_width and p > bound for s, p in front)


async def measure_peak(session: Session, concurrency: int, *, rough: bool = False) -> Peak:
    """Measure at `concurrency`; `rough` stops after one wave. Raises TrialFailed."""
    session.timeline.enter(Phase.PEAK)
    await session.flush()
    waves = _Waves(session, concurrency, rough)
    async with session.observing() as observation:
        run = await session.run(concurrency, waves.more)
    session.journal.add(Phase.PEAK, run.replies, session.first_tokens)
    check_faults(run, Phase.PEAK, session)
    bounds = _bounds(run, concurrency)
    if len(bounds) < 2:
        raise failed(Phase.PEAK, f"not one wave of {concurrency} requests finished")
    return _peak(session, run, bounds, observation, rough)


class _Waves:
    """The stopping rule: one wave to fill up, then waves until the rate is sure enough."""

    def __init__(self, session: Session, concurrency: int, rough: bool) -> None:
        self._session, self._concurrency, self._rough = session, concurrency, rough
        self._until = session.clock.now() + _SHARE_OF_LIMIT * session.settings.limit_seconds
        self._finished = self._failed = 0
        self._tokens = 0
        self._since: float | None = None
        self._rates: list[float] = []

    def more(self, reply: Reply) -> bool:
        """Whether to go on asking after this reply."""
        if not reply.ok:
            self._failed += 1
            return self._failed < max(3, (self._finished + self._concurrency) / 10)
        self._finished += 1
        self._tokens += reply.completion_tokens
        if self._finished % self._concurrency:
            return True
        if self._since is not None:
            self._rates.append(self._tokens / max(1e-9, reply.last - self._since))
            note = f"wave {len(self._rates)}: {self._rates[-1]:.0f} tok/s"
            self._session.timeline.note(f"{self._concurrency} at once, {note}")
        self._tokens, self._since = 0, reply.last
        return not self._rough and not self._enough()

    def _enough(self) -> bool:
        rates = self._rates[settled_from(self._rates, _DRIFT_TOLERANCE, _FEWEST_WAVES) :]
        if len(rates) < _FEWEST_WAVES:
            return False
        if self._session.clock.now() > self._until or len(self._rates) >= _MOST_WAVES:
            return True
        sure = mean_interval(rates, PEAK_PRIOR).relative <= self._session.settings.peak_precision
        return sure and is_steady(rates, _DRIFT_TOLERANCE)


def _bounds(run: Run, concurrency: int) -> list[float]:
    """When the load was full, and then when each wave ended while it still was."""
    ends = sorted(reply.last for reply in run.ok)
    waves = ends[concurrency - 1 :: concurrency]
    return [run.full_from, *(end for end in waves if end <= run.full_until)]


def _peak(
    session: Session, run: Run, bounds: list[float], observation: Observation, rough: bool
) -> Peak:
    tokens = TokenLine(run.ok, session.first_tokens)
    if not rough:
        bounds = bounds[1:]  # the wave that filled the server up
        rates = [tokens.rate(start, end) for start, end in pairwise(bounds)]
        bounds = bounds[settled_from(rates, _DRIFT_TOLERANCE, _FEWEST_WAVES) :]
    rates = [tokens.rate(start, end) for start, end in pairwise(bounds)]
    start, end = bounds[0], bounds[-1]
    spread = mean_interval(rates, _ROUGH_PRIOR if rough else PEAK_PRIOR)
    estimate = Estimate(tokens.rate(start, end), spread.half_width, len(rates))
    _judge_waves(session, rates, rough)
    figures = _figures(session, run, observation, start, end)
    figures |= {"peak_window_tok_s": estimate.value, "peak_waves": float(len(rates))}
    session.warn(capacity_warning(figures, run.concurrency))
    if behind := front_end_text(figures):
        session.warn(f"front_end_limited: {behind}")
    warn_of_cache(session, figures.get("cached_share"), Phase.PEAK)
    return Peak(estimate, figures, tuple(reply.text for reply in run.ok))


def _judge_waves(session: Session, rates: list[float], rough: bool) -> None:
    if not rough and not is_steady(rates, _DRIFT_TOLERANCE):
        said = ", ".join(f"{rate:.0f}" for rate in rates[-3:])
        session.warn(f"the peak was still drifting at the end: {said} tok/s")
    if odd := outliers(rates):
        session.warn(f"{len(odd)} of {len(rates)} waves at peak are outliers")


def _figures(
    session: Session, run: Run, observation: Observation, start: float, end: float
) -> dict[str, float]:
    inside = [reply for reply in run.ok if start < reply.last <= end]
    first_sent = min(reply.sent for reply in run.ok)
    whole = max(reply.last for reply in run.ok) - first_sent
    figures = {
        "peak_whole_run_tok_s": run.tokens / whole,
        "peak_window_seconds": end - start,
        "peak_requests": float(len(run.ok)),
        "peak_failed_requests": float(len(run.failed)),
        "peak_concurrency": float(run.concurrency),
        "client_cpu_us_per_token": 1e6 * run.client_cpu_seconds / run.tokens,
    }
    figures |= latencies(inside, session.first_tokens) | observation.figures(start, end)
    optional = {
        "peak_accept_length": observation.accept_length,
        "peak_accept_rate": observation.accept_rate,
        "peak_decode_graph_share": observation.graph_share,
        "peak_server_tpot_ms": observation.log.decode_tpot_ms,
        "cached_share": _cached(session, inside, observation),
    }
    return figures | {name: value for name, value in optional.items() if value is not None}


def _cached(session: Session, replies: Sequence[Reply], observation: Observation) -> float | None:
    """From the replies where they tell, else from the engine's counters over the phase."""
    share = cached_share(replies, expected_cached(session))
    if share is not None:
        return share
    cached = observation.growth("cached_tokens_total")
    prompt = observation.growth("prompt_tokens_total")
    told = [reply.prompt_tokens for reply in replies if reply.prompt_tokens]
    if cached is None or not prompt or not told:
        return None
    expected = expected_cached(session) * len(told) / sum(told)
    return max(0.0, cached / prompt - expected)
