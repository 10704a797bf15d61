"""Constraints of the experiment: limits on measured figures.

A figure that is better when small (a latency, a count of failures, memory) is limited from
above; every other figure (tokens/s, KV tokens, goodput) from below.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.records import Failure, FailureKind, Measurement, Phase

_SMALLER_IS_BETTER = (
    "_ms",
    "_us_per_token",
    "_bytes",
    "_failed_requests",
    "retractions",
    "queued_requests_mean",
)


def is_upper_limit(figure: str) -> bool:
    """True if a constraint on this figure is a maximum, False if it is a minimum."""
    return figure.endswith(_SMALLER_IS_BETTER)


def violation(figure: str, measured: float, limit: float) -> float:
    """By how much a limit is missed, as a share of the limit; 0 or less if it is kept."""
    scale = abs(limit) or 1.0
    return (measured - limit if is_upper_limit(figure) else limit - measured) / scale


def violations(constraints: Mapping[str, float], measurement: Measurement) -> dict[str, float]:
    """Every limit that is missed, worst first, as shares; figures not measured are left out."""
    measured = {**measurement.figures, **measurement.values}
    missed = {
        figure: violation(figure, measured[figure], limit)
        for figure, limit in constraints.items()
        if figure in measured
    }
    worst_first = sorted(missed.items(), key=lambda item: -item[1])
    return {figure: share for figure, share in worst_first if share > 0}


def violated(constraints: Mapping[str, float], measurement: Measurement) -> Failure | None:
    """The worst violated limit as a failure, or None if all are kept."""
    for figure in violations(constraints, measurement):
        measured = {**measurement.figures, **measurement.values}[figure]
        bound = "over" if is_upper_limit(figure) else "under"
        cause = f"{figure} is {measured:g}, {bound} the limit of {constraints[figure]:g}"
        return Failure(kind=FailureKind.LIMIT_VIOLATED, phase=Phase.PEAK, cause=cause)
    return None


def worst_violation(constraints: Mapping[str, float], measurement: Measurement) -> float:
    """The share by which the worst limit is missed; 0 if all are kept."""
    return max(violations(constraints, measurement).values(), default=0.0)
