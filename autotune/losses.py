"""Trials that were lost with the host, the raylet or the actor that ran them.

A lost trial says nothing about its configuration: it is asked again, at most twice, on another
host while there is one. A host that loses one after another is left out.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from autotune import masking
from autotune.ledger import Asked
from autotune.records import Outcome, State
from autotune.space import Space

MAX_OF_A_CONFIGURATION = 2
MAX_IN_A_ROW_OF_A_NODE = 3


def unmeasured(asked: Asked, space: Space, state: State, **known: Any) -> Outcome:
    """The outcome of a launch whose end nobody saw; `known` are further fields of it."""
    settings = space.settings(asked.params)
    return Outcome(
        number=asked.number,
        state=state,
        engine=settings.engine,
        params=dict(asked.params),
        command=masking.mask_argv(settings.command),
        env={},
        key=asked.key,
        purpose=asked.purpose,
        repeats=asked.repeats,
        finished_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **known,
    )


@dataclass
class Losses:
    """Counts losses by configuration and by node (Ray's node id)."""

    _of_configuration: Counter[str] = field(default_factory=Counter)
    _of_node: Counter[str] = field(default_factory=Counter)
    _lost_on: dict[str, set[str]] = field(default_factory=dict)  # configuration -> nodes
    pending: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome, node: str, *, again: bool = True) -> None:
        """A trial was lost on a node: it is pending again, unless it has been lost too often."""
        self._of_configuration[outcome.key] += 1
        self._of_node[node] += 1
        self._lost_on.setdefault(outcome.key, set()).add(node)
        if again and self._of_configuration[outcome.key] <= MAX_OF_A_CONFIGURATION:
            self.pending.append(outcome)

    def clear(self, node: str) -> None:
        """A trial of this node came to its end."""
        self._of_node[node] = 0

    def is_out(self, node: str) -> bool:
        """Whether the node has lost so many in a row that it gets no more."""
        return self._of_node[node] >= MAX_IN_A_ROW_OF_A_NODE

    def take(self, node: str, nodes: Set[str]) -> Outcome | None:
        """A lost trial that this node may run: one it did not lose, unless all `nodes` did."""
        for outcome in self.pending:
            lost_on = self._lost_on[outcome.key]
            if node not in lost_on or nodes <= lost_on:
                self.pending.remove(outcome)
                return outcome
        return None
