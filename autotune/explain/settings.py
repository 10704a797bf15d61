"""Flags that did not do what they say."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from autotune.compare import ratios_of
from autotune.explain.decode import GRAPH, GRAPHS_OFF
from autotune.explain.finding import (
    Case,
    Finding,
    asked_setting,
    cause,
    fact,
    number_of,
    peaks_of_front_ends,
    unknown,
)
from autotune.explain.launches import with_launches
from autotune.explain.peers import peers
from autotune.verdict import value_text


def changed_by_the_server(case: Case) -> Iterator[Finding]:
    """What was asked for and is not what the server says it runs."""
    for override in case.trial.overrides:
        asked = "nothing" if override.asked is None else f"{override.asked}"
        yield cause(
            "ignored_flag",
            f"{override.setting}: {asked} was asked, the server runs {override.effective} "
            f"({override.source}). What was measured is that.",
            f"find out what {override.setting} needs, or leave it out of the search",
        )


def contradicted_by_figures(case: Case) -> Iterator[Finding]:
    """Settings that the measured figures contradict, whatever the server says it runs."""
    share = case.figure("single_decode_graph_share")
    if share is not None and share >= GRAPH:
        for name in GRAPHS_OFF:
            if asked_setting(case.trial, name) is True:
                yield cause(
                    "ignored_flag",
                    f"{name} was asked, yet {share:.0%} of the decode steps ran from a CUDA graph.",
                    graph_share=share,
                )
    yield from _limit_exceeded(case)
    yield from _pool_smaller(case)


def _limit_exceeded(case: Case) -> Iterator[Finding]:
    limit = number_of(asked_setting(case.trial, "max_running_requests", "max_num_seqs"))
    most = case.figure("running_requests_max")
    if limit is not None and most is not None and most > limit:
        yield cause(
            "ignored_flag",
            f"At most {limit:.0f} requests at once were asked, yet {most:.0f} ran.",
            running_requests_max=most,
        )


def _pool_smaller(case: Case) -> Iterator[Finding]:
    asked = number_of(asked_setting(case.trial, "max_total_tokens"))
    tokens = case.figure("kv_tokens")
    if asked is not None and tokens is not None and tokens < 0.99 * asked:
        yield cause(
            "ignored_flag",
            f"A KV cache of {asked:,.0f} tokens was asked, the server made room for {tokens:,.0f}: "
            "more does not fit.",
            kv_tokens=tokens,
        )


def without_effect(case: Case) -> Iterator[Finding]:
    """Parameters whose change made no difference at all between this trial and another."""
    clean = takewhile(lambda peer: len(peer.changes) == 1, peers(case, frozenset(), lambda _: True))
    own = with_launches(case.run, case.pooled)
    for name, peer in {peer.changes[0].name: peer for peer in clean}.items():
        if {ratio.sign for ratio in ratios_of(own, peer.point).values()} == {"same"}:
            hidden = peaks_of_front_ends(case.trial, peer.trial)
            yield fact(
                "without_effect",
                f"{name} made no difference: with {value_text(peer.changes[0].value)} trial "
                f"{peer.trial.number} is the same within the spread."
                f"{hidden or ' It does not matter here, or the engine ignores it.'}",
            )


def failed(case: Case) -> Iterator[Finding]:
    """What a trial that could not be measured died of."""
    failure = case.trial.failure
    if failure is not None:
        yield cause("failed", f"It failed during {failure.phase}: {failure.kind}: {failure.cause}")
    else:
        yield unknown("failed", f"It is {case.trial.state}: nothing was measured.")
