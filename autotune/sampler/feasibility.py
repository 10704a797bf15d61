"""Which launches will fail: a search for the culprits behind the failures seen so far.

A *feature* is "parameter has this value" or "ordinal is at least (at most) this". A *rule* blames
one feature, or two together. Launches fail when a guilty rule applies, so a success acquits every
rule that applied to it, and a failure accuses those that are left: with guilt probabilities p_r,
rule r receives from each failure the odds 1 / (1 - (1 - leak) prod_(r' != r) (1 - p_r')), as in
belief propagation for noisy-or networks (Pearl, 1988). Three crashes of one value that never
worked leave nobody else to blame; one crash of a cause that has its seat in a value already says
much. Each cause (``failure_kind``) is tried separately; P(success) is the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.sampler import capacity
from autotune.sampler.capacity import Capacity
from autotune.sampler.encoding import Array, Axis
from autotune.sampler.memo import Memo
from autotune.sampler.subset import settled

MAX_CUTS = 6  # thresholds per ordinal
MAX_FAILURES = 150  # the most recent ones of each cause
ROUNDS = 12
LEAK = 0.02  # probability that a launch fails for a reason no rule can express
UNTHINKABLE = -9.0  # log odds below which a rule is not followed up
ACQUITTAL = 4.0  # log odds taken from a rule by each success it applied to

# Causes with their seat in the value of a flag, as against those of size (memory).
OF_A_VALUE = frozenset({"unsupported", "bad_flags", "collective", "wrong_output"})
OF_SIZE = frozenset({"out_of_memory", "no_kv_room"})


@dataclass(frozen=True)
class Features:
    """Binary features of codes: category equality, and ordinal thresholds on either side."""

    column: NDArray[np.int64]
    low: Array
    high: Array
    threshold: NDArray[np.bool_]

    def __call__(self, codes: Array) -> Array:
        """Shape (n, features), 1.0 where the feature holds; inactive parameters have none."""
        values = codes[:, self.column]
        with np.errstate(invalid="ignore"):
            return ((values >= self.low) & (values <= self.high)).astype(np.float64)


def features(axes: Sequence[Axis], codes: Array) -> Features:
    """Features for the values seen and unseen of categories, and cuts between seen ordinals."""
    rows: list[tuple[int, float, float, bool]] = []
    for column, one in enumerate(axes):
        if one.categorical:
            rows += [(column, i - 0.5, i + 0.5, False) for i in range(one.levels)]
            continue
        seen = np.unique(codes[~np.isnan(codes[:, column]), column])
        cuts = (seen[1:] + seen[:-1]) / 2
        if len(cuts) > MAX_CUTS:
            cuts = np.quantile(cuts, np.linspace(0, 1, MAX_CUTS))
        rows += [(column, -np.inf, cut, True) for cut in cuts]
        rows += [(column, cut, np.inf, True) for cut in cuts]
    table = np.array(rows, dtype=float).reshape(-1, 4)
    return Features(table[:, 0].astype(np.int64), table[:, 1], table[:, 2], table[:, 3] > 0)


@dataclass(frozen=True)
class Suspicion:
    """Log of innocence for one cause: singles (S,), pairs (S, S), both <= 0."""

    single: Array
    pair: Array

    def log_success(self, held: Array) -> Array:
        linear: Array = held @ self.single
        crossed: Array = np.einsum("ij,ij->i", held @ self.pair, held)
        return linear + 0.5 * crossed


@dataclass(frozen=True)
class Feasibility:
    """P(success) of a launch, from every failure and success so far."""

    features: Features
    causes: tuple[Suspicion, ...]
    boundary: Capacity | None

    def probability(self, codes: Array) -> Array:
        """P(success) of shape (n,), in (0, 1]."""
        starts, fits = self.stages(codes)
        return starts * fits

    def stages(self, codes: Array) -> tuple[Array, Array]:
        """P(no fault of a value) and P(it fits in memory, given that), each of shape (n,)."""
        held = self.features(codes)
        total = np.zeros(len(codes))
        for cause in self.causes:
            total += cause.log_success(held)
        if self.boundary is None:
            return np.exp(total), np.ones(len(codes))
        return np.exp(total), self.boundary.probability(codes)


def learn(
    axes: Sequence[Axis],
    codes: Array,
    ok: NDArray[np.bool_],
    kinds: Sequence[str],
    weight: Array,
    memo: Memo,
) -> Feasibility:
    """codes (n, axes), ok (n,), kinds (n,) the cause of each failure, weight (n,) in (0, 1]."""
    basis = codes[: settled(len(codes))]  # what is found for it can be remembered for a while
    found = features(axes, basis)
    held, rate = found(codes), found(basis).sum(axis=0) / max(1, len(basis))
    names = np.array(kinds, dtype=object)
    causes = sorted({kind for kind, good in zip(kinds, ok, strict=True) if not good})
    allowed = found.column[:, None] != found.column[None, :]
    accused = {kind: ~ok & (names == kind) for kind in causes}
    return Feasibility(
        found,
        tuple(
            _investigate(
                _prior(found, allowed, rate, kind),
                held[ok],
                held[bad],
                weight[ok],
                weight[bad],
                memo,
            )
            for kind, bad in accused.items()
            if kind not in OF_SIZE
        ),
        _boundary(axes, codes, ok, ~ok & np.isin(names, sorted(OF_SIZE)), weight, memo),
    )


def _boundary(
    axes: Sequence[Axis],
    codes: Array,
    ok: NDArray[np.bool_],
    large: NDArray[np.bool_],
    weight: Array,
    memo: Memo,
) -> Capacity | None:
    if not large.any():
        return None
    rows = ok | large
    categorical = np.array([one.categorical for one in axes])
    return capacity.fit(codes[rows], large[rows], weight[rows], categorical, memo)


def _investigate(
    prior: tuple[Array, Array],
    good: Array,
    bad: Array,
    good_weight: Array,
    bad_weight: Array,
    memo: Memo,
) -> Suspicion:
    """The guilt for one cause, from the rules' prior log odds (features,) and (features, same)."""
    bad, bad_weight = bad[-MAX_FAILURES:], bad_weight[-MAX_FAILURES:]
    single, pair = prior
    acquitted = good * good_weight[:, None]
    single = single - ACQUITTAL * acquitted.sum(axis=0)
    pair = pair - ACQUITTAL * (acquitted.T @ good)
    first, second = _suspects(single, pair, bad)
    applies = bad[:, first] * bad[:, second]
    parts = np.where(second == first, single[first], pair[first, second]), applies, bad_weight
    odds = memo.of(lambda: _propagate(*parts), "guilt", *parts)
    alone = second == first
    single[first[alone]] = odds[alone]
    pair[first[~alone], second[~alone]] = odds[~alone]
    pair[second[~alone], first[~alone]] = odds[~alone]
    return Suspicion(-np.logaddexp(0.0, single), -np.logaddexp(0.0, pair))


