"""Hosts that differ, in one study: each host's figures are told in those of the first.

A configuration that is 8 % faster on one host because that host is 8 % faster must not win. So
every kind of host (`Fingerprint.digest`) measures the baseline once, and what is measured there
is multiplied by what the baseline gives on the first kind over what it gives there. This holds
for the two objectives alone: latencies and limits are those of the host that was measured, and
that a flag which helps on one host hurts on the other cannot be seen by any factor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.front import baseline_of, is_measured
from autotune.records import OBJECTIVES, PEAK, SINGLE, Outcome, Value

Factors = Mapping[str, float]
"""Objective -> what a host's figure is multiplied by."""

_FIGURES = {SINGLE: "host_factor_single", PEAK: "host_factor_peak"}
_SAME: Factors = dict.fromkeys(OBJECTIVES, 1.0)


@dataclass
class Scales:
    """The factors of each kind of host against the one with the digest `reference`."""

    reference: str
    _baseline: Outcome | None = None
    _own: dict[str, Outcome] = field(default_factory=dict)  # digest -> its baseline, unscaled
    _measuring: set[str] = field(default_factory=set)

    def look_at(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from what earlier drivers or this one measured."""
        for outcome in outcomes:
            self.add(outcome)

    def add(self, outcome: Outcome) -> None:
        """Learn from one outcome, as it was measured."""
        if outcome.purpose == "host_baseline":
            self._measuring.discard(outcome.machine)
            if outcome.state in ("ok", "infeasible"):
                self._own[outcome.machine] = outcome
        elif self._baseline is None:
            self._baseline = baseline_of([outcome])

    def needs_baseline(self, digest: str) -> bool:
        """Whether that kind of host has to measure the baseline, and nobody does it yet.

        Not before the first host has: with nothing to compare with, its figures would be told as
        they are, and a faster host is often the first to be through.
        """
        known = digest == self.reference or digest in self._own
        return self._baseline is not None and not known and digest not in self._measuring

    @property
    def baseline_params(self) -> Mapping[str, Value]:
        """What a host launches to be compared: what the first host did, though the experiment may
        name another baseline by now. Empty while `needs_baseline` of no host."""
        return self._baseline.params if self._baseline is not None else {}

    def is_measuring(self, digest: str) -> None:
        """A host of that kind has begun to measure the baseline."""
        self._measuring.add(digest)

    def cannot_compare(self, digest: str) -> bool:
        """Whether a baseline failed without which that kind of host means nothing."""
        if digest == self.reference:
            return False
        both = (self._baseline, self._own.get(digest))
        return any(outcome is not None and not is_measured(outcome) for outcome in both)

    def factors(self, digest: str) -> Factors | None:
        """The kind's factors; None until both baselines are measured."""
        if digest == self.reference:
            return _SAME
        first, own = self._baseline, self._own.get(digest)
        if first is None or own is None or not (is_measured(first) and is_measured(own)):
            return None
        theirs = _measured_values(own)
        return {name: (first.values or {})[name] / theirs[name] for name in OBJECTIVES}

    def scaled(self, outcome: Outcome) -> Outcome:
        """The outcome in the first host's figures, with the factors and a warning; as it is if it
        was told so already."""
        factors = self.factors(outcome.machine)
        if outcome.machine == self.reference or factors is None or not outcome.values:
            return outcome
        if _FIGURES[SINGLE] in outcome.figures:
            return outcome
        text = ", ".join(f"{name} by {factors[name]:.3f}" for name in OBJECTIVES)
        return outcome.model_copy(
            update={
                "values": _times(outcome.values, factors),
                "spread": _times(outcome.spread, factors),
                "figures": {**outcome.figures, **{_FIGURES[n]: factors[n] for n in OBJECTIVES}},
                "warnings": (
                    *outcome.warnings,
                    f"measured on {outcome.host}, which differs from the first host: figures "
                    f"multiplied ({text}) so that its baseline is the first host's",
                ),
            }
        )


def _times(values: Mapping[str, float], factors: Factors) -> dict[str, float]:
    return {name: value * factors.get(name, 1.0) for name, value in values.items()}


def _measured_values(outcome: Outcome) -> dict[str, float]:
    """What was measured, before any factor: an outcome that was stored holds its factors."""
    values = outcome.values or {}
    return {name: values[name] / outcome.figures.get(_FIGURES[name], 1.0) for name in OBJECTIVES}
