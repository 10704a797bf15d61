"""Landscapes on which samplers are compared; ``TUNING`` was looked at, ``HELD_OUT`` was not."""

from __future__ import annotations

from tests.benchmarks.landscapes.base import Landscape
from tests.benchmarks.landscapes.simulated import PROBLEMS, Simulated
from tests.benchmarks.landscapes.steep import Steep
from tests.benchmarks.landscapes.synthetic import Synthetic

TUNING = ("smooth-1", "smooth-2", "smooth-3", "rugged-1", "rugged-2", "rugged-3")
HELD_OUT = (
    "smooth-11",
    "smooth-12",
    *(f"smooth-{number}" for number in range(21, 27)),
    "rugged-11",
    "rugged-12",
    *(f"rugged-{number}" for number in range(21, 27)),
    "kimi-wide",
    "h200-wide",
    "kimi",
    "kimi-h200",
)

STEEP = tuple(
    f"steep-{kind}-{number}" for kind in ("smooth", "rugged") for number in range(31, 39)
)  # held out as well; steep-smooth-1 to 6 and steep-rugged-1 to 6 were looked at

GROUPS = {"tuning": TUNING, "held-out": HELD_OUT, "steep": STEEP, "all": TUNING + HELD_OUT + STEEP}


def make(name: str) -> Landscape:
    """The landscape of that name; ValueError lists the names when it is unknown."""
    family, _, structure = name.rpartition("-")
    if family in ("smooth", "rugged") and structure.isdigit():
        return Synthetic(int(structure), rugged=family == "rugged")
    if family in ("steep-smooth", "steep-rugged") and structure.isdigit():
        return Steep(int(structure), rugged=family == "steep-rugged")
    if name in PROBLEMS:
        return Simulated(name, *PROBLEMS[name])
    raise ValueError(
        f"unknown landscape {name!r}: [steep-]smooth-N, [steep-]rugged-N, {', '.join(PROBLEMS)}"
    )
