"""What finished trials say, read once: an ask after 2,000 trials must not read 2,000 trials.

Finished trials do not change. What is kept here follows from the storage alone, and is read anew
when the space does change (a learned condition, a new parameter).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from optuna.trial import FrozenTrial

from autotune.sampler.hint import SpaceHint
from autotune.sampler.observations import Observation, completion, observe
from autotune.sampler.space import Key, KnownSpace, keys, learn_space


@dataclass(frozen=True)
class Reading:
    """One finished trial: what it teaches, and what must not be launched again for it."""

    observation: Observation | None
    key: Key
    launch_key: Hashable | None
    lost: bool


class Memory:
    """Readings of the trials of any number of studies."""

    def __init__(self) -> None:
        self._space: KnownSpace | None = None
        self._names: tuple[str, ...] = ()
        self._read: dict[tuple[str, int, datetime | None, float], Reading] = {}

    def space(self, trials: Sequence[FrozenTrial], hint: SpaceHint | None) -> KnownSpace:
        """The space as the trials show it; the same object while it does not change."""
        found = learn_space(trials, hint)
        if found != self._space:
            self._space = found
            self._read.clear()
        assert self._space is not None, "assigned above"
        return self._space

    def readings(
        self,
        study: str,
        trials: Iterable[FrozenTrial],
        names: Sequence[str],
        weight: float = 1.0,
    ) -> list[Reading]:
        """Readings of the finished trials, in order of completion, in the latest ``space``."""
        if tuple(names) != self._names:
            self._names = tuple(names)
            self._read.clear()
        ended = [t for t in trials if t.state.is_finished() and t.params]
        return [self._reading(study, trial, weight) for trial in sorted(ended, key=completion)]

    def _reading(self, study: str, trial: FrozenTrial, weight: float) -> Reading:
        identity = study, trial.number, trial.datetime_complete, weight
        known = self._read.get(identity)
        if known is None:
            known = self._read[identity] = self._look_at(trial, weight)
        return known

    def _look_at(self, trial: FrozenTrial, weight: float) -> Reading:
        assert self._space is not None, "space() comes first"
        config = self._space.canonical(trial.params)
        codes = self._space.encode([config])
        return Reading(
            observe(trial, codes[0], self._names, weight),
            keys(codes)[0],
            self._space.launch_key(config),
            bool(trial.user_attrs.get("lost")),
        )
