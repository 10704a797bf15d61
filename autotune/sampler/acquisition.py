"""How much a candidate is expected to add to the front.

Hypervolume is counted in *goodness*: exp(gain) above 0 for logged objectives, the gain above a
reference otherwise. For one and two objectives the expectation is exact for independent
(log-)normal predictions: with the front's strips [a_i, a_(i+1)) in the first objective and height
h_i in the second, E = sum_i (E[(Y1 - a_i)+] - E[(Y1 - a_(i+1))+]) E[(Y2 - h_i)+]. For more
objectives it is an average over random hypervolume scalarisations (Zhang and Golovin, 2020,
"Random hypervolume scalarizations for provable multi-objective black box optimization").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.sampler.encoding import Array


@dataclass(frozen=True)
class Prediction:
    """Independent normal predictions of gains: mean and sd, both of shape (n, objectives)."""

    mean: Array
    sd: Array


@dataclass(frozen=True)
class Yardstick:
    """From gains to goodness of about unit size, per objective.

    Logged: goodness = exp(gain - best) above 0. Otherwise: (gain - reference) / span above 0.
    """

    log: tuple[bool, ...]
    best: Array
    reference: Array
    span: Array


def yardstick(gains: Array, log: Sequence[bool]) -> Yardstick:
    """Scaled by the observed gains (n, objectives); their worst, less a tenth, is the reference."""
    span = np.ptp(gains, axis=0)
    span = np.where(span > 0, span, 1.0)
    return Yardstick(tuple(log), gains.max(axis=0), gains.min(axis=0) - 0.1 * span, span)


def goodness(gains: Array, by: Yardstick) -> Array:
    """Goodness of shape (n, objectives), never below 0."""
    logged = np.exp(np.minimum(gains - by.best, 50.0))
    plain = np.maximum(gains - by.reference, 0.0) / by.span
    return np.where(np.array(by.log), logged, plain)


def pareto_mask(points: Array) -> NDArray[np.bool_]:
    """True where no other row is at least as good in all columns and better in one."""
    if points.shape[1] == 2 and len(points):
        return _pareto_mask_of_two(points)
    mask = np.ones(len(points), dtype=bool)
    for i, point in enumerate(points):
        beaten = np.all(points >= point, axis=1) & np.any(points > point, axis=1)
        mask[i] = not beaten.any()
    return mask


def _pareto_mask_of_two(points: Array) -> NDArray[np.bool_]:
    """The same by sorting: an ask after 2,000 trials looks at many points."""
    order = np.lexsort((-points[:, 1], -points[:, 0]))
    first, second = points[order].T
    begins = np.searchsorted(-first, -first, side="left")  # of the rows with the same first
    highest = np.concatenate([[-np.inf], np.maximum.accumulate(second)])
    mask = np.empty(len(points), dtype=bool)
    mask[order] = (second > highest[begins]) & (second == second[begins])
    return mask


def expected_improvement(prediction: Prediction, front: Array, by: Yardstick) -> Array:
    """Expected gain of hypervolume, shape (n,), over ``front`` (k, objectives) of goodness."""
    objectives = prediction.mean.shape[1]
    if objectives == 1:
        return _excess(prediction, 0, np.array([front.max(initial=0.0)]), by)[:, 0]
    if objectives == 2:
        return _two(prediction, front, by)
    return _many(prediction, front, by)


def _two(prediction: Prediction, front: Array, by: Yardstick) -> Array:
    kept = front[pareto_mask(front)] if len(front) else np.zeros((0, 2))
    kept = kept[np.argsort(kept[:, 0])]
    edges = np.concatenate([[0.0], kept[:, 0]])
    heights = np.concatenate([kept[:, 1], [0.0]])
    beyond = _excess(prediction, 0, edges, by)
    widths = beyond - np.concatenate([beyond[:, 1:], np.zeros((len(beyond), 1))], axis=1)
    total: Array = np.sum(widths * _excess(prediction, 1, heights, by), axis=1)
    return total


def _excess(prediction: Prediction, column: int, above: Array, by: Yardstick) -> Array:
    """E[(Y - a)+] of shape (n, len(above)), Y the goodness in one objective."""
    from scipy.special import ndtr

    mean = prediction.mean[:, column, None]
    sd = np.maximum(prediction.sd[:, column, None], 1e-9)
    if by.log[column]:
        center = mean - by.best[column]
        log_above = np.log(np.maximum(above, 1e-12))[None, :]
        expected = np.exp(np.minimum(center + sd**2 / 2, 50.0))
        d = (center - log_above) / sd
        excess: Array = np.maximum(expected * ndtr(d + sd) - above * ndtr(d), 0.0)
        return excess
    center = (mean - by.reference[column]) / by.span[column]
    sd = sd / by.span[column]
    d = (center - above) / sd
    density = np.exp(-0.5 * d**2) / np.sqrt(2 * np.pi)
    plain: Array = np.maximum((center - above) * ndtr(d) + sd * density, 0.0)
    return plain


def _many(prediction: Prediction, front: Array, by: Yardstick, draws: int = 96) -> Array:
    objectives = prediction.mean.shape[1]
    rng = np.random.default_rng(0)  # common random numbers: candidates differ, draws do not
    directions = np.abs(rng.normal(size=(draws, objectives))) + 1e-6
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    normals = rng.normal(size=(draws, objectives))
    total = np.zeros(len(prediction.mean))
    for direction, normal in zip(directions, normals, strict=True):
        sample = goodness(prediction.mean + prediction.sd * normal, by)
        score = np.min(sample / direction, axis=1) ** objectives
        best = np.max(np.min(front / direction, axis=1), initial=0.0) ** objectives
        total += np.maximum(score - best, 0.0)
    return total / draws
