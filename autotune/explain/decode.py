"""Why a token takes as long as it does: the decode step, CUDA graphs, speculation."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autotune.compare import ratios_of
from autotune.explain.finding import (
    Case,
    Finding,
    asked_setting,
    cause,
    fact,
    peaks_of_front_ends,
    speculates,
    speculative_steps,
    unknown,
)
from autotune.explain.launches import Step, step_of, with_launches
from autotune.explain.peers import Peer, parameters_about, peers
from autotune.records import PEAK, Outcome

_AS_MANY = 0.9  # of the requests at once: two peaks that can be compared
GRAPH, EAGER = 0.9, 0.1
"""Share of steps from a CUDA graph above which, and below which, a trial counts as either."""
GRAPHS_OFF = ("disable_cuda_graph", "enforce_eager")


def decode_step(case: Case) -> Iterator[Finding]:
    """How long a step takes, with and against the baseline."""
    name = "draft-and-verify cycle" if speculates(case.trial) else "decode step"
    step = step_of(case.run, case.trial)
    if step is None:
        yield unknown("decode_step", f"Not known how long a {name} takes: nothing to time it by.")
        return
    baseline = case.baseline
    before = step_of(case.run, baseline) if baseline is not None else None
    against = ""
    if before is not None and baseline is not case.trial:
        against = f", {_against(step, before)}"
    statement = f"A {name} takes {step.ms:.1f} ms at one request{against}."
    baseline_ms = before.ms if before is not None else None
    yield fact("decode_step", statement, step_ms=step.ms, baseline_step_ms=baseline_ms)


def _against(step: Step, baseline: Step) -> str:
    """`30 % more than the baseline's 12.1 ms`, unless launches of them differ by as much."""
    reference = f"the baseline's {baseline.ms:.1f} ms"
    change = (step.ms / baseline.ms - 1) * 100
    if abs(change) < 0.5:
        return f"as long as {reference}"
    if not step.beyond(baseline):
        return f"no other than {reference}: launches of one configuration differ by as much"
    return f"{abs(change):.0f} % {'more' if change > 0 else 'less'} than {reference}"


# -- speculation ----------------------------------------------------------------------------


def speculation(case: Case) -> Iterator[Finding]:
    """Cycle time, accept length and break-even, and which of them makes speculation lose."""
    if not speculates(case.trial):
        return
    accepted, cycle = case.figure("single_accept_length"), step_of(case.run, case.trial)
    if accepted is None or cycle is None:
        yield unknown(
            "speculation", "Not known whether speculation pays: no accept length was reported."
        )
        return
    plain = _plain_peer(case)
    plain_step = step_of(case.run, plain.trial) if plain is not None else None
    if plain is None or plain_step is None:
        yield unknown(
            "speculation",
            f"A verify cycle takes {cycle.ms:.1f} ms for {accepted:.2f} accepted tokens. Not known "
            "where speculation breaks even: no comparable trial without it was measured.",
        )
    else:
        yield _break_even(case, accepted, cycle, plain, plain_step)
    if _runs_eager(case.trial):
        yield _verify_without_graph(case, cycle.ms)


def _plain_peer(case: Case) -> Peer | None:
    """The nearest trial without speculation, whose decode ran as this one's would."""
    allowed = parameters_about(case.run, "speculative")
    return next(peers(case, allowed, lambda o: not speculates(o) and not _runs_eager(o)), None)


def _runs_eager(outcome: Outcome) -> bool:
    share = outcome.figures.get("single_decode_graph_share")
    return share is not None and share <= EAGER


def _break_even(case: Case, accepted: float, cycle: Step, plain: Peer, step: Step) -> Finding:
    """Speculation pays if a cycle yields more tokens than plain decode does in that time.

    It is the accept length's fault only where the verify is known to have run from a graph.
    """
    needed = cycle.ms / step.ms
    gain = accepted / needed - 1
    even = abs(gain) <= math.hypot(cycle.apart / cycle.ms, step.apart / step.ms)
    verdict = f"it {'gains' if gain > 0 else 'loses'} {abs(gain) * 100:.0f} %"
    if even:
        verdict += ", which is within what launches of one configuration differ by"
    figures = {"cycle_ms": cycle.ms, "plain_ms": step.ms, "break_even": needed}
    statement = (
        f"A verify cycle takes {cycle.ms:.1f} ms against {step.ms:.1f} ms for plain decode "
        f"(trial {plain.trial.number}{plain.caveat}): speculation needs an accept length over "
        f"{needed:.2f}, it has {accepted:.2f}: {verdict}.{_accept_rate(case, accepted)}"
    )
    if even:
        return fact("speculation_breaks_even", statement, "", accept_length=accepted, **figures)
    if gain > 0:
        return fact("speculation_pays", statement, "", accept_length=accepted, **figures)
    if _runs_eager(case.trial):
        return fact("speculation_loses", statement, "", accept_length=accepted, **figures)
    return cause(
        "accept_length_low",
        statement,
        "fewer steps, another draft model, or no speculation",
        accept_length=accepted,
        **figures,
    )


