"""Which parameters mattered for each objective, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study

from autotune.sampler import surrogate
from autotune.sampler.encoding import Array, Axis
from autotune.sampler.hint import SpaceHint
from autotune.sampler.kernel import distances
from autotune.sampler.observations import Data, Scale, collect, objective_names, tabulate
from autotune.sampler.space import learn_space
from autotune.sampler.subset import conditioned
from autotune.sampler.threads import one_thread

MIN_WORKING = 10  # working launches below which nothing is said
MIN_PER_VALUE = 2  # working launches at a value, for the value to be compared
MIN_EXPLAINED = 0.3  # share of the variance predicted by leaving one out
MAX_VALUES = 5  # compared per ordinal
MAX_BACKGROUND = 60
Z90 = 1.645


@dataclass(frozen=True)
class Effect:
    """What changing one parameter does to one objective, other parameters as measured.

    ``ratio`` is the objective at ``best`` over that at ``worst``, as an improvement (so also
    above 1 for an objective that is minimised); ``low`` and ``high`` bound it with 90 %
    probability under the model. Where the objective is not positive throughout (``logged`` is
    False) the three are differences, not ratios. ``trials`` are working launches with the
    parameter active.
    """

    parameter: str
    best: Any
    worst: Any
    ratio: float
    low: float
    high: float
    trials: int
    logged: bool = True


def importance(study: Study, space: SpaceHint | None = None) -> dict[str, list[Effect]]:
    """Effects per objective, largest first, of those the data supports.

    Supported is an effect when (1) at least 10 launches worked; (2) the surrogate predicts at
    least 30 % of the objective's variance (in logarithms) with each launch left out; (3) two
    values of the parameter were each measured by 2 working launches; (4) the 90 % interval of
    the difference between the best and the worst value lies above "no effect". The list is empty
    for an objective of which nothing can be said.
    """
    trials = study.get_trials(deepcopy=False)
    known = learn_space(trials, space)
    names = objective_names(study)
    data = tabulate(collect(trials, known, names), known, study.directions)
    if data.ok.sum() < MIN_WORKING:
        return {name: [] for name in names}
    with one_thread():
        return {name: _effects(data, i, known.axes) for i, name in enumerate(names)}


def _effects(data: Data, objective: int, axes: Sequence[Axis]) -> list[Effect]:
    rows = conditioned(data)
    codes, gains = data.codes[rows], data.gains[rows, objective]
    categorical = np.array([one.categorical for one in axes])
    model = surrogate.fit(codes, gains, data.noise[rows, objective], categorical)
    if _explained(model, gains) < MIN_EXPLAINED:
        return []
    scale = data.scales[objective]
    found = [_effect(model, codes, column, one, scale) for column, one in enumerate(axes)]
    supported = [one for one in found if one is not None]
    return sorted(supported, key=lambda effect: -effect.ratio)


def _explained(model: surrogate.Surrogate, gains: Array) -> float:
    predicted, _ = model.leave_one_out()
    variance = float(np.var(gains))
    return 1 - float(np.mean((gains - predicted) ** 2)) / variance if variance > 0 else 0.0


def _effect(
    model: surrogate.Surrogate, codes: Array, column: int, one: Axis, scale: Scale
) -> Effect | None:
    active = codes[~np.isnan(codes[:, column])]
    values = _compared(active[:, column])
    if len(values) < 2:
        return None
    mean, covariance = _averages(model, active[-MAX_BACKGROUND:], column, values)
    best, worst = int(np.argmax(mean)), int(np.argmin(mean))
    gap = float(mean[best] - mean[worst])
    variance = covariance[best, best] + covariance[worst, worst] - 2 * covariance[best, worst]
    margin = Z90 * float(np.sqrt(max(variance, 0.0)))
    if gap - margin <= 0:
        return None
    ratio, low, high = (
        float(np.exp(x)) if scale.log else x for x in (gap, gap - margin, gap + margin)
    )
    names = one.decode(values[best]), one.decode(values[worst])
    return Effect(one.name, *names, ratio, low, high, len(active), scale.log)


def _compared(measured: Array) -> Array:
    """Values with enough launches; of many, evenly spread ones."""
    values, counts = np.unique(measured.round(9), return_counts=True)
    values = values[counts >= MIN_PER_VALUE]
    if len(values) <= MAX_VALUES:
        return values
    chosen: Array = values[np.linspace(0, len(values) - 1, MAX_VALUES).round().astype(int)]
    return chosen


def _averages(
    model: surrogate.Surrogate, background: Array, column: int, values: Array
) -> tuple[Array, Array]:
    """Mean (k,) and covariance (k, k) of the gain averaged over ``background`` at each value."""
    count, size = len(values), len(background)
    points = np.repeat(background[None], count, axis=0)
    points[:, :, column] = values[:, None]
    points = points.reshape(count * size, -1)
    average = np.kron(np.eye(count), np.full((1, size), 1 / size))
    mean, covariance = _joint(model, points)
    return average @ mean, average @ covariance @ average.T


def _joint(model: surrogate.Surrogate, points: Array) -> tuple[Array, NDArray[np.float64]]:
    gaps = distances(points, model.codes, model.categorical)
    among = distances(points, points, model.categorical)
    nothing_expected = np.empty((len(points), 0))
    parts = [process.joint(gaps, among, nothing_expected) for process in model.processes]
    means = np.stack([mean for mean, _ in parts])
    mean = means.mean(axis=0)
    spread = np.einsum("ki,kj->ij", means - mean, means - mean) / len(parts)
    covariance = np.mean([one for _, one in parts], axis=0) + spread
    return model.center + model.scale * mean, model.scale**2 * covariance
