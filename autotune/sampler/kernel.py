"""Two kernels over configurations, each with its own strengths per parameter.

Both see gaps: per parameter, the distance on an ordinal's unit interval, OTHER between
categories, ABSENT where a category is active on one side only. Candidates share most of their
values, so gaps are kept per distinct value (``Gaps``), and a covariance costs no exponential
for each pair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.sampler.encoding import Array

OTHER = 2.0
ABSENT = 2**0.5  # at least the distance from a simplex's middle to its corners
SQRT3 = 3**0.5

Backward = Callable[[Array], Array]


@dataclass(frozen=True)
class Gaps:
    """The gaps between n configurations and m others.

    ``rows[p]`` (u, m) are those of the u distinct values that parameter p has among the n, and
    ``which[p]`` (n,) says which row is whose.
    """

    rows: tuple[Array, ...]
    which: tuple[NDArray[np.int64], ...]

    @property
    def dense(self) -> Array:
        """Shape (P, n, m)."""
        return np.stack([rows[at] for rows, at in zip(self.rows, self.which, strict=True)])

    def first(self, others: int) -> Gaps:
        """The gaps to the first of the others only."""
        return Gaps(tuple(rows[:, :others] for rows in self.rows), self.which)


class Kernel(Protocol):
    """A covariance of log hyperparameters ``theta``, for gains of unit variance."""

    def prior(self, parameters: int) -> tuple[Array, Array]:
        """Mean and standard deviation of theta, for that many parameters of the space."""
        ...

    def forward(self, gaps: Array, theta: Array) -> tuple[Array, Backward]:
        """From dense gaps (P, n, n) the covariance, and from W the gradient of sum(W * it)."""
        ...

    def cross(self, gaps: Gaps, theta: Array) -> Array:
        """The covariance (n, m), without the means for a gradient."""
        ...

    def variance(self, theta: Array) -> float:
        """The covariance of a point with itself."""
        ...


@dataclass(frozen=True)
class Additive:
    """E1 + s E2 with z_p = a_p k_p, E1 = sum_p z_p and E2 = sum_(p<q) z_p z_q.

    k_p is Matern 3/2 of the gap (Duvenaud, Nickisch and Rasmussen,
    2011, "Additive Gaussian processes"; E2 by Newton-Girard). On logarithms it says that every
    parameter multiplies the speed by its own factor, and that pairs correct it. It learns smooth
    landscapes from the fewest trials and is too sure of itself on rugged ones.

    theta = amplitudes (P), length scales (P), pair scale.
    """

    def prior(self, parameters: int) -> tuple[Array, Array]:
        terms = [(-2.0, 1.0)] * parameters + [(0.0, 0.5)] * parameters + [(0.0, 1.0)]
        center, width = np.array(terms).T
        return center, width

    def forward(self, gaps: Array, theta: Array) -> tuple[Array, Backward]:
        amplitude, length, pair = _split(theta)
        scaled = SQRT3 * gaps * np.exp(-length)[:, None, None]
        decay = np.exp(-scaled) * np.exp(amplitude)[:, None, None]
        z, slope = (1 + scaled) * decay, scaled**2 * decay
        first, second = _orders(z)

        def backward(weight: Array) -> Array:
            outer = weight * (1 + pair * first)
            by_amplitude = _dot(z, outer) - pair * np.einsum("pij,pij,ij->p", z, z, weight)
            by_length = _dot(slope, outer) - pair * np.einsum("pij,pij,ij->p", slope, z, weight)
            return np.concatenate([by_amplitude, by_length, [pair * np.sum(second * weight)]])

        return first + pair * second, backward

    def cross(self, gaps: Gaps, theta: Array) -> Array:
        amplitude, length, pair = _split(theta)
        shape = len(gaps.which[0]), gaps.rows[0].shape[1]
        first, squares = np.zeros(shape), np.zeros(shape)
        for rows, which, a, scale in zip(
            gaps.rows, gaps.which, np.exp(amplitude), SQRT3 * np.exp(-length), strict=True
        ):
            scaled = scale * rows
            z = (a * (1 + scaled) * np.exp(-scaled))[which]
            first += z
            z *= z
            squares += z
        return first + (0.5 * pair) * (first**2 - squares)

    def variance(self, theta: Array) -> float:
        amplitude, _, pair = _split(theta)
        a = np.exp(amplitude)
        return float(a.sum() + pair * 0.5 * (a.sum() ** 2 - (a**2).sum()))


@dataclass(frozen=True)
class Product:
    """s exp(-sum_p w_p d_p): one relevance per parameter, all orders of interaction at once.

    d_p is the gap, 1 between categories and up to 1.5 on an ordinal. Well calibrated where the
    landscape is rugged.

    theta = relevances (P), scale.
    """

    def prior(self, parameters: int) -> tuple[Array, Array]:
        center, width = np.array([(-2.0, 1.0)] * parameters + [(1.0, 1.0)]).T
        return center, width

    def forward(self, gaps: Array, theta: Array) -> tuple[Array, Backward]:
        distance = _length(gaps)
        relevance = np.exp(theta[:-1])
        covariance = np.exp(theta[-1] - np.tensordot(relevance, distance, axes=1))

        def backward(weight: Array) -> Array:
            weighted = covariance * weight
            return np.append(-relevance * _dot(distance, weighted), weighted.sum())

        return covariance, backward

    def cross(self, gaps: Gaps, theta: Array) -> Array:
        total = np.zeros((len(gaps.which[0]), gaps.rows[0].shape[1]))
        for rows, which, relevance in zip(gaps.rows, gaps.which, np.exp(theta[:-1]), strict=True):
            total -= (relevance * _length(rows))[which]
        total += theta[-1]
        covariance: Array = np.exp(total, out=total)
        return covariance

    def variance(self, theta: Array) -> float:
        return float(np.exp(theta[-1]))


def distances(left: Array, right: Array, categorical: NDArray[np.bool_]) -> Gaps:
    """The gaps between codes (n, P) and (m, P).

    Categories lie at the corners of a simplex, an inactive one beyond its middle, an inactive
    ordinal at the middle of its interval: a branch that is not taken says nothing, and switching
    a parent must not count once more for each of its children.
    """
    rows, which = [], []
    for column, chosen in enumerate(categorical):
        values, at = np.unique(left[:, column], return_inverse=True)
        apart = _between_choices if chosen else _between_ordinals
        rows.append(apart(values[:, None], right[:, column]))
        which.append(at)
    return Gaps(tuple(rows), tuple(which))


def _between_choices(a: Array, b: Array) -> Array:
    no_a, no_b = np.isnan(a), np.isnan(b)
    gap: Array = np.where(no_a & no_b | (a == b), 0.0, np.where(no_a | no_b, ABSENT, OTHER))
    return gap


def _between_ordinals(a: Array, b: Array) -> Array:
    gap: Array = np.abs(np.nan_to_num(a, nan=0.5) - np.nan_to_num(b, nan=0.5))
    return gap


def _length(gaps: Array) -> Array:
    distance: Array = np.where(gaps > 1.0, gaps / OTHER, 1.5 * gaps)
    return distance


def _split(theta: Array) -> tuple[Array, Array, float]:
    half = len(theta) // 2
    return theta[:half], theta[half:-1], float(np.exp(theta[-1]))


def _orders(z: Array) -> tuple[Array, Array]:
    first = z.sum(axis=0)
    return first, 0.5 * (first**2 - np.einsum("pij,pij->ij", z, z))


def _dot(stack: Array, weight: Array) -> Array:
    total: Array = stack.reshape(len(stack), -1) @ weight.ravel()
    return total
