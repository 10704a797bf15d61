"""The models of all objectives together, and the front that they believe in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autotune.sampler import surrogate
from autotune.sampler.acquisition import Prediction, Yardstick, goodness, pareto_mask, yardstick
from autotune.sampler.encoding import Array
from autotune.sampler.expectation import Expectation
from autotune.sampler.kernel import distances
from autotune.sampler.memo import Memo
from autotune.sampler.observations import Data
from autotune.sampler.space import KnownSpace
from autotune.sampler.subset import conditioned, settled


@dataclass(frozen=True)
class Model:
    """One surrogate per objective, over what is expected, and the front in goodness."""

    surrogates: tuple[surrogate.Surrogate, ...]
    expect: Expectation
    by: Yardstick
    front: Array

    def predict(self, codes: Array) -> Prediction:
        first = self.surrogates[0]
        gaps = distances(codes, first.codes, first.categorical)
        effects = self.expect.effects(codes)
        told = zip(self.surrogates, effects, strict=True)
        columns = [one.predict_from(gaps, trend) for one, trend in told]
        return Prediction(
            effects.sum(axis=2).T + np.stack([mean for mean, _ in columns], axis=1),
            np.stack([sd for _, sd in columns], axis=1),
        )


def fit_model(
    data: Data, pending: Array, space: KnownSpace, expect: Expectation, memo: Memo
) -> Model:
    """Surrogates on measured launches; running ones are believed to come out as predicted.

    The front is that of the predicted means, not of the noisy measurements: a lucky one would
    hide what is better.
    """
    good = np.flatnonzero(data.measured)
    codes, noise = data.codes[good], data.noise[good]
    effects = expect.effects(codes)
    beyond = data.gains[good] - effects.sum(axis=2).T
    modelled = conditioned(data)
    rows = np.searchsorted(good, modelled)
    categorical = np.array([one.categorical for one in space.axes])
    foreign = int((data.study[good] > 0).sum())  # they come first
    count = foreign + settled(len(good) - foreign)
    surrogates = tuple(
        surrogate.fit(
            codes,
            beyond[:, i],
            noise[:, i],
            categorical,
            rows,
            count,
            memo,
            study=data.study[good],
            given=data.given,
            trend=effects[i],
        )
        for i in range(len(data.scales))
    )
    own = data.codes[modelled[data.ok[modelled] & (data.study[modelled] == 0)]]
    if len(pending):
        told = zip(surrogates, expect.effects(pending), strict=True)
        surrogates = tuple(one.believing(pending, trend) for one, trend in told)
        own = np.concatenate([own, pending])
    here = data.study[good] == 0
    known = data.gains[good[here]] if here.any() else data.gains[good]
    by = yardstick(known, [scale.log for scale in data.scales])
    model = Model(surrogates, expect, by, np.empty((0, len(surrogates))))
    front = goodness(model.predict(own).mean, by)
    return replace(model, front=front[pareto_mask(front)])
