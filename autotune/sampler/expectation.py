"""Expected effects of parameter values, as the surrogates' prior mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.sampler.encoding import Array, Axis
from autotune.sampler.hint import Prior
from autotune.sampler.observations import Scale


@dataclass(frozen=True)
class Expectation:
    """``terms``: (column, code, gain per objective), added where the column has that code."""

    terms: tuple[tuple[int, float, Array], ...]
    objectives: int

    def __call__(self, codes: Array) -> Array:
        """Expected gains, relative to a configuration of which nothing is expected: (n, obj.)."""
        total = np.zeros((len(codes), self.objectives))
        for column, code, gain in self.terms:
            total[np.abs(codes[:, column] - code) < 1e-9] += gain
        return total


def expectation(
    priors: Mapping[str, Prior], axes: Sequence[Axis], names: Sequence[str], scales: Sequence[Scale]
) -> Expectation:
    """From ratios to gains. Ratios mean nothing for an objective that is not logged: ignored."""
    terms = []
    for column, one in enumerate(axes):
        prior = priors.get(one.name)
        for index, (name, scale) in enumerate(zip(names, scales, strict=True)):
            ratios = prior.effects.get(name, {}) if prior is not None else {}
            for value, ratio in ratios.items():
                code = one.encode(value)
                if scale.log and not np.isnan(code):
                    gain = np.zeros(len(scales))
                    gain[index] = scale.sign * np.log(ratio)
                    terms.append((column, code, gain))
    return Expectation(tuple(terms), len(scales))
