"""The space as known so far: from a hint, or learned from the trials' own distributions."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial

from autotune.sampler.encoding import Array, Axis, Config, axis, encode
from autotune.sampler.hint import SpaceHint

Key = bytes

BLOCK = 256  # assignments enumerated at a time
RECENT = 200  # trials from which conditions are learned


@dataclass(frozen=True)
class Activity:
    """A learned condition: the child exists only where ``parent`` has a value in ``present``.

    Values never seen count as present: asking once is how one finds out.
    """

    parent: str
    present: frozenset[Hashable]
    absent: frozenset[Hashable]

    def holds(self, config: Config) -> bool:
        if self.parent not in config:
            return False
        value = _token(config[self.parent])
        if value in self.present or value in self.absent:
            return value in self.present
        return _nearest(value, self.present, self.absent)


@dataclass(frozen=True)
class KnownSpace:
    """Parameters, how they are encoded, which are active, and what must not be asked."""

    distributions: Mapping[str, BaseDistribution]
    hint: SpaceHint | None = None
    conditions: Mapping[str, Activity] | None = None

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(axis(name, d) for name, d in self.distributions.items())

    def canonical(self, params: Config) -> dict[str, Any]:
        """The active part of ``params``, in one spelling per launch."""
        if self.hint is not None:
            return dict(self.hint.active(params))
        kept = {name: params[name] for name in self.distributions if name in params}
        for child, condition in (self.conditions or {}).items():
            if child in kept and not condition.holds(kept):
                del kept[child]
        return kept

    def encode(self, configs: Sequence[Config]) -> Array:
        """Codes of canonical configurations, shape (n, axes), NaN where inactive."""
        return encode(self.axes, configs)

    def activate(self, full: Array) -> Array:
        """Codes of the canonical configurations of full assignments, both of shape (n, axes)."""
        if self.hint is None:
            return self._activate_learned(full)
        codes = np.full_like(full, np.nan)
        for row, (assignment, given) in enumerate(zip(self.decode(full), full, strict=True)):
            config = self.hint.active(assignment)
            for column, one in enumerate(self.axes):
                if one.name in config:
                    value = config[one.name]
                    same = value is assignment[one.name]
                    codes[row, column] = given[column] if same else one.encode(value)
        return codes

    def _activate_learned(self, full: Array) -> Array:
        codes = full.copy()
        index = {one.name: column for column, one in enumerate(self.axes)}
        for child, condition in (self.conditions or {}).items():
            parent = self.axes[index[condition.parent]]
            values, where = np.unique(codes[:, index[condition.parent]], return_inverse=True)
            present = np.array(
                [
                    not np.isnan(v) and condition.holds({parent.name: parent.decode(v)})
                    for v in values
                ],
                dtype=bool,
            )
            codes[~present[where], index[child]] = np.nan
        return codes

    def snap(self, full: Array) -> Array:
        """Full assignments of values that exist."""
        return np.stack([one.snap(full[:, column]) for column, one in enumerate(self.axes)], axis=1)

    def allowed(self, config: Config) -> bool:
        return self.hint is None or self.hint.forbidden(config) is None

    def launch_key(self, config: Config) -> Hashable | None:
        """The hint's own key of a launch, if it has one: it may know more spellings."""
        own_key = getattr(self.hint, "key", None)
        return own_key(config) if callable(own_key) else None

    @cached_property
    def cardinality(self) -> float:
        """The number of full assignments, infinite with a continuous parameter."""
        return math.prod(self._counts)

    @cached_property
    def _counts(self) -> list[float]:
        return [float(one.levels) if one.choices else _count(one) for one in self.axes]

    def assignments(self) -> Iterator[Array]:
        """Every full assignment of a finite space, as codes in blocks of shape (n, axes)."""
        grids = [_grid(one, int(count)) for one, count in zip(self.axes, self._counts, strict=True)]
        total = int(self.cardinality)
        for begin in range(0, total, BLOCK):
            flat = np.arange(begin, min(begin + BLOCK, total))
            index = np.unravel_index(flat, [len(grid) for grid in grids])
            yield np.stack([grid[i] for grid, i in zip(grids, index, strict=True)], axis=1)

    def decode(self, codes: Array) -> list[dict[str, Any]]:
        """Full assignments from codes of shape (n, axes)."""
        columns = [_decoded(one, codes[:, column]) for column, one in enumerate(self.axes)]
        names = [one.name for one in self.axes]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _decoded(one: Axis, codes: Array) -> list[Any]:
    """Values of one parameter; candidates share most of theirs, so each is decoded once."""
    distinct, which = np.unique(codes, return_inverse=True)
    values = [one.decode(code) for code in distinct.tolist()]
    return [values[at] for at in which.tolist()]


