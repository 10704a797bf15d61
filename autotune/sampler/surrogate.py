"""Gaussian processes over the gains of one objective, fitted by maximum a posteriori.

Two kernels are fitted and their predictions mixed evenly: the additive one learns faster, the
product is honest where interactions rule, and where they disagree the mixture is unsure. Written
with numpy and scipy only: at 40 trials a fit is some dozen evaluations of a 40 x 40 likelihood.
Above ``MAX_FITTED`` observations a subset gives the hyperparameters, and above ``MAX_POINTS``
the caller selects what to condition on, so that an ask stays bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.sampler.encoding import Array
from autotune.sampler.kernel import Additive, Backward, Kernel, Product, distances

CONSTANT = 4.0  # prior variance of the mean, in units of the gains' variance
NOISE = (-5.0, 1.5)  # prior of the log noise variance, in the same units
JITTER = 1e-8
MAX_POINTS = 160  # conditioned on
MAX_FITTED = 80  # of them used for the hyperparameters
KERNELS: tuple[Kernel, ...] = (Additive(), Product())


@dataclass(frozen=True)
class Points:
    """What a process is conditioned on, standardised.

    codes (n, P), target (n,), extra (n,) known noise variance, weight (n,) in (0, 1]: how much an
    observation resembles this study, 1 for its own.
    """

    codes: Array
    target: Array
    extra: Array
    weight: Array

    def only(self, rows: NDArray[np.int64]) -> Points:
        return Points(self.codes[rows], self.target[rows], self.extra[rows], self.weight[rows])

    @property
    def share(self) -> Array:
        """Correlation between observations: w_i w_j across studies, 1 within one."""
        w = self.weight
        return np.where(w[:, None] == w[None, :], 1.0, w[:, None] * w[None, :])


@dataclass(frozen=True)
class Likelihood:
    """The negative log posterior of a kernel's hyperparameters and noise, with its gradient."""

    kernel: Kernel
    gaps: Array
    points: Points

    def __call__(self, vector: Array) -> tuple[float, Array]:
        shape, backward = self.kernel.forward(self.gaps, vector[:-1])
        share = self.points.share
        noise = float(np.exp(vector[-1]))
        try:
            factor = np.linalg.cholesky(_covariance(shape, share, noise, self.points))
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(vector)
        inverse = inverse_from(factor)
        alpha = inverse @ self.points.target
        value = 0.5 * self.points.target @ alpha + np.log(np.diag(factor)).sum()
        slope = self._gradient(backward, share, noise, 0.5 * (inverse - np.outer(alpha, alpha)))
        penalty, pull = self._log_prior(vector)
        return float(value + penalty), slope + pull

    @staticmethod
    def _gradient(backward: Backward, share: Array, noise: float, weight: Array) -> Array:
        return np.append(backward(weight * share), noise * np.trace(weight))

    def _log_prior(self, vector: Array) -> tuple[float, Array]:
        center, width = self.prior()
        offset = (vector - center) / width
        return 0.5 * float(offset @ offset), offset / width

    def prior(self) -> tuple[Array, Array]:
        center, width = self.kernel.prior(len(self.gaps))
        return np.append(center, NOISE[0]), np.append(width, NOISE[1])


def _covariance(shape: Array, share: Array, noise: float, points: Points) -> Array:
    covariance = shape * share + CONSTANT
    covariance[np.diag_indices_from(covariance)] += noise + points.extra + JITTER
    return covariance


def inverse_from(factor: NDArray[np.floating[Any]]) -> Array:
    """The inverse of a symmetric matrix from its lower Cholesky factor."""
    from scipy.linalg.lapack import dpotri

    inverse, _ = dpotri(factor, lower=1)
    full: Array = np.tril(inverse) + np.tril(inverse, -1).T
    return full


