"""Which launches the models see once there are many, so that an ask costs the same at 2,000."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autotune.sampler.acquisition import pareto_mask
from autotune.sampler.observations import Data

MAX_POINTS = 160  # measured launches that the surrogates are conditioned on
SETTLED_FROM = 100  # observations up to which every ask fits the hyperparameters anew
GROWTH = 1.06  # of the observations, between two fits after that


def conditioned(data: Data) -> NDArray[np.int64]:
    """Indices of the measured launches to model, in order: all of them, or ``MAX_POINTS``.

    Of many own ones: 3/8 from the front and the ranks behind it, 3/8 the latest, and the rest
    spread evenly over the time before, where launches lie far apart. Those of other studies get
    what is left, at least a quarter.
    """
    good = np.flatnonzero(data.measured)
    if len(good) <= MAX_POINTS:
        return good
    own, other = good[data.study[good] == 0], good[data.study[good] > 0]
    other = _thinned(other, max(MAX_POINTS - len(own), MAX_POINTS // 4))
    return np.concatenate([other, _worthwhile(own, data.gains[own], MAX_POINTS - len(other))])


def _worthwhile(
    rows: NDArray[np.int64], gains: NDArray[np.float64], count: int
) -> NDArray[np.int64]:
    if len(rows) <= count:
        return rows
    chosen = _best_ranks(gains, 3 * count // 8)
    chosen[np.flatnonzero(~chosen)[-3 * count // 8 :]] = True
    chosen[_thinned(np.flatnonzero(~chosen), count - int(chosen.sum()))] = True
    return rows[chosen]


def _thinned(rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """At most ``count`` of them, evenly spread."""
    if len(rows) <= count:
        return rows
    return rows[np.linspace(0, len(rows) - 1, count).round().astype(np.int64)]


def _best_ranks(gains: NDArray[np.float64], count: int) -> NDArray[np.bool_]:
    """``count`` rows by non-dominated rank; the latest of the last rank that still fits."""
    chosen = np.zeros(len(gains), dtype=bool)
    while (missing := count - int(chosen.sum())) > 0:
        left = np.flatnonzero(~chosen)
        chosen[left[pareto_mask(gains[left])][-missing:]] = True
    return chosen


def settled(count: int) -> int:
    """How many of ``count`` observations, the first ones, decide the hyperparameters.

    It grows in steps: between two of them a fit can be remembered, and a sampler that starts
    anew finds the same.
    """
    if count <= SETTLED_FROM:
        return count
    steps = np.floor(np.log(count / SETTLED_FROM) / np.log(GROWTH) + 1e-9)
    return min(count, int(np.ceil(SETTLED_FROM * GROWTH**steps)))
