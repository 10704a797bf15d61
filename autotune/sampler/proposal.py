"""From data to the next configuration: the heart of the sampler, free of Optuna."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autotune.sampler import feasibility, surrogate
from autotune.sampler.acquisition import (
    Prediction,
    Yardstick,
    expected_improvement,
    goodness,
    pareto_mask,
    yardstick,
)
from autotune.sampler.candidates import Pool
from autotune.sampler.encoding import Array
from autotune.sampler.kernel import distances
from autotune.sampler.observations import Data
from autotune.sampler.space import Key, KnownSpace, keys

MODEL_FROM = 3  # working launches before the surrogate speaks
ROUNDS = 3  # of hill climbing on the acquisition
CLIMBERS = 6
CAUTION = 2.0  # exponent of the probability of success

Score = Callable[[Array], Array]


@dataclass(frozen=True)
class Candidates:
    """Distinct, unseen candidates: full assignments and canonical codes, both (n, axes)."""

    full: Array
    codes: Array


@dataclass(frozen=True)
class Model:
    """One process per objective, the yardstick, and the front in goodness."""

    processes: tuple[surrogate.Process, ...]
    by: Yardstick
    front: Array

    def predict(self, codes: Array) -> Prediction:
        first = self.processes[0]
        gaps = distances(codes, first.codes, first.categorical)
        columns = [process.predict_from(gaps) for process in self.processes]
        return Prediction(
            np.stack([mean for mean, _ in columns], axis=1),
            np.stack([sd for _, sd in columns], axis=1),
        )


def fit_model(data: Data, pending: Array, space: KnownSpace) -> Model:
    """Surrogates on working launches; running ones are believed to come out as predicted."""
    good = data.ok
    codes, weight = data.codes[good], data.weight[good]
    categorical = np.array([one.categorical for one in space.axes])
    processes = tuple(
        surrogate.fit(codes, data.gains[good, i], data.noise[good, i], weight, categorical)
        for i in range(len(data.scales))
    )
    by = yardstick(data.gains[good], [scale.log for scale in data.scales])
    model = Model(processes, by, np.empty((0, len(data.scales))))
    own = codes[weight == 1.0]
    if len(pending):
        believed = model.predict(pending).mean
        model = Model(
            tuple(surrogate.extended(p, pending, believed[:, i]) for i, p in enumerate(processes)),
            by,
            model.front,
        )
        own = np.concatenate([own, pending])
    front = goodness(model.predict(own).mean, by) if len(own) else model.front
    return Model(model.processes, by, front[pareto_mask(front)])


def propose(
    data: Data,
    pending: Array,
    taken: set[Key],
    space: KnownSpace,
    pool: Pool,
    pinned: Array,
    rng: np.random.Generator,
) -> Array | None:
    """A full assignment (axes,) of a new, allowed configuration; None if none is found.

    ``pinned`` (axes,) holds the codes of parameters that are already decided, else NaN.
    """
    chances = feasibility.learn(space.axes, data.codes, data.ok, data.kinds, data.weight)
    score = _score(data, pending, space, chances)
    seen = set(taken)

    def admit(full: Array) -> Candidates:
        return _admit(full, seen, space, pinned)

    found = admit(_first_pool(data, pool, rng))
    scores = score(found.codes)
    for _ in range(ROUNDS):
        best = np.argsort(-scores, kind="stable")[:CLIMBERS]
        more = admit(pool.neighbours(found.full[best], rng))
        found = _join(found, more)
        scores = np.concatenate([scores, score(more.codes)])
    return _best_allowed(found, scores, space)


def _first_pool(data: Data, pool: Pool, rng: np.random.Generator) -> Array:
    parents = _parents(data)
    everywhere = pool.anywhere(300, rng)
    if not len(parents):
        return everywhere
    return np.concatenate(
        [everywhere, pool.mutants(parents, 300, rng), pool.crossovers(parents, 100, rng)]
    )


def _parents(data: Data) -> Array:
    """Codes of the front and of the rank behind it."""
    codes, gains = data.codes[data.ok], data.gains[data.ok]
    if not len(codes):
        return codes
    first = pareto_mask(gains)
    second = np.zeros_like(first)
    second[~first] = pareto_mask(gains[~first]) if (~first).any() else []
    return codes[first | second]


def _score(
    data: Data, pending: Array, space: KnownSpace, chances: feasibility.Feasibility
) -> Score:
    if data.ok.sum() < MODEL_FROM:
        known = np.concatenate([data.codes, pending])
        return lambda codes: chances.probability(codes) ** 2 * _novelty(codes, known, space)
    model = fit_model(data, pending, space)

    def score(codes: Array) -> Array:
        if not len(codes):
            return np.empty(0)
        gain = expected_improvement(model.predict(codes), model.front, model.by)
        return gain * chances.probability(codes) ** CAUTION

    return score


def _novelty(codes: Array, known: Array, space: KnownSpace) -> Array:
    """Mean distance per parameter to the nearest known configuration, at least a little."""
    if not len(known) or not len(codes):
        return np.ones(len(codes))
    categorical = np.array([one.categorical for one in space.axes])
    gaps = np.minimum(distances(codes, known, categorical), 1.0).mean(axis=0)
    nearest: Array = gaps.min(axis=1)
    return nearest + 1e-3


def _admit(full: Array, seen: set[Key], space: KnownSpace, pinned: Array) -> Candidates:
    full = space.snap(np.where(np.isnan(pinned), full, pinned))
    codes = space.activate(full)
    rows = []
    for row, identity in enumerate(keys(codes)):
        if identity not in seen:
            seen.add(identity)
            rows.append(row)
    return Candidates(full[rows], codes[rows])


def _join(left: Candidates, right: Candidates) -> Candidates:
    return Candidates(
        np.concatenate([left.full, right.full]), np.concatenate([left.codes, right.codes])
    )


def _best_allowed(found: Candidates, scores: Array, space: KnownSpace) -> Array | None:
    """The full assignment (axes,) of the best candidate that is not forbidden."""
    for index in np.argsort(-scores, kind="stable"):
        if allowed(found.full[index], space):
            chosen: Array = found.full[index]
            return chosen
    return None


def allowed(full: Array, space: KnownSpace) -> bool:
    """Whether one full assignment (axes,) may be launched."""
    return space.allowed(space.canonical(space.decode(full[None, :])[0]))