@dataclass(frozen=True)
class Process:
    """A fitted process with one kernel, in standardised gains."""

    kernel: Kernel
    theta: Array
    noise: float
    points: Points
    alpha: Array
    inverse: Array

    def predict(self, gaps: Array) -> tuple[Array, Array]:
        """Mean and variance, each (n,), from the gaps to its points; noise not included."""
        covariance = self.kernel.cross(gaps, self.theta) * self.points.weight + CONSTANT
        explained = np.einsum("ij,ij->i", covariance @ self.inverse, covariance)
        prior = self.kernel.variance(self.theta) + CONSTANT
        return covariance @ self.alpha, np.maximum(prior - explained, 1e-10)

    def joint(self, gaps: Array, among: Array) -> tuple[Array, Array]:
        """Mean (n,) and covariance (n, n), from gaps to its points and among the new ones."""
        covariance = self.kernel.cross(gaps, self.theta) * self.points.weight + CONSTANT
        prior = self.kernel.cross(among, self.theta) + CONSTANT
        return covariance @ self.alpha, prior - covariance @ self.inverse @ covariance.T

    def leave_one_out(self) -> tuple[Array, Array]:
        """Each target predicted from the others: mean, variance (Rasmussen, eq. 5.12)."""
        diagonal = np.diag(self.inverse)
        return self.points.target - self.alpha / diagonal, 1 / diagonal

    def conditioned_on(self, points: Points, gaps: Array) -> Process:
        """The same hyperparameters on other points."""
        shape = self.kernel.cross(gaps, self.theta)
        covariance = _covariance(shape, points.share, self.noise, points)
        inverse = inverse_from(np.linalg.cholesky(covariance))
        return replace(self, points=points, alpha=inverse @ points.target, inverse=inverse)


@dataclass(frozen=True)
class Surrogate:
    """An even mixture of processes for one objective, in gains."""

    processes: tuple[Process, ...]
    categorical: NDArray[np.bool_]
    center: float
    scale: float

    @property
    def codes(self) -> Array:
        return self.processes[0].points.codes

    def predict(self, codes: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the gain, each (n,), noise not included."""
        return self.predict_from(distances(codes, self.codes, self.categorical))

    def predict_from(self, gaps: Array) -> tuple[Array, Array]:
        """The same from ``distances(codes, self.codes)``, which objectives share."""
        mean, variance = _mixed([process.predict(gaps) for process in self.processes])
        return self.center + self.scale * mean, self.scale * np.sqrt(variance)

    def leave_one_out(self) -> tuple[Array, Array]:
        """Mean and sd of every observed gain as predicted from the others."""
        mean, variance = _mixed([process.leave_one_out() for process in self.processes])
        return self.center + self.scale * mean, self.scale * np.sqrt(variance)

    def believing(self, codes: Array) -> Surrogate:
        """With further points (m, P) that turned out exactly as predicted."""
        old = self.processes[0].points
        mean, _ = self.predict(codes)
        more = len(codes)
        points = Points(
            np.concatenate([old.codes, codes]),
            np.concatenate([old.target, (mean - self.center) / self.scale]),
            np.concatenate([old.extra, np.zeros(more)]),
            np.concatenate([old.weight, np.ones(more)]),
        )
        gaps = distances(points.codes, points.codes, self.categorical)
        return replace(
            self, processes=tuple(one.conditioned_on(points, gaps) for one in self.processes)
        )


def _mixed(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    means = np.stack([mean for mean, _ in parts])
    variances = np.stack([variance for _, variance in parts])
    return means.mean(axis=0), variances.mean(axis=0) + means.var(axis=0)


def fit(
    codes: Array,
    gains: Array,
    noise_sd: Array,
    weight: Array,
    categorical: NDArray[np.bool_],
    iterations: int = 60,
) -> Surrogate:
    """Fits one objective: codes (n, P), gains (n,), noise_sd (n,) or NaN, weight (n,) in (0, 1].

    The noise of a foreign observation grows as its weight falls.
    """
    center, scale = float(np.mean(gains)), float(np.std(gains)) or 1.0
    extra = np.nan_to_num(noise_sd / scale) ** 2 + 0.1 * (1 / weight - 1)
    points = Points(codes, (gains - center) / scale, extra, weight)
    gaps = distances(codes, codes, categorical)
    processes = tuple(_fit(kernel, gaps, points, iterations) for kernel in KERNELS)
    return Surrogate(processes, categorical, center, scale)


def _fit(kernel: Kernel, gaps: Array, points: Points, iterations: int) -> Process:
    from scipy.optimize import minimize

    some = _spread_out(points)
    likelihood = Likelihood(kernel, gaps[:, some[:, None], some], points.only(some))
    start, _ = likelihood.prior()
    bounds = [(-9.0, 5.0)] * len(start)
    options = {"maxiter": iterations}
    found = minimize(likelihood, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    theta, noise = found.x[:-1], float(np.exp(found.x[-1]))
    unfitted = Process(kernel, theta, noise, points, points.target, gaps[0])
    return unfitted.conditioned_on(points, gaps)


def _spread_out(points: Points) -> NDArray[np.int64]:
    """Indices for fitting: all, or evenly spread over the ranking, so that no range is missing."""
    count = len(points.target)
    if count <= MAX_FITTED:
        return np.arange(count)
    ranking = np.argsort(points.target, kind="stable")
    return np.sort(ranking[np.linspace(0, count - 1, MAX_FITTED).round().astype(np.int64)])
