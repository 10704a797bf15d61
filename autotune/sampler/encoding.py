"""One axis per parameter: ordinals on the unit interval, categories as an index.

An axis knows no trial and no model. ``encode`` gives NaN for a parameter that is inactive, which
every model reads as "not there". Numbers given as categories (64, 128, 256) are ordinals too:
their order carries information.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

Array = NDArray[np.float64]
Config = Mapping[str, Any]

MAX_LEVELS = 65  # an ordinal with more levels than this is treated as continuous


@dataclass(frozen=True)
class Axis:
    """One parameter. ``levels`` is the number of distinct values, 0 where it is continuous.

    ``choices`` holds the values in encoding order where they are few, else it is empty.
    """

    name: str
    distribution: BaseDistribution
    categorical: bool
    levels: int
    choices: tuple[Any, ...] = ()

    def encode(self, value: Any) -> float:
        """A unit (ordinal) or an index (categorical); NaN for a value that is not on the axis."""
        if self.choices:
            position = self._position(value)
            if position is None:
                return math.nan
            return float(position) if self.categorical else position / max(1, self.levels - 1)
        return self._unit(value)

    def decode(self, code: float) -> Any:
        """The value nearest to ``code``, which is clipped to the axis."""
        if self.choices:
            scaled = code if self.categorical else code * (self.levels - 1)
            return self.choices[min(max(round(scaled), 0), self.levels - 1)]
        distribution = self.distribution
        assert isinstance(distribution, FloatDistribution | IntDistribution)
        low, high = float(distribution.low), float(distribution.high)
        unit = min(max(code, 0.0), 1.0)
        if distribution.log:
            value = math.exp(math.log(low) + unit * math.log(high / low))
        else:
            value = low + unit * (high - low)
        if distribution.step is not None and not distribution.log:
            value = low + round((value - low) / distribution.step) * distribution.step
        value = min(max(value, low), high)
        return round(value) if isinstance(distribution, IntDistribution) else value

    def snap(self, codes: Array) -> Array:
        """Codes of values that exist, nearest to ``codes`` (n,): encode(decode(code))."""
        if self.choices and self.categorical:
            return np.clip(np.rint(codes), 0, self.levels - 1)
        if self.choices:
            return np.clip(np.rint(codes * (self.levels - 1)), 0, self.levels - 1) / max(
                1, self.levels - 1
            )
        if isinstance(self.distribution, FloatDistribution) and self.distribution.step is None:
            return np.clip(codes, 0.0, 1.0)
        distinct, which = np.unique(codes, return_inverse=True)
        snapped = np.array([self.encode(self.decode(code)) for code in distinct.tolist()])
        nearest: Array = snapped[which] if len(codes) else codes
        return nearest

    def _position(self, value: Any) -> int | None:
        for position, choice in enumerate(self.choices):
            if choice is value or (choice == value and type(choice) is type(value)):
                return position
        return self.choices.index(value) if value in self.choices else None

    def _unit(self, value: Any) -> float:
        distribution = self.distribution
        assert isinstance(distribution, FloatDistribution | IntDistribution)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return math.nan
        low, high = float(distribution.low), float(distribution.high)
        if high <= low:
            return 0.0
        if distribution.log:
            unit = math.log(max(float(value), 1e-300) / low) / math.log(high / low)
        else:
            unit = (float(value) - low) / (high - low)
        return min(max(unit, 0.0), 1.0)


def axis(name: str, distribution: BaseDistribution) -> Axis:
    """The axis of one parameter."""
    if isinstance(distribution, CategoricalDistribution):
        choices = tuple(distribution.choices)
        if _are_ordered_numbers(choices):
            ordered = tuple(sorted(choices, key=lambda choice: float(choice or 0)))
            return Axis(name, distribution, False, len(ordered), ordered)
        return Axis(name, distribution, True, len(choices), choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    values = _grid(distribution)
    return Axis(name, distribution, False, len(values), values)


def _are_ordered_numbers(choices: Sequence[Any]) -> bool:
    numbers = [c for c in choices if isinstance(c, int | float) and not isinstance(c, bool)]
    return len(choices) >= 3 and len(set(numbers)) == len(choices)


def _grid(distribution: IntDistribution | FloatDistribution) -> tuple[Any, ...]:
    """All values of a short ordinal, evenly spread on its own scale; () when it is long."""
    low, high, step = distribution.low, distribution.high, distribution.step
    if low == high:
        return (low,)
    if step is None or distribution.log:
        return ()
    count = math.floor((high - low) / step + 1e-9) + 1
    if count > MAX_LEVELS:
        return ()
    if isinstance(distribution, IntDistribution):
        return tuple(int(low) + index * int(step) for index in range(count))
    return tuple(float(min(low + index * step, high)) for index in range(count))


def encode(axes: Sequence[Axis], configs: Sequence[Config]) -> Array:
    """Codes of shape (configs, axes); NaN where a parameter is inactive."""
    codes = np.full((len(configs), len(axes)), np.nan)
    for column, one in enumerate(axes):
        for row, config in enumerate(configs):
            if one.name in config:
                codes[row, column] = one.encode(config[one.name])
    return codes