def _prior(
    found: Features, allowed: NDArray[np.bool_], rate: Array, kind: str
) -> tuple[Array, Array]:
    """Prior log odds, scaled so that a typical launch meets a given number of guilty rules.

    ``rate`` (features,) says how often each feature holds. A pair that cannot hold has -inf.
    """
    values, thresholds = _leaning(kind)
    lean = np.where(found.threshold, thresholds, values)
    met = float(rate @ lean) or 1.0
    met_pairs = float(rate @ (allowed * np.outer(lean, lean)) @ rate) / 2 or 1.0
    single = np.clip(0.35 * lean / met, 1e-6, 0.3)
    pair = np.clip(0.35 * np.outer(lean, lean) / met_pairs, 1e-7, 0.1)
    return np.log(single / (1 - single)), np.where(allowed, np.log(pair / (1 - pair)), -np.inf)


def _leaning(kind: str) -> tuple[float, float]:
    """How likely a value and a threshold are to be the seat of this cause, relatively."""
    if kind in OF_A_VALUE:
        return 1.0, 0.05
    if kind in OF_SIZE:
        return 0.3, 1.0
    return 1.0, 0.3


def _suspects(
    single: Array, pair: Array, bad: Array
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rules worth following, as index pairs (equal indices: a single feature)."""
    accused = bad.max(axis=0, initial=0.0) > 0
    together = np.triu((bad.T @ bad) > 0, 1) & (pair > UNTHINKABLE)
    alone = np.flatnonzero(accused & (single > UNTHINKABLE))
    first, second = np.nonzero(together)
    return (
        np.concatenate([alone, first]).astype(np.int64),
        np.concatenate([alone, second]).astype(np.int64),
    )


def _propagate(prior: Array, applies: Array, weight: Array) -> Array:
    """Posterior log odds (rules,) by loopy belief propagation over applies (failures, rules)."""
    failure, rule = np.nonzero(applies)
    weight = weight[failure]
    messages = np.zeros(len(rule))
    for _ in range(ROUNDS):
        total = prior + np.bincount(rule, messages, len(prior))
        innocent = -_softplus(total[rule] - messages)
        others = np.bincount(failure, innocent, len(applies))[failure] - innocent
        update = -np.log1p(-(1 - LEAK) * np.exp(others)) * weight
        messages = 0.5 * messages + 0.5 * update
    result: Array = prior + np.bincount(rule, messages, len(prior))
    return result


def _softplus(values: Array) -> Array:
    """log(1 + exp(values)), in half of the time of logaddexp."""
    positive: Array = np.maximum(values, 0.0) + np.log1p(np.exp(-np.abs(values)))
    return positive
