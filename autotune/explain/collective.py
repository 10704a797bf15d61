"""What the settings of the GPUs' collective (NCCL, all-reduce) are worth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, takewhile
from typing import TYPE_CHECKING, TypeAlias

from autotune.compare import Ratio, ratios_of
from autotune.explain.finding import (
    Case,
    Finding,
    cause,
    fact,
    peaks_of_front_ends,
    unknown,
)
from autotune.explain.launches import step_of, with_launches
from autotune.explain.peers import Peer, parameters_about, peers
from autotune.records import SINGLE, Outcome, Value
from autotune.run import Run
from autotune.verdict import TITLES, gain_text, value_text
from autotune.worth import worth_of, worth_text

if TYPE_CHECKING:
    from autotune.sampler.importance import Effect

NAME = "collective_settings"
WORDS = ("nccl", "all-reduce", "allreduce", "all_reduce")
MOST_PAIRS = 50
_SAME_STEP = 0.01  # a launch repeats its step within some tenths of a percent
_FIRST_TOKEN_VARIES_MS = 75.0
"""On two H200 the first token took 90 to 150 ms in launches whose steps were equal: prefill is
launched by the host. A quarter is added, as few launches were seen."""
Ratios: TypeAlias = "dict[str, Ratio]"
Pair: TypeAlias = "tuple[Peer, Ratios]"


def collective(case: Case) -> Iterator[Finding]:
    """From trials that differ in these settings alone; where there are none, from all trials."""
    about = parameters_about(case.run, *WORDS)
    if not about & set(case.trial.params):
        return
    clean = takewhile(lambda peer: not peer.others, peers(case, about, lambda _: True))
    own = with_launches(case.run, case.pooled)
    pairs = [(peer, ratios_of(own, peer.point)) for peer in islice(clean, MOST_PAIRS)]
    better = [(peer, ratios) for peer, ratios in pairs if _is_better(ratios)]
    faster = [pair for pair in better if _is_credited(case.run, case.trial, pair[0].trial, pair[1])]
    if faster:
        yield _slower_than(case, *_plainest(case.run, faster))
    elif better:
        yield _first_token_only(case, *max(better, key=_gain))
    elif pairs:
        yield _not_better(case, *max(pairs, key=_gain))
    else:
        yield from _estimated(case, about)


def _is_better(ratios: Ratios) -> bool:
    """Faster on one objective and not slower on the other, beyond the spreads."""
    signs = {ratio.sign for ratio in ratios.values()}
    return "faster" in signs and "slower" not in signs


def _is_credited(run: Run, one: Outcome, other: Outcome, ratios: Ratios) -> bool:
    """Whether `other` is faster by its settings, not by a first token that came sooner by chance.

    At peak a gain beyond the spread counts whatever it comes from: the all-reduce of prefill is
    the collective's too.
    """
    faster = {name for name, ratio in ratios.items() if ratio.sign == "faster"}
    if _is_first_token_alone(run, one, other):
        faster.discard(SINGLE)
    return bool(faster)


def _is_first_token_alone(run: Run, one: Outcome, other: Outcome) -> bool:
    """Whether a step takes as long, and the first token differs as in equal launches."""
    step, faster = step_of(run, one), step_of(run, other)
    first, sooner = _first_token_ms(one), _first_token_ms(other)
    if step is None or faster is None or first is None or sooner is None:
        return False
    return step.beyond(faster) <= _SAME_STEP * step.ms and first - sooner <= _first_token_varies_ms(
        run
    )


def _first_token_ms(outcome: Outcome) -> float | None:
    return outcome.figures.get("single_p50_ttft_ms")


@lru_cache(maxsize=4)
def _first_token_varies_ms(run: Run) -> float:
    """What launches of one configuration differ by: as known, or more if this run's do."""
    launches: dict[int, list[float]] = {}
    for outcome in run.outcomes:
        first = _first_token_ms(outcome)
        if first is not None:
            number = outcome.number if outcome.repeats is None else outcome.repeats
            launches.setdefault(number, []).append(first)
    return max((_FIRST_TOKEN_VARIES_MS, *(max(ms) - min(ms) for ms in launches.values())))


def _plainest(run: Run, pairs: Sequence[Pair]) -> Pair:
    """The fastest; of those that it is not faster than, the one that changes least."""
    best, _ = max(pairs, key=_gain)
    as_fast = [
        (peer, ratios)
        for peer, ratios in pairs
        if not _is_credited(run, peer.trial, best.trial, ratios_of(peer.point, best.point))
    ]
    return min(as_fast, key=lambda pair: (len(pair[0].changes), -_gain(pair)))


def _gain(pair: Pair) -> float:
    """Of both objectives together, as for the knee of a front."""
    return math.prod(ratio.ratio for ratio in pair[1].values())


def _changes(peer: Peer) -> str:
    return ", ".join(change.text for change in peer.changes)


def _gains(ratios: Ratios) -> str:
    """`+4.3 % single stream, +1.2 % peak (within the spread)`."""
    within = {name for name, ratio in ratios.items() if ratio.sign == "same"}
    if len(within) == len(ratios):
        return ", ".join(_gain_of(name, ratios) for name in ratios) + ", both within the spread"
    return ", ".join(
        _gain_of(name, ratios) + (" (within the spread)" if name in within else "")
        for name in ratios
    )


def _gain_of(name: str, ratios: Ratios) -> str:
    return f"{gain_text(ratios[name].ratio)} {TITLES[name]}"


def _figures(ratios: Ratios) -> dict[str, float]:
    return {f"{name}_ratio": ratio.ratio for name, ratio in ratios.items()}


def _slower_than(case: Case, peer: Peer, ratios: Ratios) -> Finding:
    own, other = step_of(case.run, case.trial), step_of(case.run, peer.trial)
    share = ""
    if own is not None and other is not None and own.beyond(other) > _SAME_STEP * own.ms:
        share = (
            f" A step takes {own.ms:.1f} ms against {other.ms:.1f} ms: all-reduce is at least "
            f"{1 - other.ms / own.ms:.0%} of it."
        )
    return cause(
        NAME,
        f"The settings of the collective hold it back: trial {peer.trial.number} differs in "
        f"nothing but {_changes(peer)} and has {_gains(ratios)}.{share}"
        f"{peaks_of_front_ends(case.trial, peer.trial)}",
        _changes(peer),
        step_ms=own.ms if own else None,
        peer_step_ms=other.ms if other else None,
        **_figures(ratios),
    )


def _first_token_only(case: Case, peer: Peer, ratios: Ratios) -> Finding:
    own, other = step_of(case.run, case.trial), step_of(case.run, peer.trial)
    first, sooner = _first_token_ms(case.trial), _first_token_ms(peer.trial)
    assert own is not None and other is not None, "else it would not be known that steps are equal"
    return fact(
        NAME,
        f"Trial {peer.trial.number} differs in nothing but {_changes(peer)} and has "
        f"{_gains(ratios)}, but at one request a decode step takes as long ({own.ms:.2f} and "
        f"{other.ms:.2f} ms): the difference lies in the time to the first token ({first:.0f} and "
        f"{sooner:.0f} ms), and launches differ in that by chance.",
        "",
        **_figures(ratios),
    )


def _not_better(case: Case, peer: Peer, ratios: Ratios) -> Finding:
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
