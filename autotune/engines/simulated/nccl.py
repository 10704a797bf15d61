"""What NCCL_ALGO and NCCL_PROTO leave to choose from, in NCCL's own grammar (2.24 and newer).

`ring,tree` is a list of what may be used, `^tree` of what may not. A bare list is for every
collective; `allreduce:tree;allgather:ring` is for those that it names. Case does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable

_ALGORITHMS = {  # collective -> what NCCL 2.28 has for it
    "allreduce": ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree"),
    "allgather": ("ring", "collnetdirect", "nvls", "pat"),
}


def algorithms(value: str, collective: str) -> tuple[str, ...]:
    """What NCCL_ALGO leaves to `collective` ("allreduce" or "allgather"); may be nothing."""
    names = _ALGORITHMS[collective]
    for part in value.split(";"):
        function, named, listed = part.rpartition(":")
        if not named or function.strip().lower() == collective:
            names = left(listed, _ALGORITHMS[collective])
    return names


def all_reduce_algorithm(value: str) -> str:
    """The one that NCCL_ALGO prescribes to the all-reduce; "" where NCCL chooses."""
    names = algorithms(value, "allreduce")
    return names[0] if len(names) == 1 else ""


def left(value: str, names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that the list `value` leaves; an empty list leaves all."""
    listed = {word.strip().lower() for word in value.lstrip("^").split(",")} - {""}
    excludes = value.startswith("^") or not listed
    return tuple(name for name in names if (name.lower() in listed) != excludes)
