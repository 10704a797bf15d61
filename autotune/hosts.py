"""The slots that a study has, while it runs: which are free, which host may run what, and which
hosts were left out because they lost trials or cannot be compared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from autotune.fingerprint import SIMULATED
from autotune.front import front_of, points_of
from autotune.ledger import Asked, Ledger
from autotune.losses import Losses
from autotune.mixed import Scales
from autotune.records import OBJECTIVES, Outcome
from autotune.workers import HostFacts, Slot, reopen_slot


@dataclass
class Hosts:
    """Slots and what has happened on them.

    `scales` is None where all hosts are alike. `notes` say what a person should know, such as
    that a host was left out.
    """

    slots: list[Slot]
    scales: Scales | None = None
    losses: Losses = field(default_factory=Losses)
    notes: list[str] = field(default_factory=list)
    opening: set[asyncio.Task[None]] = field(default_factory=set)  # actors that replace dead ones

    @property
    def are_gone(self) -> bool:
        """Whether nothing is left to run trials on, nor about to be."""
        return not self.slots and not self.opening

    @property
    def machines(self) -> frozenset[str]:
        """The digests of the kinds of hosts that the slots are on."""
        return frozenset(_digest(slot.facts) for slot in self.slots)

    @property
    def simulated(self) -> tuple[str, ...]:
        """The names of the simulated machines that the slots are on; none on real ones."""
        settings = [slot.facts.fingerprint.settings for slot in self.slots]
        return tuple(sorted({each[SIMULATED] for each in settings if SIMULATED in each}))

    def free(self, busy: Container[int]) -> list[Slot]:
        """The slots that run nothing; `busy` holds the `id` of those that do."""
        return [slot for slot in self.slots if id(slot) not in busy]

    def is_comparable(self, slot: Slot) -> bool:
        """Whether what is measured on this slot can be compared with the rest yet."""
        return self.scales is None or self.scales.factors(_digest(slot.facts)) is not None

    def own_trial(self, slot: Slot, ledger: Ledger) -> Asked | None:
        """What this slot in particular has to run: its host's baseline, or a trial that was lost
        elsewhere."""
        digest = _digest(slot.facts)
        if self.scales is not None and self.scales.needs_baseline(digest):
            self.scales.is_measuring(digest)
            return ledger.start(self.scales.baseline_params, "host_baseline", None)
        if not self.is_comparable(slot):
            return None
        lost = self.losses.take(slot.facts.node, {other.facts.node for other in self.slots})
        if lost is None:
            return None
        return ledger.start(lost.params, lost.purpose, lost.repeats)

    def front_on(self, slot: Slot, outcomes: Sequence[Outcome]) -> tuple[tuple[float, float], ...]:
        """The (single-stream, peak) front so far, in the figures this slot would measure."""
        factors = self.scales.factors(_digest(slot.facts)) if self.scales is not None else None
        single, peak = (factors[name] if factors else 1.0 for name in OBJECTIVES)
        return tuple((p.single / single, p.peak / peak) for p in front_of(points_of(outcomes)))

    def told(self, outcome: Outcome) -> Outcome:
        """The outcome as the study keeps it: in the first host's figures."""
        if self.scales is None:
            return outcome
        self.scales.add(outcome)
        return self.scales.scaled(outcome)

    def judge(self, outcome: Outcome, facts: HostFacts) -> None:
        """Draw the consequences of an outcome for its host."""
        if outcome.state == "lost":
            # A host's own baseline is asked for by the host itself, as long as it has none.
            self.losses.add(outcome, facts.node, again=outcome.purpose != "host_baseline")
            if self.losses.is_out(facts.node):
                self.leave_out_node(facts.node, f"{facts} lost trials in a row and was left out")
        elif outcome.state != "interrupted":
            self.losses.clear(facts.node)
        for other in [slot.facts for slot in self.slots]:
            digest = _digest(other)
            if self.scales is not None and self.scales.cannot_compare(digest):
                self._leave_out(
                    lambda facts, digest=digest: _digest(facts) == digest,  # type: ignore[misc]
                    f"{other} was left out: without the baseline's figures there and on the "
                    "first host, its own compare with nothing",
                )

    def replace(self, slot: Slot) -> None:
        """Open a new actor where one died, meanwhile; without its node, the slot is gone."""
        self.slots = [other for other in self.slots if other is not slot]
        if not self.losses.is_out(slot.facts.node):
            task = asyncio.create_task(self._reopen(slot))
            self.opening.add(task)
            task.add_done_callback(self.opening.discard)

    async def _reopen(self, slot: Slot) -> None:
        new = await reopen_slot(slot)
        if new is not None:
            self.slots.append(new)
        else:
            self._note(f"{slot.facts} is gone")

    def close(self) -> None:
        """Wait for no more actors."""
        for task in self.opening:
            task.cancel()

    def leave_out_node(self, node: str, why: str) -> None:
        """Give the slots of one host nothing more."""
        self._leave_out(lambda facts: facts.node == node, why)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _leave_out(self, those: Callable[[HostFacts], bool], why: str) -> None:
        """Give these slots nothing more; what runs there may end."""
        if any(those(slot.facts) for slot in self.slots):
            self.slots = [slot for slot in self.slots if not those(slot.facts)]
            self._note(why)


def _digest(facts: HostFacts) -> str:
    return facts.fingerprint.digest