def keys(codes: Array) -> list[Key]:
    """One hashable per row of canonical codes, equal for equal configurations."""
    rounded = np.ascontiguousarray(np.where(np.isnan(codes), -1.0, codes.round(9) + 0.0))
    return [row.tobytes() for row in rounded]


def learn_space(trials: Sequence[FrozenTrial], hint: SpaceHint | None) -> KnownSpace:
    """The hint's space, or the union of what the trials asked for, with learned conditions.

    Where a trial changed the range of a parameter, the latest range holds.
    """
    if hint is not None:
        return KnownSpace(dict(hint.distributions), hint)
    found: dict[str, BaseDistribution] = {}
    for trial in trials:
        for name, distribution in trial.distributions.items():
            found[name] = distribution
    return KnownSpace(found, None, _learn_conditions(trials, list(found)))


def _learn_conditions(trials: Sequence[FrozenTrial], names: Sequence[str]) -> dict[str, Activity]:
    complete = [trial.params for trial in trials if trial.state.is_finished() and trial.params]
    complete = complete[-RECENT:]
    learned: dict[str, Activity] = {}
    for name in names:
        if 0 < sum(name in params for params in complete) < len(complete):
            condition = _best_condition(name, complete, names)
            if condition is not None:
                learned[name] = condition
    return learned


def _best_condition(child: str, params: Sequence[Config], names: Sequence[str]) -> Activity | None:
    """The one parent that explains best when the child is there, at most 5 % wrong."""
    best: Activity | None = None
    fewest = 0.05 * len(params) + 1e-9
    for parent in names:
        if parent == child:  # only what is asked earlier can decide
            break
        condition, wrong = _split_by(child, parent, params)
        if wrong < fewest and condition.present and condition.absent:
            best, fewest = condition, wrong
    return best


def _split_by(child: str, parent: str, params: Sequence[Config]) -> tuple[Activity, float]:
    counts: dict[Hashable, list[int]] = {}
    wrong = 0.0
    for config in params:
        if parent in config:
            tally = counts.setdefault(_token(config[parent]), [0, 0])
            tally[child in config] += 1
        else:
            wrong += child in config
    present = frozenset(value for value, (without, with_) in counts.items() if with_ >= without)
    wrong += sum(min(tally) for tally in counts.values())
    # Many distinct values explain anything: each costs a little, so that few win.
    return Activity(parent, present, frozenset(counts) - present), wrong + 1e-3 * len(counts)


def _token(value: Any) -> Hashable:
    """A hashable that keeps True, 1 and "1" apart and joins 1 and 1.0."""
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, int | float):
        return f"{float(value):.12g}"
    return f"'{value}'"


def _nearest(value: Hashable, present: frozenset[Hashable], absent: frozenset[Hashable]) -> bool:
    """For a number not seen yet, as the nearest one seen; anything else counts as present."""
    try:
        here = float(str(value))
        gaps = {other: abs(float(str(other)) - here) for other in present | absent}
    except ValueError:
        return True
    return min(gaps, key=lambda other: (gaps[other], str(other))) in present if gaps else True


def _count(one: Axis) -> float:
    distribution = one.distribution
    if isinstance(distribution, CategoricalDistribution):
        return float(len(distribution.choices))
    low, high = distribution.low, distribution.high  # type: ignore[attr-defined]  # numeric by now
    step = distribution.step  # type: ignore[attr-defined]  # numeric by now
    return math.inf if step is None else math.floor((high - low) / step + 1e-9) + 1.0


def _grid(one: Axis, count: int) -> Array:
    if one.categorical:
        return np.arange(count, dtype=float)
    if one.choices:
        return np.arange(count) / max(1, count - 1)
    low, step = one.distribution.low, one.distribution.step  # type: ignore[attr-defined]  # numeric
    return np.array([one.encode(low + index * step) for index in range(count)])
