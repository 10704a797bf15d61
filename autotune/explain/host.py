"""What lies outside the flags: cold caches, a machine that changes, the client itself, luck."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from autotune.drift import Drift, drift_of
from autotune.explain.finding import Case, Finding, cause, fact
from autotune.records import OBJECTIVES, PEAK, Outcome, Phase
from autotune.verdict import TITLES, gain_text, number_text

COLD_SHARE = 0.6
SLOW_START = 1.5
SLOW_START_SECONDS = 30.0
CEILING_FACTOR = 3.0
BUSY_CLIENT = 0.5
LUCK = 0.02
_START = (Phase.LAUNCH, Phase.LOAD, Phase.CAPTURE, Phase.READY)
_OTHER_CLIENT = "fewer other processes on this host, or the client on another one"


def cold_request(case: Case) -> Iterator[Finding]:
    """A first request that paid for compilation or for caches."""
    cold, warm = case.figure("single_cold_tok_s"), case.figure("single_end_to_end_tok_s")
    if cold is not None and warm and cold < COLD_SHARE * warm:
        yield fact(
            "cold_start",
            f"The first request ran at {cold:.1f} tok/s, warm ones at {warm:.1f}: measured without "
            f"warm-up it would have been {1 - cold / warm:.0%} too low.",
            "send a fresh server a few requests before it takes traffic",
            cold_tok_s=cold,
            warm_tok_s=warm,
        )


def cold_start(case: Case) -> Iterator[Finding]:
    """A start that took much longer than the run's others."""
    own = _start_seconds(case.trial)
    others = [
        _start_seconds(outcome)
        for outcome in case.run.outcomes
        if outcome.state == "ok" and outcome.number != case.trial.number
    ]
    usual = median(others) if len(others) >= 2 else 0.0
    if usual and own > max(SLOW_START * usual, usual + SLOW_START_SECONDS):
        yield fact(
            "cold_start",
            f"It took {own:.0f} s to start, {usual:.0f} s is usual in this run: weights or "
            "compiled kernels were not cached yet.",
            start_seconds=own,
            usual_seconds=usual,
        )


def _start_seconds(outcome: Outcome) -> float:
    return sum(outcome.seconds.get(phase, 0.0) for phase in _START)


def host_drift(case: Case) -> Iterator[Finding]:
    """Whether the baseline, launched again, is still as fast."""
    return (_drifted(drift) for drift in drift_of(case.run) if drift.beyond_spread)


def _drifted(drift: Drift) -> Finding:
    moved = " and ".join(f"{gain_text(drift.ratios[n])} {TITLES[n]}" for n in drift.moved)
    return cause(
        "host_drift",
        f"The machine changed during the study: the baseline, launched again as trial "
        f"{drift.trial} ({drift.at}), has {moved}. Figures from before and after do not compare.",
        "look at power limit, clocks, temperature and other users; measure the finalists again",
        **{f"{name}_ratio": drift.ratios[name] for name in drift.moved},
    )


def client_overloaded(case: Case) -> Iterator[Finding]:
    """Whether the client, rather than the server, may have set the peak.

    A simulated server's tokens per second say nothing about the client's.
    """
    peak = (case.trial.values or {}).get(PEAK)
    if peak is None or case.trial.simulated:
        return
    ceiling, cpu = case.figure("client_ceiling_tok_s"), case.figure("client_cpu_us_per_token")
    busy = cpu * peak / 1e6 if cpu is not None else 0.0
    limit = ""
    if ceiling is not None and ceiling < CEILING_FACTOR * peak:
        limit = f"it reaches {ceiling:,.0f} tok/s at all, the peak is {peak / ceiling:.0%} of that"
    elif busy > BUSY_CLIENT:
        limit = f"it used {busy:.0%} of a core at peak, {cpu:.0f} µs a token"
    if limit:
        yield cause(
            "client_overloaded",
            f"The client may be what limits the peak of {peak:,.0f} tok/s: {limit}. The server may "
            "be faster.",
            _OTHER_CLIENT,
            peak_tok_s=peak,
            client_ceiling_tok_s=ceiling,
            client_cpu_us_per_token=cpu,
        )


def first_claim_too_high(case: Case) -> Iterator[Finding]:
    """A finalist whose first figure did not hold."""
    point = case.pooled
    if point.claimed is None:
        return
    claimant = case.run.outcome(point.number)
    for name in OBJECTIVES:
        claimed, now = point.claimed[name], point.values[name]
        spread = point.spread[name] + claimant.spread.get(name, 0.0)
        if claimed - now > max(spread, LUCK * claimed):
            yield fact(
                "first_claim_too_high",
                f"Its first {TITLES[name]} figure of {number_text(claimed)} tok/s did not hold: "
                f"{len(point.launches)} fresh launches give {number_text(now)} "
                f"({gain_text(now / claimed)}).",
                claimed=claimed,
                confirmed=now,
            )
