"""``ParetoSampler``: between Optuna and the proposal."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autotune.sampler.candidates import Pool
from autotune.sampler.encoding import Array, axis
from autotune.sampler.expectation import expectation
from autotune.sampler.hint import Prior, SpaceHint
from autotune.sampler.observations import Data, collect, objective_names, tabulate
from autotune.sampler.proposal import Question, allowed, propose
from autotune.sampler.space import Key, KnownSpace, keys, learn_space

FOREIGN = 0.999  # the largest weight of another study's trial: 1 marks the study's own
ABLATION_SHARE = 20  # one trial in this many of the budget
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
        self._launch_keys: dict[tuple[str, int], Hashable] = {}

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
        with self._lock, _one_thread():
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
        taken, launched = self._taken(study, space, None), self._launched(study, space)
        nothing = np.full(len(space.axes), np.nan)
        return _untried(space, taken, launched, nothing) is None

    def _choose(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        space = self._known_space(study)
        fixed = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
        pinned = space.encode([fixed])[0]
        pool = Pool(space.axes, self._priors)
        rng = self._rng(trial.number, "")
        data = self._data(study, space)
        taken, launched = self._taken(study, space, trial.number), self._launched(study, space)
        question = Question(
            data=data,
            space=space,
            pool=pool,
            pending=space.encode(self._pending(study, space, trial.number)),
            taken=taken,
            launched=launched,
            pinned=pinned,
            expect=expectation(self._priors, space.axes, objective_names(study), data.scales),
            number=trial.number,
            ablate=self._budget is not None and trial.number >= _search_trials(self._budget),
        )
        chosen = propose(question, rng)
        if chosen is None and space.cardinality <= ENUMERABLE:
            chosen = _untried(space, taken, launched, pinned)
        if chosen is None:
            drawn = pool.anywhere(1, rng)[0]
            chosen = np.where(np.isnan(pinned), drawn, pinned)
        full = space.decode(chosen[None, :])[0]
        return {**full, **_spellable(space, full), **fixed}

    def _known_space(self, study: Study) -> KnownSpace:
        return learn_space(study.get_trials(deepcopy=False), self._space)

    def _data(self, study: Study, space: KnownSpace) -> Data:
        names = objective_names(study)
        found = collect(study.get_trials(deepcopy=False), space, names)
        for trial, weight in self._history:
            found += collect([trial], space, names, min(weight, FOREIGN))
        return tabulate(found, space, study.directions)

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

    def _taken(self, study: Study, space: KnownSpace, number: int | None) -> frozenset[Key]:
        measured = [
            t.params
            for t in study.get_trials(deepcopy=False)
            if t.state.is_finished() and t.params and not t.user_attrs.get("lost")
        ]
        waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        queued = [t.system_attrs.get("fixed_params", {}) for t in waiting]
        pending = self._pending(study, space, -1 if number is None else number)
        every = [space.canonical(params) for params in [*measured, *queued] if params] + pending
        return frozenset(keys(space.encode(every)))

    def _launched(self, study: Study, space: KnownSpace) -> frozenset[Hashable]:
        """The hint's keys of what was measured: other spellings of it are no news."""
        found = set()
        for trial in study.get_trials(deepcopy=False):
            if trial.state.is_finished() and trial.params and not trial.user_attrs.get("lost"):
                known = (study.study_name, trial.number)
                if known not in self._launch_keys:
                    self._launch_keys[known] = space.launch_key(space.canonical(trial.params))
                found.add(self._launch_keys[known])
        return frozenset(found - {None})

    def _rng(self, number: int, purpose: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, number, *purpose.encode()])


def _search_trials(budget: int) -> int:
    """How many trials come before those that undo changes of the front one by one."""
    return budget - budget // ABLATION_SHARE


def _one_thread() -> AbstractContextManager[object]:
    """Matrices of this size lose by threads: 20 ms instead of 0.1 ms each on a busy host."""
    import scipy.linalg  # noqa: F401  # its own BLAS must be loaded to be limited
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # publishes none

    limits: AbstractContextManager[object] = threadpool_limits(limits=1, user_api="blas")
    return limits


def _untried(
    space: KnownSpace, taken: frozenset[Key], launched: frozenset[Hashable], pinned: Array
) -> Array | None:
    """The first full assignment (axes,) of a finite space that is new and allowed."""
    for block in space.assignments():
        full = np.where(np.isnan(pinned), block, pinned)
        for row, identity in enumerate(keys(space.activate(full))):
            if identity not in taken and allowed(full[row], space, launched):
                found: Array = full[row]
                return found
    return None


def _spellable(space: KnownSpace, full: Mapping[str, Any]) -> dict[str, Any]:
    """The canonical values of an assignment, as far as the distributions can express them."""
    config = space.canonical(full)
    return {
        one.name: config[one.name]
        for one in space.axes
        if one.name in config and not np.isnan(one.encode(config[one.name]))
    }
