"""What the processes of one objective are conditioned on, and how probable hyperparameters are.

Trials of other studies are observations too. How much another study resembles this one (the
correlation of their speeds) is a hyperparameter, and each study has a mean of its own: another
machine may be faster throughout. An expected effect (a prior of the caller's) is a linear term of
unknown strength, so that one of the wrong sign is soon unlearned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.sampler.encoding import Array
from autotune.sampler.kernel import Kernel

CONSTANT = 4.0  # prior variance of a study's mean, in units of the gains' variance
NOISE = (-5.0, 1.5)  # prior of the log noise variance, in the same units
STRENGTH = 1.0  # sd of an expected effect's strength, which is 1 when it is as expected
DOUBT = 1.5  # sd of the logit of another study's likeness, about that of its weight
JITTER = 1e-8


@dataclass(frozen=True)
class Points:
    """What a process is conditioned on, standardised.

    codes (n, P), target (n,), extra (n,) known noise variance, study (n,) 0 for this study's own,
    else the number of another; given (others,) in (0, 1): how much study 1, 2, ... is expected to
    resemble this one; trend (n, k) the expected effects, each of a strength that is learned.
    """

    codes: Array
    target: Array
    extra: Array
    study: NDArray[np.int64]
    given: Array
    trend: Array

    def only(self, rows: NDArray[np.int64]) -> Points:
        codes, target, extra, study, given, trend = self.arrays
        return Points(codes[rows], target[rows], extra[rows], study[rows], given, trend[rows])

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        return self.codes, self.target, self.extra, self.study, self.given, self.trend

    @property
    def together(self) -> NDArray[np.bool_]:
        """Which pairs (n, n) are of one study and so share its mean speed."""
        same: NDArray[np.bool_] = self.study[:, None] == self.study[None, :]
        return same

    def likeness(self, logits: Array) -> Array:
        """Per observation (n,) the correlation of its study with this one; logits as ``given``."""
        found: Array = np.append(1.0, 1 / (1 + np.exp(-logits)))[self.study]
        return found

    def share(self, likeness: Array) -> Array:
        """Correlation between observations: l_i l_j across studies, 1 within one."""
        return np.where(self.together, 1.0, likeness[:, None] * likeness[None, :])


@dataclass(frozen=True)
class Likelihood:
    """The negative log posterior of the hyperparameters, with its gradient.

    They are the kernel's, the log noise and, per other study, the logit of its likeness.

    ``gaps`` (P, n, n) are those among the points.
    """

    kernel: Kernel
    gaps: Array
    points: Points

    def __call__(self, vector: Array) -> tuple[float, Array]:
        theta, log_noise, logits = parts(vector, self.points)
        shape, backward = self.kernel.forward(self.gaps, theta)
        likeness = self.points.likeness(logits)
        share, noise = self.points.share(likeness), float(np.exp(log_noise))
        try:
            factor = np.linalg.cholesky(covariance_of(shape, share, noise, self.points))
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(vector)
        inverse = inverse_from(factor)
        alpha = inverse @ self.points.target
        value = 0.5 * self.points.target @ alpha + np.log(np.diag(factor)).sum()
        weight = 0.5 * (inverse - np.outer(alpha, alpha))
        shared = weight * share
        by_likeness = self._by_likeness(shared * shape, likeness)
        slope = np.array([*backward(shared), noise * np.trace(weight), *by_likeness])
        penalty, pull = self._log_prior(vector)
        return float(value + penalty), slope + pull

    def _by_likeness(self, weighted: Array, likeness: Array) -> Array:
        """The gradient by the logits, from W * covariance (n, n)."""
        across = np.where(self.points.together, 0.0, weighted).sum(axis=1)
        slopes = 2 * across * (1 - likeness)
        studies = np.bincount(self.points.study, slopes, 1 + len(self.points.given))
        return studies[1:].astype(np.float64)

    def _log_prior(self, vector: Array) -> tuple[float, Array]:
        center, width = self.prior()
        offset = (vector - center) / width
        return 0.5 * float(offset @ offset), offset / width

    def prior(self) -> tuple[Array, Array]:
        center, width = self.kernel.prior(len(self.gaps))
        given = self.points.given
        logits, widths = np.log(given / (1 - given)), np.full(len(given), DOUBT)
        return np.array([*center, NOISE[0], *logits]), np.array([*width, NOISE[1], *widths])


def parts(vector: Array, points: Points) -> tuple[Array, float, Array]:
    """The kernel's hyperparameters, the log noise, and the logits of the likeness."""
    at = len(vector) - len(points.given) - 1
    return vector[:at], float(vector[at]), vector[at + 1 :]


def of_strengths(left: Array, right: Array) -> Array:
    """The covariance (n, m) that comes from not knowing the strengths of the expected effects."""
    product: Array = STRENGTH**2 * (left @ right.T)
    return product


def covariance_of(shape: Array, share: Array, noise: float, points: Points) -> Array:
    covariance = (
        shape * share + CONSTANT * points.together + of_strengths(points.trend, points.trend)
    )
    covariance[np.diag_indices_from(covariance)] += noise + points.extra + JITTER
    return covariance


def inverse_from(factor: NDArray[np.floating[Any]]) -> Array:
    """The inverse of a symmetric matrix from its lower Cholesky factor."""
    from scipy.linalg.lapack import dpotri

    inverse, _ = dpotri(factor, lower=1)
    full: Array = np.tril(inverse) + np.tril(inverse, -1).T
    return full
