"""What a caller may tell the sampler: the space it cannot see, and what to expect of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from optuna.distributions import BaseDistribution


@runtime_checkable
class SpaceHint(Protocol):
    """The space as its owner knows it. Without one, it is learned from the study's trials.

    It may also have ``key(params)``, a hashable that is equal for equal launches: where it joins
    more configurations than ``active`` does, none of them is proposed after another.
    """

    @property
    def distributions(self) -> Mapping[str, BaseDistribution]:
        """Every parameter of the space, active or not, parents before their children."""
        ...

    def active(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The canonical configuration: active parameters only, one spelling per launch.

        Accepts a full assignment of all parameters and a trial's own parameters alike.
        """
        ...

    def forbidden(self, params: Mapping[str, Any]) -> str | None:
        """Why this configuration must not be launched, or None when it may be."""
        ...


@dataclass(frozen=True)
class Prior:
    """What is expected of one parameter before anything is measured.

    ``prefer`` is the value to draw more often, with the probability ``weight`` (0 to 1). Without
    ``effects`` it is also expected to be better: 1.3 times, to the power of the weight.
    ``effects`` gives, per objective (by metric name, or by index as a string), the expected ratio
    of the objective at a value to the objective at any value not listed: ``{"peak_tok_s":
    {"flashinfer": 1.2}}``. How strong effects are, and whether their sign is right, is learned.

    Raises ValueError for a weight outside 0..1 or a ratio that is not positive.
    """

    prefer: Any = None
    weight: float = 0.5
    effects: Mapping[str, Mapping[Any, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise ValueError(f"Prior.weight is a probability, 0 to 1: {self.weight}")
        ratios = [ratio for table in self.effects.values() for ratio in table.values()]
        if not all(ratio > 0 for ratio in ratios):
            raise ValueError(f"Prior.effects are ratios, above 0: {ratios}")
