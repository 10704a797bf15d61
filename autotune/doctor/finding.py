"""What is found about a host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from autotune.records import Frozen

Level = Literal["error", "warning", "note", "ok"]

GIB = 2**30


class Finding(Frozen):
    """One thing about a host. `error`: a study must not start; `warning`: it would be slow."""

    level: Level
    title: str
    why: str = ""
    fix: str = ""


def listed(items: Sequence[object]) -> str:
    """`0, 3`."""
    return ", ".join(str(item) for item in items)
