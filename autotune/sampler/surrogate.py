"""Gaussian processes over the gains of one objective, fitted by maximum a posteriori.

Two kernels are fitted and their predictions mixed evenly: the additive one learns faster, the
product is honest where interactions rule, and where they disagree the mixture is unsure. Written
with numpy and scipy only: at 40 trials a fit is some dozen evaluations of a 40 x 40 likelihood.
Of many observations, the first ones give the hyperparameters (a fit that can be remembered) and
the caller selects what to condition on, so that an ask stays bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.sampler.encoding import Array
from autotune.sampler.kernel import Additive, Backward, Gaps, Kernel, Product, distances
from autotune.sampler.memo import Memo

CONSTANT = 4.0  # prior variance of the mean, in units of the gains' variance
NOISE = (-5.0, 1.5)  # prior of the log noise variance, in the same units
JITTER = 1e-8
BOUNDS = (-9.0, 5.0)  # of every hyperparameter
ITERATIONS = 60  # of the search for the most probable ones, at most
MAX_FITTED = 80  # observations used for the hyperparameters
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
    """The negative log posterior of a kernel's hyperparameters and noise, with its gradient.

    ``gaps`` (P, n, n) are those among the points.
    """

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

    def predict(self, gaps: Gaps) -> tuple[Array, Array]:
        """Mean and variance, each (n,), from the gaps to its points; noise not included."""
        covariance = self.kernel.cross(gaps, self.theta) * self.points.weight + CONSTANT
        explained = np.einsum("ij,ij->i", covariance @ self.inverse, covariance)
        prior = self.kernel.variance(self.theta) + CONSTANT
        return covariance @ self.alpha, np.maximum(prior - explained, 1e-10)

    def joint(self, gaps: Gaps, among: Gaps) -> tuple[Array, Array]:
        """Mean (n,) and covariance (n, n), from gaps to its points and among the new ones."""
        covariance = self.kernel.cross(gaps, self.theta) * self.points.weight + CONSTANT
        prior = self.kernel.cross(among, self.theta) + CONSTANT
        return covariance @ self.alpha, prior - covariance @ self.inverse @ covariance.T

    def leave_one_out(self) -> tuple[Array, Array]:
        """Each target predicted from the others: mean, variance (Rasmussen, eq. 5.12)."""
        diagonal = np.diag(self.inverse)
        return self.points.target - self.alpha / diagonal, 1 / diagonal

    def extended(self, target: Array, points: Points, gaps: Gaps, among: Gaps) -> Process:
        """On ``points``, the last m of which are new and came out as ``target`` (m,).

        ``gaps`` are those from the new points to the old ones, ``among`` those among the new.
        """
        count, more = len(self.points.target), len(target)
        beside = self.kernel.cross(gaps, self.theta) * self.points.weight + CONSTANT
        own = self.kernel.cross(among, self.theta) + CONSTANT
        own[np.diag_indices_from(own)] += self.noise + JITTER
        through = beside @ self.inverse
        lower = inverse_from(np.linalg.cholesky(own - through @ beside.T))
        corner = lower @ through
        inverse = np.empty((count + more, count + more))
        inverse[:count, :count] = self.inverse + through.T @ corner
        inverse[count:, :count], inverse[:count, count:] = -corner, -corner.T
        inverse[count:, count:] = lower
        points = replace(points, target=np.concatenate([self.points.target, target]))
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

    def predict_from(self, gaps: Gaps) -> tuple[Array, Array]:
        """The same from ``distances(codes, self.codes)``, which objectives share."""
        mean, variance = _mixed([process.predict(gaps) for process in self.processes])
        return self.center + self.scale * mean, self.scale * np.sqrt(variance)

    def leave_one_out(self) -> tuple[Array, Array]:
        """Mean and sd of every observed gain as predicted from the others."""
        mean, variance = _mixed([process.leave_one_out() for process in self.processes])
        return self.center + self.scale * mean, self.scale * np.sqrt(variance)

    def believing(self, codes: Array) -> Surrogate:
        """With further points (m, P) that turned out exactly as predicted."""
        gaps = distances(codes, self.codes, self.categorical)
        among = distances(codes, codes, self.categorical)
        target = (self.predict_from(gaps)[0] - self.center) / self.scale
        old, more = self.processes[0].points, len(codes)
        points = Points(
            np.concatenate([old.codes, codes]),
            np.concatenate([old.target, target]),
            np.concatenate([old.extra, np.zeros(more)]),
            np.concatenate([old.weight, np.ones(more)]),
        )
        processes = [one.extended(target, points, gaps, among) for one in self.processes]
        return replace(self, processes=tuple(processes))


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
    rows: Sequence[int] | NDArray[np.int64] | None = None,
    decisive: int | None = None,
    memo: Memo | None = None,
) -> Surrogate:
    """Fits one objective: codes (n, P), gains (n,), noise_sd (n,) or NaN, weight (n,) in (0, 1].

    The first ``decisive`` observations (all) give scale and hyperparameters, which ``memo``
    remembers; the model is conditioned on ``rows`` (all). The noise of a foreign observation
    grows as its weight falls.
    """
    decisive = len(gains) if decisive is None else decisive
    center, scale = float(np.mean(gains[:decisive])), float(np.std(gains[:decisive])) or 1.0
    extra = np.nan_to_num(noise_sd / scale) ** 2 + 0.1 * (1 / weight - 1)
    every = Points(codes, (gains - center) / scale, extra, weight)
    points = every if rows is None else every.only(np.asarray(rows, dtype=np.int64))
    basis = every.only(_spread_out(every.target[:decisive]))
    gaps = distances(points.codes, points.codes, categorical)
    found = [_optimum(kernel, basis, categorical, memo or Memo()) for kernel in KERNELS]
    processes = [
        _condition(kernel, vector, points, gaps)
        for kernel, vector in zip(KERNELS, found, strict=True)
    ]
    return Surrogate(tuple(processes), categorical, center, scale)


def _optimum(kernel: Kernel, points: Points, categorical: NDArray[np.bool_], memo: Memo) -> Array:
    """The kernel's hyperparameters and the log noise that are most probable."""

    def search() -> Array:
        from scipy.optimize import minimize

        gaps = distances(points.codes, points.codes, categorical).dense
        likelihood = Likelihood(kernel, gaps, points)
        start, _ = likelihood.prior()
        bounds, options = [BOUNDS] * len(start), {"maxiter": ITERATIONS}
        found = minimize(
            likelihood, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
        )
        best: Array = found.x
        return best

    parts = (points.codes, points.target, points.extra, points.weight)
    return memo.of(search, type(kernel).__name__, *parts)


def _condition(kernel: Kernel, vector: Array, points: Points, gaps: Gaps) -> Process:
    theta, noise = vector[:-1], float(np.exp(vector[-1]))
    covariance = _covariance(kernel.cross(gaps, theta), points.share, noise, points)
    inverse = inverse_from(np.linalg.cholesky(covariance))
    return Process(kernel, theta, noise, points, inverse @ points.target, inverse)


def _spread_out(target: Array) -> NDArray[np.int64]:
    """Indices for fitting: all, or evenly spread over the ranking, so that no range is missing."""
    count = len(target)
    if count <= MAX_FITTED:
        return np.arange(count)
    ranking = np.argsort(target, kind="stable")
    return np.sort(ranking[np.linspace(0, count - 1, MAX_FITTED).round().astype(np.int64)])
