"""From data to the next configuration: the heart of the sampler, free of Optuna."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

import numpy as np

from autotune.sampler import feasibility
from autotune.sampler.acquisition import expected_improvement, pareto_mask
from autotune.sampler.branches import neglected, visits
from autotune.sampler.candidates import Pool
from autotune.sampler.credibility import credibility
from autotune.sampler.encoding import Array
from autotune.sampler.expectation import Expectation
from autotune.sampler.kernel import distances
from autotune.sampler.memo import Memo
from autotune.sampler.model import fit_model
from autotune.sampler.observations import Data
from autotune.sampler.space import Key, KnownSpace, keys

MODEL_FROM = 3  # measured launches before the surrogate speaks
THRIFT = 0.25  # exponent of the expected cost
BEARABLE = 0.1  # share of failing trials
RECENT = 16  # trials whose failures make the next proposal more cautious

Score = Callable[[Array], Array]


@dataclass(frozen=True)
class Effort:
    """How many candidates are looked at: of each kind at first, then by hill climbing."""

    anywhere: int
    mutants: int
    crossovers: int
    climbers: int
    rounds: int


EFFORT = Effort(300, 300, 100, climbers=6, rounds=3)
LATER_EFFORT = Effort(80, 120, 40, climbers=3, rounds=2)
LATER = 150  # measured and running launches after which an ask must be cheap


@dataclass(frozen=True)
class Candidates:
    """Distinct, unseen candidates: full assignments and canonical codes, both (n, axes)."""

    full: Array
    codes: Array


@dataclass(frozen=True)
class Question:
    """Everything the next proposal follows from.

    ``pending`` (m, axes) are codes of running trials, ``enqueued`` of those that somebody asked
    for; ``taken`` and ``launched`` what must not be repeated, as keys of codes and as the hint's
    own keys; ``pinned`` (axes,) codes of parameters that are decided already, else NaN; ``number``
    the trial's. With ``ablate`` one change of a member of the front is undone, if that is new.
    """

    data: Data
    space: KnownSpace
    pool: Pool
    pending: Array
    enqueued: Array
    taken: frozenset[Key]
    launched: frozenset[Hashable]
    pinned: Array
    expect: Expectation
    number: int
    ablate: bool = False
    memo: Memo = field(default_factory=Memo)


def propose(question: Question, rng: np.random.Generator) -> Array | None:
    """A full assignment (axes,) of a new, allowed configuration; None if none is found."""
    data, space, pool = question.data, question.space, question.pool
    weight = credibility(data, space.axes, question.memo)
    chances = feasibility.learn(space.axes, data.codes, data.ok, data.kinds, weight, question.memo)
    score = _score(question, chances)
    if question.ablate:
        undone = _admit(_undone(data, pool, rng), set(question.taken), space, question.pinned)
        chosen = _best_allowed(undone, score(undone.codes), question)
        if chosen is not None:
            return chosen
    search = _climb if _speaks(data) else _vary
    column, code = _neglected(question, rng)
    if column >= 0 and np.isnan(question.pinned[column]):
        branch = question.pinned.copy()
        branch[column] = code
        chosen = search(replace(question, pinned=branch), score, rng)
        if chosen is not None:
            return chosen
    return search(question, score, rng)


def _neglected(question: Question, rng: np.random.Generator) -> tuple[int, float]:
    """The branch to visit, as a column and its code; (-1, NaN) for none."""
    space = question.space
    if not visits(question.data, question.number):
        return -1, np.nan
    sample = space.activate(question.pool.anywhere(100, rng))
    return neglected(question.data, question.number, sample, space.axes)


def _climb(question: Question, score: Score, rng: np.random.Generator) -> Array | None:
    """The best of a broad pool and of the neighbours of its best, a few times over."""
    seen = set(question.taken)
    space, pool, pinned = question.space, question.pool, question.pinned
    points = question.data.measured.sum() + len(question.pending)
    effort = EFFORT if points <= LATER else LATER_EFFORT
    found = _admit(_first_pool(question.data, pool, effort, rng), seen, space, pinned)
    scores = score(found.codes)
    for _ in range(effort.rounds):
        best = np.argsort(-scores, kind="stable")[: effort.climbers]
        active = ~np.isnan(found.codes[best])
        more = _admit(pool.neighbours(found.full[best], active, rng), seen, space, pinned)
        found = _join(found, more)
        scores = np.concatenate([scores, score(more.codes)])
    return _best_allowed(found, scores, question)


def _speaks(data: Data) -> bool:
    """Whether enough was measured for a model."""
    return bool(data.measured.sum() >= MODEL_FROM)


def _vary(question: Question, score: Score, rng: np.random.Generator) -> Array | None:
    """The best few changes of a launch that works, or that somebody expects to work, if any.

    Of random launches most may fail, and several workers ask before the first result.
    """
    data = question.data
    parents = np.concatenate([data.codes[data.ok & (data.study == 0)], question.enqueued])
    if len(parents):
        varied = _offspring(question.pool, parents, 2 * EFFORT.mutants, EFFORT.crossovers, rng)
        found = _admit(varied, set(question.taken), question.space, question.pinned)
        chosen = _best_allowed(found, score(found.codes), question)
        if chosen is not None:
            return chosen
    return _climb(question, score, rng)


def _first_pool(data: Data, pool: Pool, effort: Effort, rng: np.random.Generator) -> Array:
    parents = _parents(data)
    everywhere = pool.anywhere(effort.anywhere, rng)
    if not len(parents):
        return everywhere
    return np.concatenate(
        [everywhere, _offspring(pool, parents, effort.mutants, effort.crossovers, rng)]
    )


def _offspring(
    pool: Pool, parents: Array, mutants: int, crossovers: int, rng: np.random.Generator
) -> Array:
    changed = pool.mutants(parents, mutants, rng)
    return np.concatenate([changed, pool.crossovers(parents, crossovers, rng)])


def _undone(data: Data, pool: Pool, rng: np.random.Generator) -> Array:
    """Members of the front with one parameter back at its value in the first working launch."""
    own = data.ok & (data.study == 0)
    if not own.any():
        return np.empty((0, len(pool.axes)))
    codes = data.codes[own]
    return pool.reversions(codes[pareto_mask(data.gains[own])], codes[0], rng)


def _parents(data: Data) -> Array:
    """Codes of the front of each study and of the rank behind it.

    Speeds of different studies are not compared: another machine may be faster throughout.
    """
    chosen = np.zeros(len(data.ok), dtype=bool)
    for study in np.unique(data.study[data.ok]):
        rows = np.flatnonzero(data.ok & (data.study == study))
        first = pareto_mask(data.gains[rows])
        chosen[rows[first]] = True
        chosen[rows[~first][pareto_mask(data.gains[rows[~first]])]] = True
    return data.codes[chosen]


def _score(question: Question, chances: feasibility.Feasibility) -> Score:
    data, space, pending = question.data, question.space, question.pending
    if not _speaks(data):
        known = np.concatenate([data.codes, pending])
        return lambda codes: chances.probability(codes) ** 2 * _novelty(codes, known, space)
    model = fit_model(data, pending, space, question.expect, question.memo)
    cost, caution = _cost(data), _caution(data)

    def score(codes: Array) -> Array:
        if not len(codes):
            return np.empty(0)
        gain = expected_improvement(model.predict(codes), model.front, model.by)
        starts, fits = chances.stages(codes)
        return gain * (starts * fits) ** caution / cost(starts, fits) ** THRIFT

    return score


def _caution(data: Data) -> float:
    """The exponent of the probability of success: bold after successes, cautious after failures.

    It is 1, the plain expectation, when none of the recent own trials failed, and 2 at the share
    of failures that a night can bear.
    """
    recent = data.ok[data.study == 0][-RECENT:]
    share = 1.0 - float(recent.mean()) if len(recent) else 0.0
    return 1.0 + min(2.0, share / BEARABLE)


def _cost(data: Data) -> Callable[[Array, Array], Array]:
    """Expected seconds relative to a launch that works, from the chances of both stages.

    A crash after 90 s costs little of a night, running out of memory after the load most of a
    trial. Failures cost as much as successes where times are not known.
    """
    large = np.isin(np.array(data.kinds, dtype=object), sorted(feasibility.OF_SIZE))
    works = _mean_seconds(data.seconds[data.ok], 1.0)
    crash = min(1.0, _mean_seconds(data.seconds[~data.ok & ~large], works) / works)
    full = min(1.0, _mean_seconds(data.seconds[~data.ok & large], works) / works)

    def expected(starts: Array, fits: Array) -> Array:
        return starts * fits + (1 - starts) * crash + starts * (1 - fits) * full

    return expected


def _mean_seconds(seconds: Array, otherwise: float) -> float:
    known = seconds[~np.isnan(seconds)]
    return float(known.mean()) if len(known) else otherwise


def _novelty(codes: Array, known: Array, space: KnownSpace) -> Array:
    """Mean distance per parameter to the nearest known configuration, at least a little."""
    if not len(known) or not len(codes):
        return np.ones(len(codes))
    categorical = np.array([one.categorical for one in space.axes])
    gaps = np.minimum(distances(codes, known, categorical).dense, 1.0).mean(axis=0)
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


def _best_allowed(found: Candidates, scores: Array, question: Question) -> Array | None:
    """The full assignment (axes,) of the best candidate that may be launched."""
    for index in np.argsort(-scores, kind="stable"):
        if allowed(found.full[index], question.space, question.launched):
            chosen: Array = found.full[index]
            return chosen
    return None


def allowed(full: Array, space: KnownSpace, launched: frozenset[Hashable]) -> bool:
    """Whether one full assignment (axes,) is neither forbidden nor another's launch."""
    config = space.canonical(space.decode(full[None, :])[0])
    return space.allowed(config) and space.launch_key(config) not in launched
