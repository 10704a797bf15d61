"""Median, spread, intervals, outliers and steadiness: how sure a figure is.

An interval from three samples is wild when it trusts those three alone: too narrow when they
happen to agree, and a stopping rule looks for just that. So the samples' variance is combined
with what is known of such servers before (`prior`, worth `_PRIOR_WEIGHT` degrees of freedom), as
an inverse-gamma prior on the variance does (Gelman et al., Bayesian Data Analysis, 3rd ed., 2.6).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_PRIOR_WEIGHT = 3.0
_NORMAL = 1.96
_OUTLIER_Z = 3.5  # Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993
_MEDIAN_FACTOR = math.sqrt(math.pi / 2)  # sd of a median over that of a mean, many normal samples

SINGLE_PRIOR = 0.015  # relative sd between requests sent one at a time
PEAK_PRIOR = 0.008  # relative sd between waves of requests
LAUNCH_PRIOR = 0.01  # relative sd between launches, and between minutes of one
"""Published repeats of 44 configurations: half below 0.4 %, three quarters below 0.7 %, some far
above; differences near 1 % are noise."""


@dataclass(frozen=True)
class Estimate:
    """A figure with the half-width of its 95 % interval, in the figure's unit."""

    value: float
    half_width: float
    samples: int = 1

    @property
    def relative(self) -> float:
        """Half-width / value; infinite for a value of 0."""
        return self.half_width / abs(self.value) if self.value else math.inf


def median(values: Sequence[float]) -> float:
    """The median; NaN of nothing."""
    return float(np.median(values)) if len(values) else math.nan


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation from the median, not scaled."""
    centre = median(values)
    return median([abs(value - centre) for value in values])


def percentile(values: Sequence[float] | NDArray[np.float64], percent: float) -> float:
    """Linear interpolation between order statistics; NaN of nothing."""
    return float(np.percentile(values, percent)) if len(values) else math.nan


def modified_z(values: Sequence[float]) -> list[float]:
    """Modified z-scores: 0.6745 (x - median) / MAD, by the mean deviation where MAD is 0."""
    centre = median(values)
    deviations = [value - centre for value in values]
    scale = mad(values) / 0.6745
    if scale == 0:
        scale = 1.253314 * sum(map(abs, deviations)) / max(1, len(values))
    return [deviation / scale if scale else 0.0 for deviation in deviations]


def outliers(values: Sequence[float]) -> list[int]:
    """Indices of samples whose modified z-score is beyond 3.5. They are marked, never dropped."""
    return [index for index, z in enumerate(modified_z(values)) if abs(z) > _OUTLIER_Z]


def mean_interval(values: Sequence[float], prior: float) -> Estimate:
    """The mean with its 95 % interval; `prior` is the relative sd expected of such samples."""
    centre = float(np.mean(values))
    return Estimate(centre, _half_width(values, centre, prior), len(values))


def median_interval(values: Sequence[float], prior: float) -> Estimate:
    """The median with its 95 % interval, which is wider than a mean's."""
    centre = median(values)
    factor = _MEDIAN_FACTOR if len(values) > 2 else 1.0
    return Estimate(centre, factor * _half_width(values, centre, prior), len(values))


def _half_width(values: Sequence[float], centre: float, prior: float) -> float:
    count = len(values)
    squares = float(np.sum((np.asarray(values) - np.mean(values)) ** 2))
    freedom = _PRIOR_WEIGHT + count - 1
    variance = (_PRIOR_WEIGHT * (prior * centre) ** 2 + squares) / freedom
    return student(freedom) * math.sqrt(variance / count)


def student(freedom: float) -> float:
    """The two-sided 95 % quantile of Student's t for at least 3 degrees of freedom.

    Abramowitz and Stegun 26.7.5, within 0.4 %; scipy's takes most of a second to import.
    """
    z = 1.959964
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


def is_steady(values: Sequence[float], tolerance: float, last: int = 3) -> bool:
    """Slope test: whether the last samples show no trend that matters.

    A line is fitted to the last `last` samples. They are steady if it rises or falls by less
    than `tolerance` of their mean, or by less than twice the scatter around it.
    """
    if len(values) < last:
        return False
    tail = np.asarray(values[-last:], dtype=float)
    steps = np.arange(last)
    slope, base = np.polyfit(steps, tail, 1)
    rise = abs(slope) * (last - 1)
    scatter = math.sqrt(float(np.sum((tail - (base + slope * steps)) ** 2)) / max(1, last - 2))
    return bool(rise <= max(tolerance * abs(float(tail.mean())), 2 * scatter))


def settled_from(values: Sequence[float], tolerance: float, fewest: int = 3) -> int:
    """Where the steady part of a series begins: the first index from which no trend is left.

    Leading samples are dropped while they lie below all the rest by more than `tolerance`, as
    those of a cold server do; at least `fewest` stay.
    """
    start = 0
    while len(values) - start > fewest:
        rest = values[start + 1 :]
        if values[start] >= median(rest) * (1 - tolerance):
            break
        start += 1
    return start


def of_configuration(estimate: Estimate) -> Estimate:
    """What one launch says of its configuration: its interval, widened by what launches differ.

    A measurement can make its own figure as precise as it likes; the next launch of the same
    command still gives another one.
    """
    launches = _NORMAL * LAUNCH_PRIOR * abs(estimate.value)
    return Estimate(estimate.value, math.hypot(estimate.half_width, launches), estimate.samples)


def pool(estimates: Sequence[Estimate]) -> Estimate:
    """One estimate from several launches of one configuration, as `of_configuration` gave them.

    The spread is that between launches, which contains the spread within each; with few
    launches it leans on what each of them stated. Raises ValueError for none.
    """
    if not estimates:
        raise ValueError("nothing to pool")
    values = [estimate.value for estimate in estimates]
    centre = float(np.mean(values))
    if len(values) == 1 or not centre:
        return Estimate(centre, max(e.half_width for e in estimates), len(values))
    stated = math.sqrt(float(np.mean([(e.half_width / _NORMAL) ** 2 for e in estimates])))
    return Estimate(centre, _half_width(values, centre, stated / centre), len(values))


def pool_objectives(
    launches: Sequence[tuple[Mapping[str, float], Mapping[str, float]]],
) -> tuple[dict[str, float], dict[str, float]]:
    """Pool (values, spread) of several launches, objective by objective; returns the same pair."""
    names = [name for name in launches[0][0] if all(name in values for values, _ in launches)]
    pooled = {
        name: pool([Estimate(values[name], spread.get(name, 0.0)) for values, spread in launches])
        for name in names
    }
    return (
        {name: estimate.value for name, estimate in pooled.items()},
        {name: estimate.half_width for name, estimate in pooled.items()},
    )


def differs(a: Estimate, b: Estimate) -> bool:
    """Whether the spread of both supports a difference; if not, report 'no difference'."""
    return abs(a.value - b.value) > math.hypot(a.half_width, b.half_width)
