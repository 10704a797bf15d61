"""Two measurements of one thing: a trial launched again, or one space on two hosts or versions.

A difference is called one only where it is larger than the two spreads together (root of the
sum of squares of the 95 % half-widths).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Literal

from autotune.errors import InputError
from autotune.front import Point
from autotune.records import OBJECTIVES, Outcome
from autotune.run import Run
from autotune.run_differences import run_differences
from autotune.verdict import (
    TITLES,
    differences,
    number_text,
    params_text,
    settings_text,
    trials_text,
)

# Settings that differ from launch to launch and say nothing about the configuration.
_OF_A_LAUNCH = {"port", "nccl_port", "served_model_name"}

Sign = Literal["same", "faster", "slower"]


@dataclass(frozen=True)
class Ratio:
    """B against A for one objective, in tokens per second; `spread` is that of `ratio`."""

    a: float
    b: float
    ratio: float
    spread: float
    sign: Sign


def ratio_of(a: float, a_spread: float, b: float, b_spread: float) -> Ratio:
    """`b / a` with its 95 % half-width, by propagation of the two relative half-widths."""
    ratio = b / a
    spread = ratio * math.hypot(a_spread / a, b_spread / b)
    sign: Sign = "same" if abs(ratio - 1) <= spread else ("faster" if ratio > 1 else "slower")
    return Ratio(a, b, ratio, spread, sign)


def _ratio_text(ratio: Ratio) -> str:
    return (
        f"{number_text(ratio.a)} → {number_text(ratio.b)} tok/s, "
        f"{(ratio.ratio - 1) * 100:+.1f} ± {ratio.spread * 100:.1f} %: {ratio.sign}"
    )


# -- one trial, launched again ----------------------------------------------------------------


@dataclass(frozen=True)
class ReplayComparison:
    """A trial's stored figures against those of a fresh launch."""

    trial: int
    ratios: Mapping[str, Ratio]
    notes: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether every objective is the same within the spread."""
        return bool(self.ratios) and all(ratio.sign == "same" for ratio in self.ratios.values())

    def document(self) -> dict[str, Any]:
        return asdict(self) | {"agrees": self.agrees}

    def text(self) -> str:
        verdict = "the same within the spread" if self.agrees else "NOT the same"
        lines = [f"trial {self.trial}, launched again: {verdict}"]
        lines += [f"  {TITLES[name]}: {_ratio_text(ratio)}" for name, ratio in self.ratios.items()]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def compare_replay(old: Outcome, new: Outcome, pooled: Point | None = None) -> ReplayComparison:
    """Compare a fresh launch of a trial with what was stored of it.

    `pooled` holds the figures that `show` gives it, which may be those of several launches, or
    of fresh launches alone; without it the trial's own count.

    Raises:
        InputError: the stored trial was not measured.
    """
    if not old.values:
        raise InputError(f"trial {old.number} was not measured: nothing to compare with")
    values, spread = (pooled.values, pooled.spread) if pooled else (old.values, old.spread)
    new_values = new.values or {}
    ratios = {
        name: ratio_of(
            values[name], spread.get(name, 0.0), new_values[name], new.spread.get(name, 0.0)
        )
        for name in OBJECTIVES
        if name in values and name in new_values
    }
    launches = pooled.launches if pooled else (old.number,)
    return ReplayComparison(old.number, ratios, tuple(_replay_notes(old, new, launches)))


def _replay_notes(old: Outcome, new: Outcome, launches: Sequence[int]) -> Iterator[str]:
    if tuple(launches) != (old.number,):
        yield f"compared with the confirmed figures, those of {trials_text(launches)}"
    if new.failure is not None:
        yield f"this time it failed: {new.failure}"
    if old.engine_version != new.engine_version:
        yield f"engine version: {old.engine_version} then, {new.engine_version} now"
    if old.machine and new.machine and old.machine != new.machine:
        yield f"another machine: {old.machine} then, {new.machine} now"
    for name in sorted((set(old.effective) & set(new.effective)) - _OF_A_LAUNCH):
        if old.effective[name] != new.effective[name]:
            yield f"{name}: the server ran {old.effective[name]} then, {new.effective[name]} now"
    if old.answers and new.answers and old.answers != new.answers:
        yield "the answers to the fixed questions differ"


# -- two runs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """One configuration that both runs measured."""

    params: Mapping[str, Any]
    a: int
    b: int
    ratios: Mapping[str, Ratio]


@dataclass(frozen=True)
class Flip:
    """Two configurations whose order differs between the runs by more than the spreads.

    `first` and `second` are trials of A; A finds the first faster, B the second.
    """

    objective: str
    first: int
    second: int


@dataclass(frozen=True)
class Comparison:
    """Run B against run A. `only_failed_in` maps `a` and `b` to the trials that failed there
    alone, each with its cause."""

    a: str
    b: str
    differences: tuple[str, ...]
    pairs: tuple[Pair, ...]
    flips: tuple[Flip, ...]
    only_failed_in: Mapping[str, tuple[str, ...]]


def compare_runs(a: Run, b: Run) -> Comparison:
    """Compare the configurations that both runs measured.

    Raises:
        InputError: they have no configuration in common.
    """
    pairs = tuple(_pairs(a, b))
    failed = {"a": tuple(_failed_only(a, b)), "b": tuple(_failed_only(b, a))}
    if not pairs and not any(failed.values()):
        raise InputError(
            f"{a.path} and {b.path} have no configuration in common: "
            "compare runs of the same experiment file"
        )
    return Comparison(
        a=_title(a, b),
        b=_title(b, a),
        differences=tuple(run_differences(a, b)),
        pairs=pairs,
        flips=tuple(flip for name in OBJECTIVES for flip in _flips(name, a, b, pairs)),
        only_failed_in=failed,
    )


def _title(run: Run, other: Run) -> str:
    return run.name if run.name != other.name else str(run.path)


def _params_key(outcome: Outcome) -> str:
    """Configurations are matched by parameters: launch keys may hold a host's own paths."""
    return repr(sorted(outcome.params.items()))


