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

import numpy as np
from numpy.typing import NDArray

from autotune.sampler.encoding import Array
from autotune.sampler.evidence import (
    CONSTANT,
    JITTER,
    STRENGTH,
    Likelihood,
    Points,
    covariance_of,
    inverse_from,
    of_strengths,
    parts,
)
from autotune.sampler.kernel import Additive, Gaps, Kernel, Product, distances
from autotune.sampler.memo import Memo

BOUNDS = (-9.0, 5.0)  # of every hyperparameter
ITERATIONS = 60  # of the search for the most probable ones, at most
MAX_FITTED = 80  # observations used for the hyperparameters
KERNELS: tuple[Kernel, ...] = (Additive(), Product())


@dataclass(frozen=True)
class Process:
    """A fitted process with one kernel, in standardised gains."""

    kernel: Kernel
    theta: Array
    noise: float
    likeness: Array
    points: Points
    alpha: Array
    inverse: Array

    def predict(self, gaps: Gaps, trend: Array) -> tuple[Array, Array]:
        """Mean and variance, each (n,), from the gaps to its points; noise not included."""
        covariance = self._with_points(gaps, trend)
        explained = np.einsum("ij,ij->i", covariance @ self.inverse, covariance)
        prior = self.kernel.variance(self.theta) + CONSTANT
        prior = prior + STRENGTH**2 * np.sum(trend**2, axis=1)
        return covariance @ self.alpha, np.maximum(prior - explained, 1e-10)

    def joint(self, gaps: Gaps, among: Gaps, trend: Array) -> tuple[Array, Array]:
        """Mean (n,) and covariance (n, n), from gaps to its points and among the new ones."""
        covariance = self._with_points(gaps, trend)
        prior = self.kernel.cross(among, self.theta) + CONSTANT + of_strengths(trend, trend)
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
        trend = points.trend[count:]
        beside = self._with_points(gaps, trend)
        own = self.kernel.cross(among, self.theta) + CONSTANT + of_strengths(trend, trend)
        own[np.diag_indices_from(own)] += self.noise + JITTER
        through = beside @ self.inverse
        lower = inverse_from(np.linalg.cholesky(own - through @ beside.T))
        corner = lower @ through
        inverse = np.empty((count + more, count + more))
        inverse[:count, :count] = self.inverse + through.T @ corner
        inverse[count:, :count], inverse[:count, count:] = -corner, -corner.T
        inverse[count:, count:] = lower
        points = replace(points, target=np.concatenate([self.points.target, target]))
        likeness = np.concatenate([self.likeness, np.ones(more)])
        alpha = inverse @ points.target
        return replace(self, likeness=likeness, points=points, alpha=alpha, inverse=inverse)

    def _with_points(self, gaps: Gaps, trend: Array) -> Array:
        """The covariance of new points of this study with those of the process."""
        own = self.points.study == 0
        shape = self.kernel.cross(gaps, self.theta) * self.likeness
        covariance: Array = shape + CONSTANT * own + of_strengths(trend, self.points.trend)
        return covariance


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

    def predict(self, codes: Array, trend: Array | None = None) -> tuple[Array, Array]:
        """Mean and standard deviation of the gain, each (n,), noise not included."""
        return self.predict_from(distances(codes, self.codes, self.categorical), trend)

    def predict_from(self, gaps: Gaps, trend: Array | None = None) -> tuple[Array, Array]:
        """The same from ``distances(codes, self.codes)``, which objectives share."""
        count = len(gaps.which[0])
        steps = np.empty((count, 0)) if trend is None else trend / self.scale
        mean, variance = _mixed([process.predict(gaps, steps) for process in self.processes])
        return self.center + self.scale * mean, self.scale * np.sqrt(variance)

    def leave_one_out(self) -> tuple[Array, Array]:
        """Mean and sd of every observed gain as predicted from the others."""
        mean, variance = _mixed([process.leave_one_out() for process in self.processes])
        return self.center + self.scale * mean, self.scale * np.sqrt(variance)

    def believing(self, codes: Array, trend: Array | None = None) -> Surrogate:
        """With further points (m, P) that turned out exactly as predicted."""
        gaps = distances(codes, self.codes, self.categorical)
        among = distances(codes, codes, self.categorical)
        target = (self.predict_from(gaps, trend)[0] - self.center) / self.scale
        steps = np.empty((len(codes), 0)) if trend is None else trend / self.scale
        old, more = self.processes[0].points, len(codes)
        points = Points(
            np.concatenate([old.codes, codes]),
            np.concatenate([old.target, target]),
            np.concatenate([old.extra, np.zeros(more)]),
            np.concatenate([old.study, np.zeros(more, dtype=np.int64)]),
            old.given,
            np.concatenate([old.trend, steps]),
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
    categorical: NDArray[np.bool_],
    rows: Sequence[int] | NDArray[np.int64] | None = None,
    decisive: int | None = None,
    memo: Memo | None = None,
    *,
    study: NDArray[np.int64] | None = None,
    given: Array | None = None,
    trend: Array | None = None,
) -> Surrogate:
    """Fits one objective: codes (n, P), gains (n,), noise_sd (n,) or NaN.

    ``study`` (n,) and ``given`` (others,) are as in ``Points``; without them, all are own trials.
    ``trend`` (n, k) are the gains that the expected effects add, where there are any.

    The first ``decisive`` observations (all) give scale and hyperparameters, which ``memo``
    remembers; the model is conditioned on ``rows`` (all).
    """
    decisive = len(gains) if decisive is None else decisive
    study = np.zeros(len(gains), dtype=np.int64) if study is None else study
    given = np.empty(0) if given is None else given
    center, scale = _standard(gains[:decisive], study[:decisive])
    extra = np.nan_to_num(noise_sd / scale) ** 2
    steps = np.empty((len(gains), 0)) if trend is None else trend / scale
    every = Points(codes, (gains - center) / scale, extra, study, given, steps)
    points = every if rows is None else every.only(np.asarray(rows, dtype=np.int64))
    basis = every.only(_spread_out(every.target[:decisive]))
    gaps = distances(points.codes, points.codes, categorical)
    found = [_optimum(kernel, basis, categorical, memo or Memo()) for kernel in KERNELS]
    processes = [
        _condition(kernel, vector, points, gaps)
        for kernel, vector in zip(KERNELS, found, strict=True)
    ]
    return Surrogate(tuple(processes), categorical, center, scale)


