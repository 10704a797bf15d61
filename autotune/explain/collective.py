"""What the settings of the GPUs' collective (NCCL, all-reduce) are worth."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile

from autotune.compare import Ratio, ratio_of
from autotune.explain.adjusted import worth_of
from autotune.explain.finding import (
    Case,
    Finding,
    Peer,
    cause,
    fact,
    parameters_about,
    peers,
    step_ms,
    unknown,
)
from autotune.records import OBJECTIVES
from autotune.verdict import TITLES, gain_text

NAME = "collective_settings"
WORDS = ("nccl", "all-reduce", "allreduce", "all_reduce")
SMALLEST_LOSS = 0.02
MOST_PAIRS = 50


def collective(case: Case) -> Iterator[Finding]:
    """From trials that differ in these settings alone; where there are none, from all trials."""
    about = parameters_about(case.run, *WORDS)
    if not about & set(case.trial.params):
        return
    clean = takewhile(lambda peer: not peer.others, peers(case, about, lambda _: True))
    pairs = [(peer, _ratios(case, peer)) for peer in islice(clean, MOST_PAIRS)]
    faster = [(peer, ratios) for peer, ratios in pairs if _is_better(ratios)]
    if faster:
        yield _slower_than(case, *max(faster, key=lambda pair: _best(pair[1])))
    elif pairs:
        yield _not_better(*max(pairs, key=lambda pair: _best(pair[1])))
    else:
        yield from _estimated(case, about)


def _ratios(case: Case, peer: Peer) -> dict[str, Ratio]:
    own, other = case.run.point(case.trial.number), case.run.point(peer.trial.number)
    if own is None or other is None:
        return {}
    return {
        name: ratio_of(own.values[name], own.spread[name], other.values[name], other.spread[name])
        for name in OBJECTIVES
    }


def _is_better(ratios: dict[str, Ratio]) -> bool:
    """Faster on one objective and not slower on the other, beyond the spreads."""
    signs = {ratio.sign for ratio in ratios.values()}
    return "faster" in signs and "slower" not in signs


def _best(ratios: dict[str, Ratio]) -> float:
    return max((ratio.ratio for ratio in ratios.values()), default=0.0)


def _changes(peer: Peer) -> str:
    return ", ".join(change.text for change in peer.changes)


def _gains(ratios: dict[str, Ratio]) -> str:
    return ", ".join(f"{gain_text(ratio.ratio)} {TITLES[name]}" for name, ratio in ratios.items())


def _figures(ratios: dict[str, Ratio]) -> dict[str, float]:
    return {f"{name}_ratio": ratio.ratio for name, ratio in ratios.items()}


def _slower_than(case: Case, peer: Peer, ratios: dict[str, Ratio]) -> Finding:
    own, other = step_ms(case.trial), step_ms(peer.trial)
    share = ""
    if own is not None and other is not None and other < own:
        share = (
            f" A step takes {own:.1f} ms against {other:.1f} ms: all-reduce is at least "
            f"{1 - other / own:.0%} of it."
        )
    return cause(
        NAME,
        f"The settings of the collective hold it back: trial {peer.trial.number} differs in "
        f"nothing but {_changes(peer)} and has {_gains(ratios)}.{share}",
        _changes(peer),
        step_ms=own,
        peer_step_ms=other,
        **_figures(ratios),
    )


def _not_better(peer: Peer, ratios: dict[str, Ratio]) -> Finding:
    return fact(
        NAME,
        "No setting of the collective was seen that is better on one objective and no worse on "
        f"the other: {_changes(peer)} (trial {peer.trial.number}) gives {_gains(ratios)}.",
        "",
        **_figures(ratios),
    )


def _estimated(case: Case, about: frozenset[str]) -> Iterator[Finding]:
    for name in sorted(about & set(case.trial.params)):
        losses = [_loss(case, objective, name) for objective in OBJECTIVES]
        texts = [text for text in losses if text]
        if texts:
            yield cause(
                NAME,
                f"{name} costs about {' and '.join(texts)}, estimated from all trials at once, "
                "as no two differ in it alone.",
            )
        elif None in losses:
            yield unknown(
                NAME,
                f"Not known what {name} is worth: no two trials differ in it alone, and all of "
                "them together do not settle it.",
            )


def _loss(case: Case, objective: str, name: str) -> str | None:
    """What this trial's value loses against the best, in words; "" nothing; None: not known."""
    worth = worth_of(case.run, objective, name)
    if worth is None:
        return None
    best, loss, error = worth.loss(case.trial.params.get(name))
    if loss > max(SMALLEST_LOSS, 2 * error):
        return f"{loss:.0%} ± {2 * error:.0%} {TITLES[objective]} against {best}"
    return "" if worth.is_known else None
