"""What a parameter's values are worth, estimated from all trials at once.

An additive model of the logarithm of an objective over all parameters' values, fitted by least
squares with a weak pull to zero. Interactions end up in its residual, which widens the error:
where parameters interact strongly, nothing is claimed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autotune.records import Value
from autotune.rundir import Run
from autotune.verdict import value_text

PULL = 0.5
"""Standard deviation, in log units, that effects are expected to have at most."""

FEWEST_SPARE = 4
"""Trials needed beyond the number of effects that could be estimated."""


@dataclass(frozen=True)
class Worth:
    """Log effects of one parameter's values with their covariance."""

    labels: tuple[str, ...]
    effects: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]

    @property
    def is_known(self) -> bool:
        """Whether the values' differences are known to about 5 %."""
        return all(self._error(0, index) < 0.025 for index in range(1, len(self.labels)))

    def loss(self, value: Value) -> tuple[str, float, float]:
        """(the best value, relative loss of `value` against it, standard error of that)."""
        best = max(range(len(self.effects)), key=lambda index: self.effects[index])
        own = self.labels.index(value_text(value)) if value_text(value) in self.labels else best
        loss = 1 - math.exp(self.effects[own] - self.effects[best])
        return self.labels[best], loss, self._error(own, best)

    def _error(self, one: int, other: int) -> float:
        c = self.covariance
        return math.sqrt(max(0.0, c[one][one] + c[other][other] - 2 * c[one][other]))


@lru_cache(maxsize=256)
def worth_of(run: Run, objective: str, parameter: str) -> Worth | None:
    """The effects of a parameter on an objective; None with too few trials to tell."""
    params = [run.outcome(point.number).params for point in run.points]
    labels = {
        name: sorted({_label(values, name) for values in params})
        for name in {name for values in params for name in values}
    }
    columns = [(name, label) for name, known in labels.items() for label in known]
    effects = sum(len(known) - 1 for known in labels.values())
    if parameter not in labels or len(params) < effects + FEWEST_SPARE:
        return None
    design = np.array([[float(_label(v, n) == label) for n, label in columns] for v in params])
    target = np.log([point.values[objective] for point in run.points])
    target = target - target.mean()
    design = design - design.mean(axis=0)
    noise = 0.02**2
    for _ in range(10):  # the noise is estimated from the residual of the fit that it weighs
        inverse = np.linalg.inv(design.T @ design / noise + np.eye(len(columns)) / PULL**2)
        weights = inverse @ design.T @ target / noise
        residual = target - design @ weights
        noise = max(1e-5, float(residual @ residual) / max(1, len(params) - effects - 1))
    rows = [index for index, (name, _) in enumerate(columns) if name == parameter]
    return Worth(
        labels=tuple(columns[index][1] for index in rows),
        effects=tuple(float(weights[index]) for index in rows),
        covariance=tuple(tuple(float(inverse[a, b]) for b in rows) for a in rows),
    )


def _label(params: dict[str, Value], name: str) -> str:
    return value_text(params[name]) if name in params else "(does not apply)"
