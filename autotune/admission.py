"""What the hosts of a study must have in common, and how the slots of one host share it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from autotune.cores import shares
from autotune.errors import InputError
from autotune.workers import Slot


def refuse_mixed(slots: Sequence[Slot]) -> None:
    """Refuse hosts that differ: their figures do not compare.

    Raises:
        InputError: lists what differs between the first host and another.
    """
    first = slots[0].facts
    for other in (slot.facts for slot in slots):
        differences = first.fingerprint.differences(other.fingerprint)
        if differences:
            raise InputError(
                f"{first} and {other} differ, and their figures would not compare: "
                + "; ".join(differences)
                + ". --allow-mixed lets each kind of host measure the baseline and compares "
                "by that",
                field="--address",
            )


def refuse_missing(slots: Iterable[Slot]) -> None:
    """Refuse hosts that lack a model which the experiment names by its path.

    Raises:
        InputError: says which host lacks what.
    """
    for facts in {slot.facts.node: slot.facts for slot in slots if slot.facts.missing}.values():
        raise InputError(
            f"{facts} lacks {'; '.join(facts.missing)}. Put the model there, or give its name "
            "on a hub"
        )


def host_notes(slots: Iterable[Slot]) -> list[str]:
    """Hosts on which Ray was started in a way that slows servers down or ends them."""
    notes = []
    for slot in {slot.facts.node: slot for slot in slots}.values():
        facts = slot.facts
        if facts.niceness > slot.request.niceness:
            notes.append(
                f"{facts} runs servers at niceness {facts.niceness}: whatever else it does slows "
                "them down; start Ray there with RAY_worker_niceness=0"
            )
        if facts.memory_monitor:
            notes.append(
                f"{facts} ends a trial when its server uses most of the host's memory; start Ray "
                "there with RAY_memory_monitor_refresh_ms=0"
            )
    return notes


def share_hosts(slots: Sequence[Slot]) -> tuple[Slot, ...]:
    """The slots, those that share a host each with CPUs of its own and its neighbours counted."""
    counts = Counter(slot.facts.node for slot in slots)
    cores: dict[int, tuple[int, ...]] = {}
    for node, count in counts.items():
        if count > 1:
            here = [slot for slot in slots if slot.facts.node == node]
            parts = shares(here[0].facts.cores, [slot.facts.gpu_nodes for slot in here])
            cores |= {id(slot): part for slot, part in zip(here, parts, strict=True)}
    return tuple(
        replace(slot, cores=cores.get(id(slot), ()), neighbours=counts[slot.facts.node] - 1)
        for slot in slots
    )
