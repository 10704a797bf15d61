"""Branches of the space: parents such as the engine, whose values switch other parameters on.

A branch judged by two launches that were never tuned looks worse than one tuned for twenty. Each
value of a parent is therefore tried now and then with the best the model knows for it, until
enough is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.sampler.encoding import Array, Axis
from autotune.sampler.observations import Data

EVERY = 5  # trials between two visits
WORKING_FROM = 5  # working launches before the first visit
TRIES, TRIES_PER = 3, 15  # a branch gets 3 tries, and one more per 15 trials
HOPELESS = 3  # failures without a success


def visits(data: Data, number: int) -> bool:
    """Whether trial ``number`` may be spent on a branch."""
    return number % EVERY == 0 and data.ok.sum() >= WORKING_FROM


def neglected(data: Data, number: int, sample: Array, axes: Sequence[Axis]) -> tuple[int, float]:
    """The column and code of the branch to visit in trial ``number``; (-1, nan) for none.

    ``sample`` (n, axes) are canonical codes from the whole space, which show what switches what.
    """
    wanted = TRIES + number // TRIES_PER
    found = (wanted, -1, np.nan)
    for column in parents(sample, axes):
        for code in np.unique(sample[:, column]):
            at = data.codes[:, column] == code
            if at.sum() < found[0] and not (at.sum() >= HOPELESS and not data.ok[at].any()):
                found = (int(at.sum()), column, float(code))
    return found[1], found[2]


def parents(sample: Array, axes: Sequence[Axis]) -> list[int]:
    """Columns of categories one value of which always has a parameter that another never has."""
    return [
        column
        for column, one in enumerate(axes)
        if one.categorical and not np.isnan(sample[:, column]).any() and _switches(sample, column)
    ]


def _switches(sample: Array, column: int) -> bool:
    values = np.unique(sample[:, column])
    gone = np.isnan(sample)
    share = np.stack([gone[sample[:, column] == value].mean(axis=0) for value in values])
    return bool(np.any((share.min(axis=0) == 0.0) & (share.max(axis=0) == 1.0)))
