"""Random landscapes with the shape of a launch space: mixed, conditional, mostly failing.

Every structure (which parameters exist, what they do, what fails) follows from ``structure``
alone, so other seeds are other problems. ``rugged=True`` makes random pairwise interactions as
strong as the main effects.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from tests.benchmarks.landscapes.base import Config, Point, Truth, random_config

OBJECTIVES = 2
TARGET_FAILING = 0.66


@dataclass(frozen=True)
class Effect:
    """A log effect per objective: a table over choices, or a curve over the unit interval."""

    table: np.ndarray  # (levels, objectives); for a curve, sampled on a grid of 33

    def __call__(self, unit: float) -> np.ndarray:
        row: np.ndarray = self.table[round(unit * (len(self.table) - 1))]
        return row


class Synthetic:
    """See the module's docstring. 15 parameters, two of them engine branches."""

    log_spread = 0.22  # standard deviation of the log objectives over random working launches

    def __init__(self, structure: int, *, rugged: bool, noise: float = 0.02) -> None:
        self.name = f"{'rugged' if rugged else 'smooth'}-{structure}"
        self.noise = noise
        self._base = np.array([60.0, 2000.0])
        self._rugged = rugged
        self._rng = np.random.default_rng([structure, int(rugged), 77])
        self.distributions: Mapping[str, BaseDistribution] = self._make_distributions()
        self._parents = self._make_parents()
        self._names = list(self.distributions)
        self._draw()

    def _draw(self) -> None:
        """What the parameters do, and what fails."""
        self._main = {name: self._make_effect(name) for name in self._names}
        self._pairs = self._make_pairs()
        self._banned = self._make_banned()
        self._memory = {
            n: self._rng.gamma(1.0) for n in self._ordinals() if self._rng.random() < 0.7
        }
        self._scale = np.ones(OBJECTIVES)
        self._capacity = self._calibrate_capacity()
        self._scale = self._calibrate_scale()

    def _make_distributions(self) -> dict[str, BaseDistribution]:
        rng, made = self._rng, {}
        made["engine"] = CategoricalDistribution(["a", "b"])
        for index in range(7):
            size = int(rng.integers(2, 6))
            made[f"cat{index}"] = CategoricalDistribution([f"v{i}" for i in range(size)])
        made["batch"] = IntDistribution(8, 512, log=True)
        made["steps"] = IntDistribution(0, 5)
        made["chunk"] = IntDistribution(1024, 16384, step=1024)
        made["fraction"] = FloatDistribution(0.5, 0.95, step=0.01)
        made["delay"] = FloatDistribution(0.01, 10.0, log=True)
        made["topk"] = IntDistribution(1, 8)
        made["seqs"] = CategoricalDistribution([32, 64, 128, 256])
        return made

    def _make_parents(self) -> dict[str, tuple[str, tuple[Any, ...]]]:
        branch_a, branch_b = self._rng.choice(7, size=2, replace=False)
        return {
            f"cat{branch_a}": ("engine", ("a",)),
            f"cat{branch_b}": ("engine", ("b",)),
            "topk": ("steps", tuple(range(1, 6))),
        }

    def _ordinals(self) -> list[str]:
        return [n for n in self._names if not n.startswith(("cat", "engine"))]

    def _unit(self, name: str, value: Any) -> float:
        distribution = self.distributions[name]
        if isinstance(distribution, CategoricalDistribution):
            return distribution.choices.index(value) / max(1, len(distribution.choices) - 1)
        assert isinstance(distribution, IntDistribution | FloatDistribution)
        low, high = float(distribution.low), float(distribution.high)
        if distribution.log:
            return float(np.log(value / low) / np.log(high / low))
        return (float(value) - low) / (high - low)

    def _make_effect(self, name: str) -> Effect:
        rng = self._rng
        strength = 0.32 * rng.gamma(0.8) + 0.02
        tilt = rng.normal(0.6, 0.8)  # below zero: what helps one objective hurts the other
        if name in self._ordinals():
            grid = np.linspace(0, 1, 33)
            peaks = rng.uniform(-0.2, 1.2, size=2)
            shared = rng.uniform() < 0.5
            first = -((grid - peaks[0]) ** 2) * 2
            second = -((grid - (peaks[0] if shared else peaks[1])) ** 2) * 2
            return Effect(strength * np.stack([first, second * abs(tilt)], axis=1))
        distribution = self.distributions[name]
        assert isinstance(distribution, CategoricalDistribution)
        base = rng.normal(size=len(distribution.choices))
        own = rng.normal(size=len(distribution.choices))
        return Effect(strength * np.stack([base, tilt * base + 0.4 * own], axis=1))

    def _make_pairs(self) -> list[tuple[str, str, np.ndarray]]:
        rng, pairs = self._rng, []
        for _ in range(24 if self._rugged else 5):
            first, second = rng.choice(len(self._names), size=2, replace=False)
            strength = (0.22 if self._rugged else 0.08) * rng.gamma(1.0)
            table = rng.normal(size=(5, 5, OBJECTIVES)) * strength
            pairs.append((self._names[first], self._names[second], table))
        return pairs

    def _make_banned(self) -> list[tuple[str, Config]]:
        rng, banned = self._rng, []
        wide = [n for n in self._names if n.startswith("cat") and self._size(n) >= 3]
        for name in rng.choice(wide, size=min(2, len(wide)), replace=False):
            banned.append(("unsupported", {str(name): f"v{int(rng.integers(self._size(name)))}"}))
        cats = [n for n in self._names if n.startswith("cat")]
        for kind in ("bad_flags", "collective", "unsupported", "wrong_output"):
            first, second = (str(n) for n in rng.choice(cats, size=2, replace=False))
            pair = {n: f"v{int(rng.integers(self._size(n)))}" for n in (first, second)}
            banned.append((kind, pair))
        return banned

    def _size(self, name: str) -> int:
        distribution = self.distributions[name]
        assert isinstance(distribution, CategoricalDistribution)
        return len(distribution.choices)

    def _calibrate_capacity(self) -> float:
        rng = np.random.default_rng(5)
        configs = [random_config(self, rng) for _ in range(1500)]
        crash = [self._crash(config) is not None for config in configs]
        loads = [self._load(c) for c, bad in zip(configs, crash, strict=True) if not bad]
        left = max(0.05, 1 - (TARGET_FAILING - np.mean(crash)) / (1 - np.mean(crash)))
        return float(np.quantile(loads, min(1.0, left)))

    def _calibrate_scale(self) -> np.ndarray:
        rng = np.random.default_rng(6)
        configs = [random_config(self, rng) for _ in range(1500)]
        logs = np.log([v for v in (self.truth(c).values for c in configs) if v is not None])
        scale: np.ndarray = self.log_spread / np.std(logs, axis=0)
        return scale

    def _load(self, config: Mapping[str, Any]) -> float:
        units = {n: self._unit(n, config[n]) for n in self._memory if n in config}
        return sum(self._memory[n] * unit for n, unit in units.items())

    def _crash(self, config: Mapping[str, Any]) -> str | None:
        for kind, banned in self._banned:
            if all(config.get(name) == value for name, value in banned.items()):
                return kind
        return None

    def active(self, params: Mapping[str, Any]) -> Config:
        kept = dict(params)
        for child, (parent, values) in self._parents.items():
            if child in kept and kept.get(parent) not in values:
                del kept[child]
        return kept

    def forbidden(self, params: Mapping[str, Any]) -> str | None:
        return None

    def truth(self, params: Mapping[str, Any]) -> Truth:
        config = self.active(params)
        crash = self._crash(config)
        if crash is not None:
            return Truth(None, crash, "launch", 90.0)
        if self._load(config) > self._capacity:
            return Truth(None, "out_of_memory", "capture", 500.0)
        return Truth(self._values(config))

    def _values(self, config: Mapping[str, Any]) -> Point:
        units = {n: self._unit(n, config[n]) for n in self._names if n in config}
        total = sum((self._main[n](u) for n, u in units.items()), np.zeros(OBJECTIVES))
        for first, second, table in self._pairs:
            if first in units and second in units:
                total = total + table[round(units[first] * 4), round(units[second] * 4)]
        single, peak = (self._base * np.exp(total * self._scale)).tolist()
        return single, peak

    def elsewhere(self, seed: int) -> Synthetic:
        """The same space on another machine: other speeds and memory, effects that differ mildly.

        Per objective, an effect has 0.7 to 1.4 times its strength (one standard deviation), a
        pairwise table gets noise of 0.4 times its spread, a sixth of the crashes is gone.
        """
        other, rng = copy.copy(self), np.random.default_rng([seed, 41])
        other.known_good = self.known_good  # type: ignore[misc]  # the same experiment file
        other._base = self._base * np.exp(rng.normal(size=OBJECTIVES) * 0.5)
        other._main = {
            name: Effect(effect.table * np.exp(0.35 * rng.normal(size=OBJECTIVES)))
            for name, effect in self._main.items()
        }
        other._pairs = [
            (first, second, table + 0.4 * table.std() * rng.normal(size=table.shape))
            for first, second, table in self._pairs
        ]
        other._banned = [one for one in self._banned if rng.random() > 1 / 6]
        other._capacity = self._capacity * float(np.exp(0.15 * rng.normal()))
        return other

    def unrelated(self, seed: int) -> Synthetic:
        """The same space, in which everything else is another."""
        other = copy.copy(self)
        other.__dict__.pop("known_good", None)
        other._rng = np.random.default_rng([seed, 43])
        other._draw()
        return other

    @cached_property
    def known_good(self) -> Sequence[Config]:
        """Defaults and two hand-made guesses: good for a person, far from the best."""
        rng = np.random.default_rng(9)
        found: list[tuple[Point, Config]] = []
        while len(found) < 30:
            config = random_config(self, rng)
            values = self.truth(config).values
            if values is not None:
                found.append((values, config))
        by_single = sorted(found, key=lambda pair: pair[0][0])
        by_peak = sorted(found, key=lambda pair: pair[0][1])
        both = sorted(found, key=lambda pair: pair[0][0] * pair[0][1])
        return [both[15][1], by_single[24][1], by_peak[24][1]]
