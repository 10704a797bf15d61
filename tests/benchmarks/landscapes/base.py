"""What a landscape is: a space, hidden failures and two noisy objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import optuna

Config = dict[str, Any]
Point = tuple[float, float]


@dataclass(frozen=True)
class Truth:
    """The noiseless result of one configuration.

    ``values`` is (single_stream_tok_s, peak_tok_s), or None when the launch fails for the cause
    ``failure_kind`` in the phase ``failure_phase``. ``seconds`` is what the trial costs.
    """

    values: Point | None
    failure_kind: str = ""
    failure_phase: str = ""
    seconds: float = 780.0


class Landscape(Protocol):
    """A benchmark problem. ``active`` and ``forbidden`` make it a ``SpaceHint`` as well."""

    name: str
    noise: float

    @property
    def distributions(self) -> Mapping[str, optuna.distributions.BaseDistribution]: ...

    def active(self, params: Mapping[str, Any]) -> Mapping[str, Any]: ...

    def forbidden(self, params: Mapping[str, Any]) -> str | None: ...

    def truth(self, params: Mapping[str, Any]) -> Truth: ...

    @property
    def known_good(self) -> Sequence[Config]: ...


def suggest(landscape: Landscape, trial: optuna.Trial) -> Config:
    """Define-by-run sampling: asks only for the parameters that are active."""
    chosen: Config = {}
    for name, distribution in landscape.distributions.items():
        probe = chosen | {name: first_value(distribution)}
        if name in landscape.active(probe):
            chosen[name] = trial._suggest(name, distribution)
    return chosen


def first_value(distribution: optuna.distributions.BaseDistribution) -> Any:
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        return distribution.choices[0]
    assert isinstance(
        distribution,
        optuna.distributions.IntDistribution | optuna.distributions.FloatDistribution,
    )
    return distribution.low


def random_value(
    distribution: optuna.distributions.BaseDistribution, rng: np.random.Generator
) -> Any:
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        return distribution.choices[int(rng.integers(len(distribution.choices)))]
    assert isinstance(
        distribution,
        optuna.distributions.IntDistribution | optuna.distributions.FloatDistribution,
    )
    low, high = float(distribution.low), float(distribution.high)
    if distribution.log:
        value = float(np.exp(rng.uniform(np.log(low), np.log(high))))
    else:
        value = float(rng.uniform(low, high))
    if distribution.step is not None and not distribution.log:
        value = low + round((value - low) / distribution.step) * distribution.step
    value = min(max(value, low), high)
    return round(value) if isinstance(distribution, optuna.distributions.IntDistribution) else value


def random_config(landscape: Landscape, rng: np.random.Generator) -> Config:
    params = {name: random_value(d, rng) for name, d in landscape.distributions.items()}
    return dict(landscape.active(params))


def hypervolume(points: Sequence[Point]) -> float:
    """Area dominated by ``points`` (both maximised) above the reference (0, 0)."""
    area, best = 0.0, 0.0
    for first, second in sorted(points, reverse=True):
        if second > best:
            area += first * (second - best)
            best = second
    return area


@dataclass
class BestKnown:
    """Heuristic best hypervolume: an evolutionary search on the noiseless truth."""

    landscape: Landscape
    evaluations: int
    front: list[tuple[Point, Config]] = field(default_factory=list)

    def hypervolume(self) -> float:
        if not self.front:
            self._search()
        return hypervolume([values for values, _ in self.front])

    def _search(self) -> None:
        rng = np.random.default_rng(12345)
        for config in self.landscape.known_good:
            self._offer(config)
        for index in range(self.evaluations):
            explore = index < self.evaluations // 8 or not self.front
            self._offer(random_config(self.landscape, rng) if explore else self._mutant(rng))

    def _mutant(self, rng: np.random.Generator) -> Config:
        _, parent = self.front[int(rng.integers(len(self.front)))]
        names = list(self.landscape.distributions)
        child = {n: random_value(d, rng) for n, d in self.landscape.distributions.items()}
        changed = rng.choice(len(names), size=int(rng.integers(1, 4)), replace=False)
        keep = parent.items()
        child.update({k: v for k, v in keep if names.index(k) not in changed})
        return dict(self.landscape.active(child))

    def _offer(self, config: Config) -> None:
        values = self.landscape.truth(config).values
        if values is None or self.landscape.forbidden(config) is not None:
            return
        if any(v[0] >= values[0] and v[1] >= values[1] for v, _ in self.front):
            return
        kept = [e for e in self.front if not (e[0][0] <= values[0] and e[0][1] <= values[1])]
        self.front = [*kept, (values, config)]
