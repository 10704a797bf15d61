"""What the settings of the GPUs' collective (NCCL, all-reduce) are worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING, TypeAlias

from autotune.compare import Ratio, ratio_of
from autotune.explain.finding import (
    Case,
    Finding,
    Peer,
    cause,
    fact,
    parameters_about,
    peaks_of_front_ends,
    peers,
    step_ms,
    unknown,
)
from autotune.records import OBJECTIVES, SINGLE, Outcome, Value
from autotune.verdict import TITLES, gain_text, value_text
from autotune.worth import worth_of, worth_text

if TYPE_CHECKING:
    from autotune.sampler.importance import Effect

NAME = "collective_settings"
WORDS = ("nccl", "all-reduce", "allreduce", "all_reduce")
MOST_PAIRS = 50
_SAME_STEP = 0.01
Pair: TypeAlias = "tuple[Peer, dict[str, Ratio]]"


def collective(case: Case) -> Iterator[Finding]:
    """From trials that differ in these settings alone; where there are none, from all trials."""
    about = parameters_about(case.run, *WORDS)
    if not about & set(case.trial.params):
        return
    clean = takewhile(lambda peer: not peer.others, peers(case, about, lambda _: True))
    pairs = [(peer, _ratios(case, peer)) for peer in islice(clean, MOST_PAIRS)]
    better = [(peer, ratios) for peer, ratios in pairs if _is_better(ratios)]
    faster = [pair for pair in better if _decodes_faster(case.trial, *pair)]
    if better and not faster:
        yield _first_token_only(case, *max(better, key=lambda pair: _best(pair[1])))
    elif faster:
        yield _slower_than(case, *_plainest(faster))
    elif pairs:
        yield _not_better(case, *max(pairs, key=lambda pair: _best(pair[1])))
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


def _decodes_faster(own: Outcome, peer: Peer, ratios: dict[str, Ratio]) -> bool:
    """Whether a decode step is shorter where the peer is faster, or not known.

    A launch repeats its step within some tenths of a percent. The time to the first token is the
    host's as well: on two H200 it was 90 to 150 ms in launches of one configuration.
    """
    for name in (name for name, ratio in ratios.items() if ratio.sign == "faster"):
        mine, other = _step(own, name), _step(peer.trial, name)
        if mine is None or other is None or other < mine * (1 - _SAME_STEP):
            return True
    return False


def _plainest(pairs: Sequence[Pair]) -> Pair:
    """The fastest; of those that decode as fast, the one that changes least."""
    best = max(pairs, key=lambda pair: _best(pair[1]))
    step = step_ms(best[0].trial)
    if step is None:
        return best
    steps = ((pair, step_ms(pair[0].trial)) for pair in pairs)
    equal = [pair for pair, other in steps if other is not None and other < step * (1 + _SAME_STEP)]
    return min(equal, key=lambda pair: (len(pair[0].changes), -_best(pair[1])))


def _step(outcome: Outcome, objective: str) -> float | None:
    if objective == SINGLE:
        return step_ms(outcome)
    figures = outcome.figures
    return figures.get("peak_server_tpot_ms", figures.get("p50_tpot_ms"))


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


def _first_token_only(case: Case, peer: Peer, ratios: dict[str, Ratio]) -> Finding:
    own, other = step_ms(case.trial), step_ms(peer.trial)
    step = f" ({own:.2f} and {other:.2f} ms at one request)" if own and other else ""
    return fact(
        NAME,
        f"Trial {peer.trial.number} differs in nothing but {_changes(peer)} and has "
        f"{_gains(ratios)}, but a decode step takes as long{step}: the difference lies in the time "
        "to the first token, which varies between launches of one configuration too.",
        "",
        **_figures(ratios),
    )


def _not_better(case: Case, peer: Peer, ratios: dict[str, Ratio]) -> Finding:
    return fact(
        NAME,
        "No setting of the collective was seen that is better on one objective and no worse on "
        f"the other: {_changes(peer)} (trial {peer.trial.number}) gives {_gains(ratios)}."
        f"{peaks_of_front_ends(case.trial, peer.trial)}",
        "",
        **_figures(ratios),
    )


def _estimated(case: Case, about: frozenset[str]) -> Iterator[Finding]:
    """From the model of all trials: what it knows of this trial's values, and what it does not."""
    silent = []
    for name in sorted(about & set(case.trial.params)):
        effects = {o: found[name] for o, found in worth_of(case.run).items() if name in found}
        if effects:
            yield from _judged(name, case.trial.params[name], effects)
        else:
            silent.append(name)
    if silent:
        yield unknown(
            NAME,
            f"Not known what {', '.join(silent)} {'is' if len(silent) == 1 else 'are'} worth: no "
            "two trials differ in nothing else, and all of them together do not settle it.",
        )


def _judged(name: str, value: Value, effects: Mapping[str, Effect]) -> Iterator[Finding]:
    texts = [f"{TITLES[o]}: {worth_text(effect)}" for o, effect in effects.items()]
    statement = f"{name}, estimated from all trials at once; {'; '.join(texts)}."
    worst = [effect for effect in effects.values() if effect.worst == value]
    best = [effect for effect in effects.values() if effect.best == value]
    if worst and not best:
        yield cause(NAME, statement, f"{name}: {value_text(worst[0].best)}")
    elif best:
        yield fact(NAME, statement)
