"""The single-stream phase: one request at a time, until the figure is sure enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.figures import (
    cached_share,
    decode_tok_s,
    end_to_end_tok_s,
    first_delta_tokens,
    latencies,
)
from autotune.records import Phase
from autotune.session import Session, check_faults
from autotune.statistics import SINGLE_PRIOR, Estimate, is_steady, median, median_interval, outliers
from autotune.stream import Fault, Reply

_SHARE_OF_LIMIT = 0.4  # of the time limit; the rest is for the peak
_WARM_TOLERANCE = 0.05
_MOST_WARM_REQUESTS = 12
_MOST_REQUESTS = 40
_CACHED_TOLERANCE = 0.01


@dataclass(frozen=True)
class Single:
    """The single-stream figure and everything measured with it."""

    estimate: Estimate
    decode: Estimate | None  # after the first token; None without streaming
    figures: dict[str, float]
    texts: tuple[str, ...]


async def warm_up(session: Session) -> dict[str, float]:
    """Send requests one at a time until three in a row show no trend, or the time is up.

    Learns on the way how many tokens a first delta holds and whether `ignore_eos` works.
    Returns the first request's figure, which was measured cold. Raises TrialFailed.
    """
    session.timeline.enter(Phase.WARM_UP)
    rates: list[float] = []
    stop = session.clock.now() + _SHARE_OF_LIMIT * session.settings.limit_seconds

    def more(reply: Reply) -> bool:
        rates.append(end_to_end_tok_s(reply))
        session.timeline.note(f"request {len(rates)}: {rates[-1]:.1f} tok/s")
        steady = is_steady(rates, _WARM_TOLERANCE)
        return not (steady or len(rates) >= _MOST_WARM_REQUESTS or session.clock.now() > stop)

    run = await session.run(1, more, usage_in_chunks=True)
    short = [reply for reply in run.replies if reply.fault is Fault.SHORT]
    if short and len(short) == len(run.failed):
        session.without_ignore_eos()
    else:
        check_faults(run, Phase.WARM_UP, session)
    if not is_steady(rates, _WARM_TOLERANCE):
        said = ", ".join(f"{rate:.0f}" for rate in rates[-3:])
        session.warn(f"not steady after {len(rates)} warm-up requests: {said} tok/s")
    session.first_tokens = first_delta_tokens(run.replies)
    session.journal.add(Phase.WARM_UP, run.replies, session.first_tokens)
    return {"single_cold_tok_s": rates[0]}


async def measure_single(session: Session) -> Single:
    """Measure until the interval is as narrow as asked, or the time is up. Raises TrialFailed."""
    session.timeline.enter(Phase.SINGLE)
    await session.flush()
    start = session.clock.now()
    async with session.observing() as observation:
        # One stream is slow enough for a usage in every chunk, which makes TPOT exact.
        run = await session.run(1, _enough(session, start), usage_in_chunks=True)
    check_faults(run, Phase.SINGLE, session)
    rates = [end_to_end_tok_s(reply) for reply in run.ok]
    odd = outliers(rates)
    session.journal.add(Phase.SINGLE, run.ok, session.first_tokens, odd)
    if odd:
        session.warn(f"{len(odd)} of {len(rates)} single-stream requests are outliers")
    end_to_end = median_interval(rates, SINGLE_PRIOR)
    decode = _decode(run.ok, session.first_tokens)
    figures = {"single_end_to_end_tok_s": end_to_end.value, "single_requests": len(rates)}
    if decode is not None:
        figures["single_decode_tok_s"] = decode.value
    figures |= _kept(latencies(run.ok, session.first_tokens, "single_"))
    for name, value in (
        ("single_accept_length", observation.accept_length),
        ("single_accept_rate", observation.accept_rate),
        ("single_decode_graph_share", observation.graph_share),
    ):
        if value is not None:
            figures[name] = value
    warn_of_cache(session, cached_share(run.ok, expected_cached(session)), Phase.SINGLE)
    objective = decode if session.settings.single_objective == "decode" else end_to_end
    if objective is None:
        objective = end_to_end
        session.warn("no decode speed without streaming: the end-to-end speed stands in for it")
    return Single(objective, decode, figures, tuple(reply.text for reply in run.ok))


def _enough(session: Session, start: float) -> Callable[[Reply], bool]:
    """A stopping rule: fewest requests, then the precision, then the time limit."""
    rates: list[float] = []
    settings = session.settings
    until = start + _SHARE_OF_LIMIT * settings.limit_seconds

    def more(reply: Reply) -> bool:
        if not reply.ok:
            return reply.fault is Fault.SHORT
        rate = end_to_end_tok_s(reply)
        if settings.single_objective == "decode":
            rate = decode_tok_s(reply, session.first_tokens) or rate
        rates.append(rate)
        session.timeline.note(f"request {len(rates)}: median {median(rates):.1f} tok/s")
        if len(rates) < settings.single_requests:
            return True
        sure = median_interval(rates, SINGLE_PRIOR).relative <= settings.single_precision
        return not sure and session.clock.now() < until and len(rates) < _MOST_REQUESTS

    return more


def _decode(replies: tuple[Reply, ...], first_tokens: int) -> Estimate | None:
    rates = [rate for reply in replies if (rate := decode_tok_s(reply, first_tokens)) is not None]
    return median_interval(rates, SINGLE_PRIOR) if rates else None


def _kept(found: dict[str, float]) -> dict[str, float]:
    """Those latencies that mean something for a handful of requests."""
    names = ("single_p50_ttft_ms", "single_p50_tpot_ms", "single_p99_tpot_ms", "single_p50_e2e_ms")
    return {name: found[name] for name in names if name in found}


def expected_cached(session: Session) -> int:
    """Prompt tokens of a request that may well be cached: the template and a wanted prefix."""
    return session.template_tokens + session.prompts.prefix_tokens


def warn_of_cache(session: Session, share: float | None, phase: Phase) -> None:
    """Warn of prompt tokens that the prefix cache answered for."""
    if share is not None and share > _CACHED_TOLERANCE:
        session.warn(f"prefix cache: {share:.0%} of the prompt tokens at {phase} were cached")
