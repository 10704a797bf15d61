"""A Gaussian process per objective over the gains, fitted by maximum a posteriori.

Written with numpy and scipy only: at 40 trials one fit is some hundred evaluations of a 40 x 40
likelihood. Above ``MAX_FIT`` observations the hyperparameters come from a subset and above
``MAX_POINTS`` so does the prediction, so that an ask stays bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.sampler.encoding import Array
from autotune.sampler.kernel import Hyper, combine, cross, distances, parts, self_variance

CONSTANT = 4.0  # prior variance of the mean, in units of the gains' variance
JITTER = 1e-8

# Prior means and standard deviations of the log hyperparameters, for gains of unit variance.
AMPLITUDE = (-3.0, 1.5)
LENGTH = (0.0, 0.7)
PAIR = (0.0, 1.5)
NOISE = (-5.0, 1.5)


@dataclass(frozen=True)
class Likelihood:
    """The negative log posterior of the hyperparameters, with its gradient."""

    gaps: Array
    target: Array
    extra: Array  # known noise variance per observation, added to the fitted one
    constant: Array  # (n, n) covariance that no hyperparameter changes

    def __call__(self, vector: Array) -> tuple[float, Array]:
        hyper = Hyper.unpack(vector)
        z, slope = parts(self.gaps, hyper)
        kernel, first, second = combine(z, hyper)
        noise = np.exp(hyper.noise)
        covariance = kernel + self.constant
        covariance[np.diag_indices_from(covariance)] += noise + self.extra + JITTER
        try:
            factor = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(vector)
        inverse = inverse_from(factor)
        alpha = inverse @ self.target
        weight = 0.5 * (inverse - np.outer(alpha, alpha))
        value = 0.5 * self.target @ alpha + np.log(np.diag(factor)).sum()
        pair = np.exp(hyper.pair)
        outer = weight * (1 + pair * first)
        gradient = Hyper(
            amplitude=_sum(z, outer) - pair * np.einsum("pij,pij,ij->p", z, z, weight),
            length=_sum(slope, outer) - pair * np.einsum("pij,pij,ij->p", slope, z, weight),
            pair=float(pair * np.sum(second * weight)),
            noise=float(noise * np.trace(weight)),
        ).pack()
        penalty, pull = _log_prior(vector)
        return float(value + penalty), gradient + pull


def _sum(stack: Array, weight: Array) -> Array:
    total: Array = stack.reshape(len(stack), -1) @ weight.ravel()
    return total


def inverse_from(factor: NDArray[np.floating[Any]]) -> Array:
    """The inverse of a symmetric matrix from its lower Cholesky factor."""
    from scipy.linalg.lapack import dpotri

    inverse, _ = dpotri(factor, lower=1)
    full: Array = np.tril(inverse) + np.tril(inverse, -1).T
    return full


def _log_prior(vector: Array) -> tuple[float, Array]:
    center, width = _prior(len(vector))
    offset = (vector - center) / width
    return 0.5 * float(offset @ offset), offset / width


def _prior(size: int) -> tuple[Array, Array]:
    half = (size - 2) // 2
    terms = [AMPLITUDE] * half + [LENGTH] * half + [PAIR, NOISE]
    center, width = np.array(terms).T
    return center, width


@dataclass(frozen=True)
class Process:
    """A fitted process for one objective. Predictions are of gains, noise not included."""

    codes: Array
    categorical: NDArray[np.bool_]
    hyper: Hyper
    center: float
    scale: float
    alpha: Array
    inverse: Array
    source: Array  # (n,) weight of each observation, 1 for the study's own
    extra: Array  # (n,) known noise variance, standardised
    target: Array  # (n,) standardised gains

    def predict(self, codes: Array) -> tuple[Array, Array]:
        """Mean and standard deviation, each of shape (n,)."""
        return self.predict_from(distances(codes, self.codes, self.categorical))

    def predict_from(self, gaps: Array) -> tuple[Array, Array]:
        """The same from ``distances(codes, self.codes)``, which objectives may share."""
        kernel = cross(gaps, self.hyper) * self.source + CONSTANT
        mean = kernel @ self.alpha
        explained = np.einsum("ij,ij->i", kernel @ self.inverse, kernel)
        variance = np.maximum(self_variance(self.hyper) + CONSTANT - explained, 1e-10)
        return self.center + self.scale * mean, self.scale * np.sqrt(variance)

    @property
    def noise_sd(self) -> float:
        return float(self.scale * np.exp(self.hyper.noise / 2))

    def leave_one_out(self) -> tuple[Array, Array]:
        """Mean and sd of each observation predicted from the others (Rasmussen, eq. 5.12)."""
        diagonal = np.diag(self.inverse)
        residual = self.alpha / diagonal
        return (
            self.center + self.scale * (self.target - residual),
            self.scale / np.sqrt(diagonal),
        )


def fit(
    codes: Array,
    gains: Array,
    noise_sd: Array,
    weight: Array,
    categorical: NDArray[np.bool_],
    iterations: int = 60,
) -> Process:
    """Fits one objective: codes (n, P), gains (n,), noise_sd (n,) or NaN, weight (n,) in (0, 1]."""
    from scipy.optimize import minimize

    center, scale = float(np.mean(gains)), float(np.std(gains)) or 1.0
    target = (gains - center) / scale
    known = np.nan_to_num(noise_sd / scale) ** 2
    extra = known + (1 / weight - 1) * 0.1
    gaps = distances(codes, codes, categorical)
    share = _source_share(weight)
    likelihood = Likelihood(gaps, target, extra, np.full(gaps.shape[1:], CONSTANT))
    start, _ = _prior(2 * codes.shape[1] + 2)
    result = minimize(
        likelihood,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(-9.0, 4.0)] * len(start),
        options={"maxiter": iterations},
    )
    hyper = Hyper.unpack(result.x)
    z, _ = parts(gaps, hyper)
    covariance = combine(z, hyper)[0] * share + CONSTANT
    covariance[np.diag_indices_from(covariance)] += np.exp(hyper.noise) + extra + JITTER
    inverse = inverse_from(np.linalg.cholesky(covariance))
    return Process(
        codes, categorical, hyper, center, scale, inverse @ target, inverse, weight, extra, target
    )


def _source_share(weight: Array) -> Array:
    """Correlation between observations of different studies: w_i w_j, and 1 within a study."""
    return np.where(weight[:, None] == weight[None, :], 1.0, weight[:, None] * weight[None, :])


def extended(process: Process, codes: Array, gains: Array) -> Process:
    """``process`` with further observations (m, P) and (m,) and the same hyperparameters."""
    every = np.concatenate([process.codes, codes])
    gaps = distances(every, every, process.categorical)
    source = np.concatenate([process.source, np.ones(len(codes))])
    z, _ = parts(gaps, process.hyper)
    covariance = combine(z, process.hyper)[0] * _source_share(source) + CONSTANT
    extra = np.concatenate([process.extra, np.zeros(len(codes))])
    covariance[np.diag_indices_from(covariance)] += np.exp(process.hyper.noise) + extra + JITTER
    target = np.concatenate([process.target, (gains - process.center) / process.scale])
    inverse = inverse_from(np.linalg.cholesky(covariance))
    return replace(
        process,
        codes=every,
        alpha=inverse @ target,
        inverse=inverse,
        source=source,
        extra=extra,
        target=target,
    )
