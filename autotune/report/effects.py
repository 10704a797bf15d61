"""What each parameter's values went with: medians and counts for each objective.

These are not causes: the search tries good values more often and together with other good
ones. They show where to look; a pair of trials that differ in one parameter is evidence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles

from autotune.front import Point
from autotune.records import Value
from autotune.run import Run
from autotune.verdict import number_text, value_text

NOT_APPLICABLE = "(does not apply)"
MOST_VALUES = 8


@dataclass(frozen=True)
class Level:
    """One value of a parameter (or a range): the configurations that had it, in tok/s."""

    label: str
    count: int
    median: float
    best: float


@dataclass(frozen=True)
class Effect:
    """A parameter for one objective. `range` is the highest median over the lowest."""

    parameter: str
    levels: tuple[Level, ...]

    @property
    def range(self) -> float:
        medians = [level.median for level in self.levels]
        return max(medians) / min(medians)


def effects_of(run: Run, objective: str) -> tuple[Effect, ...]:
    """Every parameter that took at least two values, the widest range of medians first."""
    params = {point.number: run.outcome(point.number).params for point in run.points}
    names = dict.fromkeys(name for values in params.values() for name in values)
    effects = [_effect(name, objective, run.points, params) for name in names]
    return tuple(sorted((e for e in effects if len(e.levels) > 1), key=lambda e: -e.range))


def _effect(
    name: str, objective: str, points: Sequence[Point], params: dict[int, dict[str, Value]]
) -> Effect:
    missing = object()
    values = [params[point.number].get(name, missing) for point in points]
    labels = _labels([value for value in values if value is not missing])
    groups: dict[str, list[float]] = {label: [] for label in dict.fromkeys(labels.values())}
    for point, value in zip(points, values, strict=True):
        label = NOT_APPLICABLE if value is missing else labels[repr(value)]
        groups.setdefault(label, []).append(point.values[objective])
    return Effect(name, tuple(_level(label, figures) for label, figures in groups.items()))


def _level(label: str, figures: Sequence[float]) -> Level:
    return Level(label, len(figures), median(figures), max(figures))


def _labels(values: Sequence[object]) -> dict[str, str]:
    """repr of a value -> its label, in order of value; many numbers become four ranges."""
    distinct = {repr(value): value for value in values}
    numbers = [
        v for v in distinct.values() if isinstance(v, int | float) and not isinstance(v, bool)
    ]
    if len(numbers) == len(distinct) > MOST_VALUES:
        cuts = quantiles(sorted(numbers), n=4)
        ends = [min(numbers), *cuts, max(numbers)]
        ranges = [f"{_short(a)} to {_short(b)}" for a, b in pairwise(ends)]
        ordered = sorted(distinct.items(), key=lambda item: float(str(item[1])))
        return {key: ranges[bisect_left(cuts, float(str(value)))] for key, value in ordered}
    ordered = sorted(distinct.items(), key=lambda item: _order(item[1]))
    return {key: _value_label(value) for key, value in ordered}


def _order(value: object) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return (0, float(value), "")
    return (1, 0.0, str(value))


def _value_label(value: object) -> str:
    return value_text(value) if value is None or isinstance(value, bool | int | float | str) else ""


def _short(number: float) -> str:
    return f"{number:.3g}" if abs(number) < 1000 else number_text(number)
