"""Failures of size (memory): a boundary through the ordinals, not a culprit among the values.

A Gaussian process classifier with a probit likelihood and Laplace's approximation (Rasmussen and
Williams, 2006, algorithms 3.1 and 3.2). The latent load is linear in the ordinals, plus a
correction per parameter and a term per category; the amplitudes are those of highest evidence
among a few, found parameter by parameter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.sampler.encoding import Array
from autotune.sampler.evidence import inverse_from
from autotune.sampler.memo import Memo
from autotune.sampler.subset import settled

CONSTANT = 9.0
NEWTON_STEPS = 8
SCALES = (1.0, 3.0, 9.0, 27.0)
BEND = 0.15  # variance of the per-parameter correction, relative to the linear term
CATEGORY = 0.15  # variance of a category, relative to an ordinal's
CONVERGED = 1e-6  # largest change of a latent load in Newton's last step
MAX_POINTS = 120
MAX_SEARCHED = 60  # points up to which each ordinal's amplitude is searched


@dataclass(frozen=True)
class Capacity:
    """A fitted boundary. ``probability`` is that of fitting in."""

    codes: Array
    categorical: NDArray[np.bool_]
    variances: Array
    gradient: Array
    middle: Array  # (K + W^-1)^-1

    def probability(self, codes: Array) -> Array:
        """Shape (n,), in (0, 1)."""
        from scipy.special import ndtr

        cross = _cross(codes, self.codes, self.categorical, self.variances)
        mean = cross @ self.gradient
        own = _self_kernel(codes, self.categorical, self.variances)
        variance = np.maximum(own - np.einsum("ij,ij->i", cross @ self.middle, cross), 0.0)
        fits: Array = ndtr(-mean / np.sqrt(1 + variance))
        return fits


def fit(
    codes: Array,
    failed: NDArray[np.bool_],
    weight: Array,
    categorical: NDArray[np.bool_],
    memo: Memo,
) -> Capacity:
    """codes (n, axes) of launches that got as far as needing memory; failed (n,), weight (n,).

    ``memo`` remembers the amplitudes, which follow from the first ``settled(n)`` launches.
    """
    decisive = settled(len(codes))
    basis = _recent(failed[:decisive])
    parts = codes[basis], failed[basis], weight[basis], categorical
    variances = memo.of(lambda: _amplitudes(*parts), "capacity", *parts)
    recent = _recent(failed)
    codes, labels = codes[recent], np.where(failed[recent], 1.0, -1.0)
    covariance = _cross(codes, codes, categorical, variances)
    _, gradient, middle = _laplace(covariance, labels, weight[recent])
    return Capacity(codes, categorical, variances, gradient, middle)


def _amplitudes(
    codes: Array, failed: NDArray[np.bool_], weight: Array, categorical: NDArray[np.bool_]
) -> Array:
    labels = np.where(failed, 1.0, -1.0)
    parts = _parts(codes, codes, categorical)
    relative = np.where(categorical, CATEGORY, 1.0)
    options = [relative * scale for scale in SCALES]
    evidence, variances = max(
        ((_laplace(_kernel(parts, one), labels, weight)[0], one) for one in options),
        key=lambda e: e[0],
    )
    searched: Iterable[int] = np.flatnonzero(~categorical) if len(codes) <= MAX_SEARCHED else []
    for column in searched:
        for factor in (0.1, 10.0):
            tried = variances.copy()
            tried[column] *= factor
            better = _laplace(_kernel(parts, tried), labels, weight)[0] - abs(np.log(factor)) * 0.2
            if better > evidence:
                evidence, variances = better, tried
    return variances


def _recent(failed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The latest of either outcome: a sampler that has learned sees few failures late."""
    half = MAX_POINTS // 2
    bad, good = np.flatnonzero(failed)[-half:], np.flatnonzero(~failed)
    return np.sort(np.concatenate([bad, good[-(MAX_POINTS - len(bad)) :]]))


def _parts(left: Array, right: Array, categorical: NDArray[np.bool_]) -> Array:
    """Per parameter, (P, n, m); an inactive ordinal needs as little as its lowest value."""
    a, b = left.T[:, :, None], right.T[:, None, :]
    zero_a, zero_b = np.nan_to_num(a), np.nan_to_num(b)
    bend = np.exp(-3.0 * np.abs(zero_a - zero_b))
    same = (a == b).astype(np.float64)
    return np.where(categorical[:, None, None], same, zero_a * zero_b + BEND * bend)


def _kernel(parts: Array, variances: Array) -> Array:
    total: Array = np.tensordot(variances, parts, axes=1) + CONSTANT
    return total


def _cross(left: Array, right: Array, categorical: NDArray[np.bool_], variances: Array) -> Array:
    """The same as ``_kernel`` of ``_parts``; each distinct value is computed once."""
    total = np.full((len(left), len(right)), CONSTANT)
    for column, variance in enumerate(variances):
        values, which = np.unique(left[:, column], return_inverse=True)
        one = slice(column, column + 1)
        part = _parts(values[:, None], right[:, one], categorical[one])[0]
        total += (variance * part)[which]
    return total


def _self_kernel(codes: Array, categorical: NDArray[np.bool_], variances: Array) -> Array:
    zero = np.nan_to_num(codes)
    own = np.where(categorical, ~np.isnan(codes), zero**2 + BEND)
    total: Array = own @ variances + CONSTANT
    return total


def _laplace(kernel: Array, labels: Array, weight: Array) -> tuple[float, Array, Array]:
    """Evidence, gradient of the likelihood at the mode (n,), and (K + W^-1)^-1 (n, n).

    A launch of weight (n,) w counts as w launches.
    """
    latent = np.zeros(len(labels))
    for _ in range(NEWTON_STEPS):
        _, gradient, curvature = _probit(latent, labels, weight)
        middle = _middle(kernel, curvature)[0]
        right = curvature * latent + gradient
        weights = right - middle @ (kernel @ right)
        before, latent = latent, kernel @ weights
        if np.abs(latent - before).max() < CONVERGED:
            break
    value, gradient, curvature = _probit(latent, labels, weight)
    middle, half_log = _middle(kernel, curvature)
    return float(value - 0.5 * weights @ latent - half_log), gradient, middle


def _middle(kernel: Array, curvature: Array) -> tuple[Array, float]:
    root = np.sqrt(curvature)
    inner = np.eye(len(root)) + root[:, None] * kernel * root
    factor = np.linalg.cholesky(inner)
    inverse = inverse_from(factor)
    return root[:, None] * inverse * root, float(np.log(np.diag(factor)).sum())


def _probit(latent: Array, labels: Array, weight: Array) -> tuple[float, Array, Array]:
    from scipy.special import log_ndtr

    agreed = labels * latent
    log_likelihood = log_ndtr(agreed)
    ratio = np.exp(-0.5 * agreed**2 - log_likelihood) / np.sqrt(2 * np.pi)
    slope, curvature = labels * ratio, ratio * (ratio + agreed)
    return float(weight @ log_likelihood), weight * slope, weight * curvature
