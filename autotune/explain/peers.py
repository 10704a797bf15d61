"""The other trials of a run with which one can be compared, the cleanest comparison first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autotune.explain.finding import Case
from autotune.explain.launches import with_launches
from autotune.front import Point, is_measured
from autotune.records import Outcome
from autotune.run import Run
from autotune.verdict import Change, differences

FARTHEST = 2
"""Other parameters in which a trial to compare with may differ; more says too little."""


@dataclass(frozen=True)
class Peer:
    """Another measured configuration: its first trial and its pooled figures, whose spread is no
    smaller than what its launches differ by.

    `others` are the changes beyond those a rule allows.
    """

    trial: Outcome
    point: Point
    changes: tuple[Change, ...]
    others: tuple[Change, ...]

    @property
    def caveat(self) -> str:
        """`, which also differs in nccl_proto`; empty for a clean comparison."""
        if not self.others:
            return ""
        names = ", ".join(change.name for change in self.others[:4])
        more = f" and {len(self.others) - 4} more" if len(self.others) > 4 else ""
        return f", which also differs in {names}{more}"


def parameters_about(run: Run, *words: str) -> frozenset[str]:
    """Parameters of the experiment whose definition mentions one of these words."""
    parameters = run.experiment.get("parameters")
    if not isinstance(parameters, Mapping):
        return frozenset()
    return frozenset(
        name
        for name, definition in parameters.items()
        if any(word in repr(definition).lower() for word in words)
    )


def peers(case: Case, allowed: frozenset[str], accept: Callable[[Outcome], bool]) -> Iterator[Peer]:
    """Configurations of the same engine that `accept` takes, cleanest comparison first.

    Those that differ in more than FARTHEST parameters outside `allowed`, or in none at all, are
    left out. A repeat has the peers of the trial it repeats.
    """
    table = _table(case.run)
    if case.trial.number not in table.numbers:
        return
    differs = table.codes != table.codes[table.numbers.index(case.trial.number)]
    counted = np.array([name not in allowed for name in table.names], dtype=bool)
    others, changes = differs[:, counted].sum(axis=1), differs.sum(axis=1)
    near = np.flatnonzero((others <= FARTHEST) & (changes > 0))
    for index in near[np.lexsort((changes[near], others[near]))]:
        other = case.run.outcome(table.numbers[index])
        point = case.run.point(other.number)
        if point is None:  # a repeat, or a configuration that cannot be relied on
            continue
        if other.engine == case.trial.engine and accept(other):
            found = differences(other.params, case.trial.params)
            yield Peer(
                other,
                with_launches(case.run, point),
                found,
                tuple(c for c in found if c.name not in allowed),
            )


@dataclass(frozen=True)
class _Table:
    """The measured trials' parameters as numbers: equal numbers in a column are equal values.

    Trials that are no configuration of their own (repeats) have a row, to be compared from.
    """

    names: tuple[str, ...]
    numbers: tuple[int, ...]
    codes: NDArray[np.int64]  # trials x parameters


@lru_cache(maxsize=4)
def _table(run: Run) -> _Table:
    outcomes = [outcome for outcome in run.outcomes if is_measured(outcome)]
    params = [outcome.params for outcome in outcomes]
    names = tuple(sorted({name for values in params for name in values}))
    columns = []
    for name in names:
        texts = [repr(values[name]) if name in values else "" for values in params]
        codes = {text: code for code, text in enumerate(dict.fromkeys(texts))}
        columns.append([codes[text] for text in texts])
    return _Table(
        names=names,
        numbers=tuple(outcome.number for outcome in outcomes),
        codes=np.array(columns, dtype=np.int64).reshape(len(names), len(outcomes)).T,
    )
