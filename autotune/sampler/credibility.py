"""How much other studies' failures are believed, from how well they foretold this study's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.sampler import feasibility
from autotune.sampler.encoding import Array, Axis
from autotune.sampler.memo import Memo
from autotune.sampler.observations import Data

SURE = 0.02  # no prediction is held to be surer than this


def credibility(data: Data, axes: Sequence[Axis], memo: Memo) -> Array:
    """Weights (n,) of launches as evidence of what fails: 1 for own ones.

    The given weight is a prior probability that the other study is right about failures. The
    evidence is what its launches alone foretell of this study's, against a rate of failure that
    is the same everywhere and unknown.
    """
    weight = np.ones(len(data.ok))
    own = data.study == 0
    for index, given in enumerate(data.given.tolist()):
        there = data.study == index + 1
        kinds = [kind for kind, at in zip(data.kinds, there, strict=True) if at]
        told = feasibility.learn(
            axes, data.codes[there], data.ok[there], kinds, weight[there], memo
        ).probability(data.codes[own])
        evidence = _log_odds(told, data.ok[own])
        weight[there] = 1 / (1 + (1 - given) / given * np.exp(-evidence))
    return weight


def _log_odds(told: Array, worked: Array) -> float:
    """Of the predictions (n,) P(success), against any constant rate (Beta(1, 1), integrated)."""
    from scipy.special import betaln

    sure = np.clip(told, SURE, 1 - SURE)
    good = int(worked.sum())
    likelihood = np.where(worked, np.log(sure), np.log(1 - sure)).sum()
    return float(likelihood - betaln(good + 1, len(worked) - good + 1))
