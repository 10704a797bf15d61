"""``ParetoSampler``: between Optuna and the proposal."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autotune.sampler.candidates import Pool
from autotune.sampler.encoding import axis, encode
from autotune.sampler.hint import Prior, SpaceHint
from autotune.sampler.observations import Observation, observe, tabulate
from autotune.sampler.proposal import propose
from autotune.sampler.space import Key, KnownSpace, key, learn_space

ENUMERABLE = 100_000  # full assignments up to which a space is searched completely


class ParetoSampler(BaseSampler):
    """Finds the Pareto front of expensive, failing launches in few trials.

    A trial with a constraint above 0, with the state FAIL, or without finite values counts as a
    failed launch: it teaches where not to go and nothing about speed. Trials with the user
    attribute ``lost`` teach nothing.

    Args:
        seed: The same seed, trial number and trials give the same proposal, also from a new
            sampler on the same storage. None draws one.
        space: What is known of the space; without it, it is learned from the trials.
        priors: Expectations per parameter name.
        history: Trials of other studies with a weight in (0, 1] each: how much they resemble
            this one. They shape the models, and never count as measured.
        budget: The number of trials planned.
    """

    def __init__(
        self,
        seed: int | None = None,
        *,
        space: SpaceHint | None = None,
        priors: Mapping[str, Prior] | None = None,
        history: Sequence[tuple[FrozenTrial, float]] = (),
        budget: int | None = None,
    ) -> None:
        if not all(0 < weight <= 1 for _, weight in history):
            raise ValueError("every weight in history must be above 0 and at most 1")
        self._seed = int(np.random.SeedSequence().entropy) if seed is None else seed  # type: ignore[arg-type]  # an int when no entropy is given
        self._space = space
        self._priors = dict(priors or {})
        self._history = tuple(history)
        self._budget = budget
        self._lock = threading.RLock()
        self._proposed: dict[int, dict[str, Any]] = {}

    def reseed_rng(self) -> None:
        """Nothing to do: the randomness of a proposal follows from seed and trial number."""

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        space = self._known_space(study)
        return {n: d for n, d in space.distributions.items() if not d.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not search_space:
            return {}
        with self._lock:
            chosen = self._choose(study, trial)
            self._proposed[trial.number] = chosen
        return {name: chosen[name] for name in search_space if name in chosen}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A parameter not seen before (or with a new range): drawn at random."""
        rng = self._rng(trial.number, param_name)
        one = axis(param_name, param_distribution)
        return one.decode(float(Pool([one], self._priors).anywhere(1, rng)[0, 0]))

    def exhausted(self, study: Study) -> bool:
        """True when every allowed configuration has been asked: nothing new is left to try.

        Needs a finite space, known from the hint or from the trials; else False.
        """
        space = self._known_space(study)
        if not space.distributions or space.cardinality > ENUMERABLE:
            return False
        return self._untried(space, self._taken(study, space, None), {}) is None

    def _choose(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        space = self._known_space(study)
        fixed = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
        fixed = {n: v for n, v in fixed.items() if n in space.distributions}
        pool = Pool(space.axes, self._priors)
        rng = self._rng(trial.number, "")
        taken = self._taken(study, space, trial.number)
        data = tabulate(self._observations(study, space), space, study.directions)
        pending = encode(space.axes, self._pending(study, space, trial.number))
        chosen = propose(data, pending, taken, space, pool, fixed, rng)
        if chosen is None and space.cardinality <= ENUMERABLE:
            chosen = self._untried(space, taken, fixed)
        if chosen is None:
            chosen = {**space.decode(pool.anywhere(1, rng))[0], **fixed}
        return chosen

    def _known_space(self, study: Study) -> KnownSpace:
        return learn_space(study.get_trials(deepcopy=False), self._space)

    def _observations(self, study: Study, space: KnownSpace) -> list[Observation]:
        names = study.metric_names or [str(i) for i in range(len(study.directions))]
        found = []
        for trial in study.get_trials(deepcopy=False):
            if trial.state.is_finished():
                found.append(self._observe(trial, space, names, 1.0))
        for trial, weight in self._history:
            found.append(self._observe(trial, space, names, min(weight, 0.999)))
        return [one for one in found if one is not None]

    def _observe(
        self, trial: FrozenTrial, space: KnownSpace, names: Sequence[str], weight: float
    ) -> Observation | None:
        config = space.canonical(trial.params)
        one = observe(trial, config, len(names), names)
        return one and replace(one, weight=weight)

    def _pending(self, study: Study, space: KnownSpace, number: int) -> list[dict[str, Any]]:
        running = [
            t
            for t in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
            if t.number != number
        ]
        alive = {t.number for t in running} | {number}
        self._proposed = {n: p for n, p in self._proposed.items() if n in alive}
        full = [{**self._proposed.get(t.number, {}), **t.params} for t in running]
        return [space.canonical(params) for params in full if params]

    def _taken(self, study: Study, space: KnownSpace, number: int | None) -> set[Key]:
        taken = {
            key(space.canonical(t.params))
            for t in study.get_trials(deepcopy=False)
            if t.state.is_finished() and t.params and not t.user_attrs.get("lost")
        }
        waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        queued = [t.system_attrs.get("fixed_params", {}) for t in waiting]
        pending = self._pending(study, space, -1 if number is None else number)
        return taken | {key(space.canonical(params)) for params in [*queued, *pending] if params}

    def _untried(
        self, space: KnownSpace, taken: set[Key], fixed: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        for assignment in space.assignments():
            config = space.canonical({**assignment, **fixed})
            if key(config) not in taken and space.allowed(config):
                return {**assignment, **fixed}
        return None

    def _rng(self, number: int, purpose: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, number, *purpose.encode()])
