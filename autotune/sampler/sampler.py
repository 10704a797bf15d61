"""``ParetoSampler``: between Optuna and the proposal."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autotune.sampler.candidates import Pool
from autotune.sampler.encoding import Array, axis
from autotune.sampler.expectation import expectation
from autotune.sampler.hint import Prior, SpaceHint
from autotune.sampler.memo import Memo
from autotune.sampler.memory import Memory, Reading
from autotune.sampler.observations import Observation, objective_names, tabulate
from autotune.sampler.proposal import Question, allowed, propose
from autotune.sampler.space import Key, KnownSpace, keys
from autotune.sampler.threads import one_thread

FOREIGN = 0.999  # the largest weight of another study's trial: 1 marks the study's own
ABLATION_SHARE = 20  # one trial in this many of the budget
ENQUEUED = "fixed_params"  # where Optuna keeps what a trial was enqueued with
ENUMERABLE = 100_000  # full assignments up to which a space is searched completely


class _Running(NamedTuple):
    """Running trials in order of number: keys, codes (m, axes), and who was enqueued (m,)."""

    keys: frozenset[Key]
    codes: Array
    enqueued: NDArray[np.bool_]


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
        history: Trials of other studies with a weight in (0, 1] each: how much they are expected
            to resemble this one, which is then learned per study. Trials of one study have the
            same weight and the same user attribute ``study``, if any. They shape the models, and
            never count as measured.
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
        self._memory, self._memo = Memory(), Memo()

    def reseed_rng(self) -> None:
        """Nothing to do: the randomness of a proposal follows from seed and trial number."""

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        with self._lock:
            # As they were when the trial was asked: a second look at a database would cost more.
            trials = study._get_trials(deepcopy=False, use_cache=True)
            space = self._memory.space(trials, self._space)
        return {n: d for n, d in space.distributions.items() if not d.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not search_space:
            return {}
        with self._lock, one_thread():
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
        with self._lock:
            trials = study.get_trials(deepcopy=False)
            space = self._memory.space(trials, self._space)
            if not space.distributions or space.cardinality > ENUMERABLE:
                return False
            read = self._memory.readings(study.study_name, trials, objective_names(study))
            taken = _taken(read, trials, space) | self._running(trials, space, None).keys
            nothing = np.full(len(space.axes), np.nan)
            return _untried(space, taken, _launched(read), nothing) is None

    def _choose(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        trials = study.get_trials(deepcopy=False)  # with what other threads asked meanwhile
        space = self._memory.space(trials, self._space)
        fixed = {**trial.system_attrs.get(ENQUEUED, {}), **trial.params}
        pool = Pool(space.axes, self._priors)
        rng = self._rng(trial.number, "")
        names = objective_names(study)
        read = self._memory.readings(study.study_name, trials, names)
        data = tabulate(self._foreign(names) + _taught(read), space, study.directions)
        running = self._running(trials, space, trial.number)
        question = Question(
            data=data,
            space=space,
            pool=pool,
            pending=running.codes,
            enqueued=running.codes[running.enqueued],
            taken=_taken(read, trials, space) | running.keys,
            launched=_launched(read),
            pinned=space.encode([fixed])[0],
            expect=expectation(self._priors, space.axes, names, data.scales),
            number=trial.number,
            ablate=self._budget is not None and trial.number >= _search_trials(self._budget),
            memo=self._memo,
        )
        chosen = propose(question, rng)
        if chosen is None and space.cardinality <= ENUMERABLE:
            chosen = _untried(space, question.taken, question.launched, question.pinned)
        if chosen is None:
            drawn = pool.anywhere(1, rng)[0]
            chosen = np.where(np.isnan(question.pinned), drawn, question.pinned)
        full = space.decode(chosen[None, :])[0]
        return {**full, **_spellable(space, full), **fixed}

    def _foreign(self, names: Sequence[str]) -> list[Observation]:
        """What other studies teach, each trial with its weight."""
        found: list[Observation] = []
        for index, (trial, weight) in enumerate(self._history):
            study = f"another {index}"  # numbers are unique within one study only
            found += _taught(self._memory.readings(study, [trial], names, min(weight, FOREIGN)))
        return found

    def _running(
        self, trials: Sequence[FrozenTrial], space: KnownSpace, number: int | None
    ) -> _Running:
        """What runs but for ``number``."""
        running = [t for t in trials if t.state == TrialState.RUNNING and t.number != number]
        alive = {t.number for t in running} | {number}
        self._proposed = {n: p for n, p in self._proposed.items() if n in alive}
        full = [
            ({**self._proposed.get(t.number, {}), **t.params}, ENQUEUED in t.system_attrs)
            for t in running
        ]
        codes = space.encode([space.canonical(params) for params, _ in full if params])
        enqueued = [queued for params, queued in full if params]
        return _Running(frozenset(keys(codes)), codes, np.array(enqueued, dtype=bool))

    def _rng(self, number: int, purpose: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, number, *purpose.encode()])


def _taught(read: Sequence[Reading]) -> list[Observation]:
    return [one.observation for one in read if one.observation is not None]


def _taken(
    read: Sequence[Reading], trials: Sequence[FrozenTrial], space: KnownSpace
) -> frozenset[Key]:
    """Keys of what was measured and of what is queued."""
    waiting = [t.system_attrs.get(ENQUEUED) for t in trials if t.state == TrialState.WAITING]
    queued = [space.canonical(params) for params in waiting if params]
    return frozenset(one.key for one in read if not one.lost).union(keys(space.encode(queued)))


def _launched(read: Sequence[Reading]) -> frozenset[Hashable]:
    """The hint's keys of what was measured: other spellings of it are no news."""
    return frozenset({one.launch_key for one in read if not one.lost} - {None})


def _search_trials(budget: int) -> int:
    """How many trials come before those that undo changes of the front one by one."""
    return budget - budget // ABLATION_SHARE


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
