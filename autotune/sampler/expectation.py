"""Expected effects of parameter values, as the surrogates' prior mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.sampler.encoding import Array, Axis
from autotune.sampler.hint import Prior
from autotune.sampler.observations import Scale

PREFERRED = 1.3  # ratio expected of a preferred value, to the power of the prior's weight


@dataclass(frozen=True)
class Expectation:
    """``terms``: (column, code, gain per objective), added where the column has that code."""

    terms: tuple[tuple[int, float, Array], ...]
    objectives: int

    def effects(self, codes: Array) -> Array:
        """Expected gains, relative to a configuration of which nothing is expected.

        Shape (objectives, n, parameters of which something is expected): they add up.
        """
        columns = sorted({column for column, _, _ in self.terms})
        found = np.zeros((self.objectives, len(codes), len(columns)))
        for column, code, gain in self.terms:
            there = np.abs(codes[:, column] - code) < 1e-9
            found[:, there, columns.index(column)] += gain[:, None]
        return found


def expectation(
    priors: Mapping[str, Prior], axes: Sequence[Axis], names: Sequence[str], scales: Sequence[Scale]
) -> Expectation:
    """From ratios to gains. Ratios mean nothing for an objective that is not logged: ignored."""
    terms = []
    for column, one in enumerate(axes):
        prior = priors.get(one.name)
        for index, (name, scale) in enumerate(zip(names, scales, strict=True)):
            ratios = _ratios(prior, name, scale) if prior is not None else {}
            for value, ratio in ratios.items():
                code = one.encode(value)
                if scale.log and not np.isnan(code):
                    gain = np.zeros(len(scales))
                    gain[index] = scale.sign * np.log(ratio)
                    terms.append((column, code, gain))
    return Expectation(tuple(terms), len(scales))


def _ratios(prior: Prior, objective: str, scale: Scale) -> Mapping[Any, float]:
    """Expected ratio per value. A preferred value of which nothing else is said is thought good."""
    if prior.prefer is None or prior.effects:
        return prior.effects.get(objective, {})
    return {prior.prefer: PREFERRED ** (scale.sign * prior.weight)}
