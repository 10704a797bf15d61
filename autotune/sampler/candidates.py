"""Where to look: the whole space, mutations and crossovers of the front, and its neighbours.

Everything here is a full assignment of codes, shape (n, axes), inactive parameters included, so
that a change of a parent finds values for its children.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.sampler.encoding import Array, Axis
from autotune.sampler.hint import Prior


@dataclass(frozen=True)
class Pool:
    """Draws codes over ``axes``; ``priors`` makes a preferred value more frequent."""

    axes: Sequence[Axis]
    priors: Mapping[str, Prior]

    def anywhere(self, count: int, rng: np.random.Generator) -> Array:
        """Uniform over the space, preferred values with their weight."""
        codes = np.empty((count, len(self.axes)))
        for column, one in enumerate(self.axes):
            codes[:, column] = self._draw(one, count, rng)
        return codes

    def mutants(self, parents: Array, count: int, rng: np.random.Generator) -> Array:
        """One to four parameters of random parents changed: far, or by a step for ordinals."""
        chosen = self._filled(parents[rng.integers(len(parents), size=count)], rng)
        fresh = self.anywhere(count, rng)
        size = 1 + rng.binomial(3, 0.35, size=count)
        rank = rng.random(chosen.shape).argsort(axis=1).argsort(axis=1)
        changed = rank < size[:, None]
        near = rng.random(chosen.shape) < 0.5
        nudged = self._nudged(chosen, rng)
        return np.where(changed, np.where(near, nudged, fresh), chosen)

    def crossovers(self, parents: Array, count: int, rng: np.random.Generator) -> Array:
        """Uniform crossovers of two random parents, at times with one change."""
        first = self._filled(parents[rng.integers(len(parents), size=count)], rng)
        second = self._filled(parents[rng.integers(len(parents), size=count)], rng)
        children = np.where(rng.random(first.shape) < 0.5, first, second)
        extra = rng.random(first.shape) < 0.5 / len(self.axes)
        return np.where(extra, self.anywhere(count, rng), children)

    def neighbours(
        self, parents: Array, active: NDArray[np.bool_], rng: np.random.Generator
    ) -> Array:
        """Every single change of each full parent: all categories, ordinals up, down and anywhere.

        Only ``active`` parameters, of the same shape (n, axes): changes of others change nothing.
        """
        blocks = [self._around(*both, rng) for both in zip(parents, active, strict=True)]
        return np.concatenate(blocks) if blocks else np.empty((0, len(self.axes)))

    def reversions(self, parents: Array, reference: Array, rng: np.random.Generator) -> Array:
        """Each parent with each parameter that differs from ``reference`` (axes,) set back.

        What thereby becomes active has the value of the reference too.
        """
        filled = self._filled(np.where(np.isnan(parents), reference, parents), rng)
        rows = [
            np.where(np.arange(len(row)) == column, reference, row)
            for row in filled
            for column in np.flatnonzero((row != reference) & ~np.isnan(reference))
        ]
        return np.array(rows).reshape(-1, len(self.axes))

    def _around(self, parent: Array, active: NDArray[np.bool_], rng: np.random.Generator) -> Array:
        rows = []
        for column in np.flatnonzero(active).tolist():
            for code in self._alternatives(self.axes[column], parent[column], rng):
                row = parent.copy()
                row[column] = code
                rows.append(row)
        return np.array(rows).reshape(-1, len(self.axes))

    def _alternatives(self, one: Axis, code: float, rng: np.random.Generator) -> Array:
        if one.choices and one.levels <= 8:
            every = np.arange(one.levels) / (1 if one.categorical else max(1, one.levels - 1))
            return every[np.abs(every - code) > 1e-9]
        step = max(0.04, 1 / (one.levels - 1) if one.levels > 1 else 0.0)
        around = code + np.array([-3, -1, 1, 3]) * step * rng.uniform(0.7, 1.3)
        return np.concatenate([np.clip(around, 0, 1), rng.random(2)])

    def _draw(self, one: Axis, count: int, rng: np.random.Generator) -> Array:
        if one.choices:
            codes = rng.integers(one.levels, size=count).astype(float)
            codes = codes if one.categorical else codes / max(1, one.levels - 1)
        else:
            codes = rng.random(count)
        prior = self.priors.get(one.name)
        if prior is None or prior.prefer is None:
            return codes
        preferred = one.encode(prior.prefer)
        lucky = rng.random(count) < prior.weight
        return codes if np.isnan(preferred) else np.where(lucky, preferred, codes)

    def _nudged(self, codes: Array, rng: np.random.Generator) -> Array:
        moved = self.anywhere(len(codes), rng)
        for column, one in enumerate(self.axes):
            if not one.categorical:
                step = max(0.08, 1 / (one.levels - 1) if one.levels > 1 else 0.0)
                sign = np.where(rng.random(len(codes)) < 0.5, -1.0, 1.0)
                size = step * (1 + rng.exponential(0.5, size=len(codes)))
                moved[:, column] = np.clip(codes[:, column] + sign * size, 0, 1)
        return moved

    def _filled(self, codes: Array, rng: np.random.Generator) -> Array:
        return np.where(np.isnan(codes), self.anywhere(len(codes), rng), codes)
