"""What a study's trials say: where a launch worked, how fast it was, and what failed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.sampler.encoding import Array, encode
from autotune.sampler.space import KnownSpace

UNKNOWN_KIND = "unknown"


@dataclass(frozen=True)
class Observation:
    """One finished trial. ``values`` is None when it failed, else raw objective values."""

    config: Mapping[str, Any]
    values: tuple[float, ...] | None
    kind: str = ""
    seconds: float | None = None
    spread: tuple[float, ...] = ()
    weight: float = 1.0


@dataclass(frozen=True)
class Scale:
    """How one objective becomes a *gain*, which is maximised and, if possible, a logarithm.

    With ``log``, gain = +-ln(value), so that goodness = exp(gain) is the value itself (maximise)
    or its reciprocal (minimise), with reference 0. Otherwise gain = +-value.
    """

    sign: float
    log: bool

    def gain(self, values: Array) -> Array:
        return self.sign * (np.log(values) if self.log else values)


@dataclass(frozen=True)
class Data:
    """Arrays over all usable observations, the study's own and foreign ones.

    codes (n, axes); ok (n,) bool; gains (n, objectives), NaN where not ok; noise (n, objectives)
    standard deviation of the gain, NaN where unknown; weight (n,) in (0, 1], 1 for own trials.
    """

    codes: Array
    ok: NDArray[np.bool_]
    gains: Array
    noise: Array
    kinds: tuple[str, ...]
    seconds: Array
    weight: Array
    scales: tuple[Scale, ...]


def observe(
    trial: FrozenTrial, config: Mapping[str, Any], objectives: int, names: Sequence[str]
) -> Observation | None:
    """The observation of a finished trial; None when it teaches nothing (lost, pruned, empty)."""
    attrs = trial.user_attrs
    if not trial.params or attrs.get("lost"):
        return None
    seconds = _number(attrs.get("trial_seconds"))
    kind = str(attrs.get("failure_kind") or UNKNOWN_KIND)
    if trial.state == TrialState.FAIL:
        return Observation(config, None, kind, seconds)
    if trial.state != TrialState.COMPLETE:
        return None
    if any(value > 0 for value in trial.constraints.values()):
        return Observation(config, None, kind, seconds)
    values = tuple(trial.values or ())
    if len(values) != objectives or not all(math.isfinite(value) for value in values):
        return Observation(config, None, kind, seconds)
    return Observation(config, values, "", seconds, _spread(attrs.get("spread"), names))


def objective_names(study: Study) -> list[str]:
    """The metric names, or "0", "1", ... where none are set."""
    return list(study.metric_names or map(str, range(len(study.directions))))


def collect(
    trials: Iterable[FrozenTrial], space: KnownSpace, names: Sequence[str], weight: float = 1.0
) -> list[Observation]:
    """What finished trials teach, in the space's canonical configurations."""
    found = []
    for trial in trials:
        if trial.state.is_finished() and trial.params:
            one = observe(trial, space.canonical(trial.params), len(names), names)
            if one is not None:
                found.append(replace(one, weight=weight))
    return found


def _number(value: Any) -> float | None:
    usable = isinstance(value, int | float) and math.isfinite(value) and value > 0
    return float(value) if usable else None


def _spread(raw: Any, names: Sequence[str]) -> tuple[float, ...]:
    """Relative noise per objective, NaN where not given."""
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except ValueError:
            return ()
    if not isinstance(raw, Mapping):
        return ()
    return tuple(_number(raw.get(name)) or math.nan for name in names)


def tabulate(
    observations: Sequence[Observation], space: KnownSpace, directions: Sequence[StudyDirection]
) -> Data:
    """Arrays from observations; an objective is logged when all its good values are positive."""
    count, objectives = len(observations), len(directions)
    ok = np.array([one.values is not None for one in observations], dtype=bool)
    raw = np.full((count, objectives), np.nan)
    noise = np.full((count, objectives), np.nan)
    for row, one in enumerate(observations):
        if one.values is not None:
            raw[row] = one.values
            if len(one.spread) == objectives:
                noise[row] = one.spread
    scales = tuple(
        Scale(-1.0 if d == StudyDirection.MINIMIZE else 1.0, bool(np.all(raw[ok, i] > 0)))
        for i, d in enumerate(directions)
    )
    gains = np.full_like(raw, np.nan)
    for i, scale in enumerate(scales):
        gains[ok, i] = scale.gain(raw[ok, i])
        if not scale.log:
            noise[:, i] *= np.abs(raw[:, i])
    return Data(
        codes=encode(space.axes, [one.config for one in observations]),
        ok=ok,
        gains=gains,
        noise=noise,
        kinds=tuple(one.kind for one in observations),
        seconds=np.array([one.seconds or math.nan for one in observations]),
        weight=np.array([one.weight for one in observations]),
        scales=scales,
    )