def _standard(gains: Array, study: NDArray[np.int64]) -> tuple[float, float]:
    """The mean of this study's own gains, if there are any, and the spread within the studies."""
    beyond = gains - (np.bincount(study, gains) / np.maximum(np.bincount(study), 1))[study]
    own = gains[study == 0]
    return float(np.mean(own if len(own) else gains)), float(np.std(beyond)) or 1.0


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

    return memo.of(search, type(kernel).__name__, *points.arrays)


def _condition(kernel: Kernel, vector: Array, points: Points, gaps: Gaps) -> Process:
    theta, log_noise, logits = parts(vector, points)
    likeness, noise = points.likeness(logits), float(np.exp(log_noise))
    covariance = covariance_of(kernel.cross(gaps, theta), points.share(likeness), noise, points)
    inverse = inverse_from(np.linalg.cholesky(covariance))
    return Process(kernel, theta, noise, likeness, points, inverse @ points.target, inverse)


def _spread_out(target: Array) -> NDArray[np.int64]:
    """Indices for fitting: all, or evenly spread over the ranking, so that no range is missing."""
    count = len(target)
    if count <= MAX_FITTED:
        return np.arange(count)
    ranking = np.argsort(target, kind="stable")
    return np.sort(ranking[np.linspace(0, count - 1, MAX_FITTED).round().astype(np.int64)])