def _accept_rate(case: Case, accepted: float) -> str:
    steps = speculative_steps(case.trial)
    if not steps:
        return ""
    rate = (accepted - 1) / steps
    return f" Of {steps} drafted tokens {accepted - 1:.2f} are accepted, {rate:.0%}."


def _verify_without_graph(case: Case, cycle: float) -> Finding:
    share = case.figure("single_decode_graph_share")
    off = any(asked_setting(case.trial, name) is True for name in GRAPHS_OFF)
    return cause(
        "verify_without_graph",
        f"The verify did not run from a CUDA graph ({share:.0%} of the steps did): its kernels are "
        f"launched one by one, and a cycle takes {cycle:.1f} ms.",
        "CUDA graphs, which this trial switches off"
        if off
        else "another attention backend: some verify as an extend step, outside any graph",
        cycle_ms=cycle,
        graph_share=share,
    )


def speculation_at_peak(case: Case) -> Iterator[Finding]:
    """What speculation costs or gains under load, against a trial that ran as many at once."""
    plain = _plain_peer(case) if speculates(case.trial) else None
    if plain is None or not _as_many_at_once(case.trial, plain.trial):
        return
    ratio = ratios_of(with_launches(case.run, case.pooled), plain.point)[PEAK]
    change = f"{'gains' if ratio.ratio < 1 else 'costs'} {abs(1 / ratio.ratio - 1) * 100:.0f} %"
    if ratio.sign == "same":
        change = "neither gains nor costs more than the spread"
    yield fact(
        "speculation_at_peak",
        f"At peak speculation {change}: {ratio.a:,.0f} against {ratio.b:,.0f} tok/s without it "
        f"(trial {plain.trial.number}{plain.caveat})."
        f"{peaks_of_front_ends(case.trial, plain.trial)}",
        peak_ratio=1 / ratio.ratio,
    )


def _as_many_at_once(one: Outcome, other: Outcome) -> bool:
    """Half as many requests at once make half a peak, whatever speculates; True if not known."""
    name = "running_requests_max"
    mine, theirs = one.figures.get(name), other.figures.get(name)
    return mine is None or theirs is None or min(mine, theirs) >= _AS_MANY * max(mine, theirs)


# -- CUDA graphs ----------------------------------------------------------------------------


def decode_without_graph(case: Case) -> Iterator[Finding]:
    """Launch overhead, from the pair of trials with and without CUDA graphs."""
    step = step_of(case.run, case.trial)
    if speculates(case.trial) or step is None:
        return
    share = case.figure("single_decode_graph_share")
    if share is None:
        yield unknown(
            "decode_graph", "Not known whether decode ran from a CUDA graph: the server is silent."
        )
    elif share <= EAGER:
        yield _launch_overhead(case, step.ms, share)


def _launch_overhead(case: Case, step: float, share: float) -> Finding:
    text = f"Decode ran without CUDA graphs ({share:.0%} of the steps from one)"
    advice = "remove what disables CUDA graphs"
    pair = _graph_peer(case)
    graphed = step_of(case.run, pair.trial) if pair is not None else None
    if pair is None or graphed is None:
        text += "; what that costs is not known, as no comparable trial ran from one."
        return cause("decode_without_graph", text, advice, step_ms=step, graph_share=share)
    with_graph = graphed.ms
    overhead = step - with_graph
    return cause(
        "decode_without_graph",
        f"{text}: a step takes {step:.1f} ms, with them {with_graph:.1f} ms (trial "
        f"{pair.trial.number}{pair.caveat}). Launching kernels one by one costs {overhead:.1f} ms, "
        f"{overhead / step:.0%} of a step.",
        advice,
        step_ms=step,
        graph_share=share,
        graph_step_ms=with_graph,
        launch_overhead_ms=overhead,
    )


def _graph_peer(case: Case) -> Peer | None:
    def from_graph(outcome: Outcome) -> bool:
        share = outcome.figures.get("single_decode_graph_share", 0.0)
        return not speculates(outcome) and share >= GRAPH

    return next(peers(case, parameters_about(case.run, "graph", "eager"), from_graph), None)