def _pairs(a: Run, b: Run) -> Iterator[Pair]:
    there = {_params_key(b.outcome(point.number)): point for point in b.points}
    for point in a.points:
        outcome = a.outcome(point.number)
        other = there.get(_params_key(outcome))
        if other is not None:
            yield Pair(outcome.params, point.number, other.number, ratios_of(point, other))


def ratios_of(one: Point, other: Point) -> dict[str, Ratio]:
    """Objective -> `other` against `one`."""
    return {name: _point_ratio(name, one, other) for name in OBJECTIVES}


def _point_ratio(name: str, a: Point, b: Point) -> Ratio:
    return ratio_of(a.values[name], a.spread[name], b.values[name], b.spread[name])


def _failed_only(run: Run, other: Run) -> Iterator[str]:
    measured = {_params_key(other.outcome(point.number)) for point in other.points}
    for outcome in run.outcomes:
        if outcome.failure is not None and _params_key(outcome) in measured:
            yield f"trial {outcome.number}: {outcome.failure}"


def _flips(name: str, a: Run, b: Run, pairs: Sequence[Pair]) -> Iterator[Flip]:
    points = [(a.point(pair.a), b.point(pair.b)) for pair in pairs]
    known = [(in_a, in_b) for in_a, in_b in points if in_a is not None and in_b is not None]
    for (a1, b1), (a2, b2) in combinations(known, 2):
        signs = (_point_ratio(name, a1, a2).sign, _point_ratio(name, b1, b2).sign)
        if signs == ("slower", "faster"):
            yield Flip(name, a1.number, a2.number)
        elif signs == ("faster", "slower"):
            yield Flip(name, a2.number, a1.number)


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data for `--json`."""
    return asdict(comparison)


def comparison_text(comparison: Comparison) -> str:
    """The comparison in words, for a terminal."""
    return "\n".join(_comparison_lines(comparison))


def _comparison_lines(comparison: Comparison) -> Iterator[str]:
    yield f"A = {comparison.a}, B = {comparison.b}; B against A, ± 95 % half-width"
    yield ""
    yield from (f"- {difference}" for difference in comparison.differences)
    if not comparison.differences:
        yield "- machine, engine versions, fixed arguments and workload are the same"
    yield ""
    for pair in comparison.pairs:
        yield f"trial {pair.a} in A, {pair.b} in B: {_pair_text(pair, comparison.pairs[0])}"
        yield from (f"    {TITLES[name]}: {_ratio_text(pair.ratios[name])}" for name in OBJECTIVES)
    yield ""
    yield from (_flip_text(flip) for flip in comparison.flips)
    for side, failed in comparison.only_failed_in.items():
        yield from (f"failed in {side.upper()} only: {text}" for text in failed)


def _pair_text(pair: Pair, first: Pair) -> str:
    """The first configuration in full, each other one by what it changes against that."""
    if pair is first:
        return params_text(pair.params)
    return settings_text(differences(pair.params, first.params))


def _flip_text(flip: Flip) -> str:
    return (
        f"rank flip ({TITLES[flip.objective]}): A finds trial {flip.first} faster than "
        f"trial {flip.second}, B the other way round"
    )
