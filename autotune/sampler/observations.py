"""What a study's trials say: where a launch worked, how fast it was, and what failed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.sampler.encoding import Array
from autotune.sampler.space import KnownSpace

UNKNOWN_KIND = "unknown"
MEASURED_KINDS = frozenset({"limit_violated"})  # failures whose values are real measurements


@dataclass(frozen=True)
class Observation:
    """One finished trial: codes (axes,), raw objective values or None where nothing was measured.

    ``kind`` is the cause of a failure, "" for a success. A launch that missed a limit has both.
    """

    codes: Array
    values: tuple[float, ...] | None
    kind: str = ""
    seconds: float | None = None
    spread: tuple[float, ...] = ()
    weight: float = 1.0  # below 1 for another study's
    study: str = ""


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
    """Arrays over all usable observations: foreign ones, then the study's own by completion.

    codes (n, axes); ok (n,) bool, a success; measured (n,) bool, a success or a missed limit;
    gains (n, objectives), NaN where not measured; noise (n, objectives) standard deviation of the
    gain, NaN where unknown; study (n,), 0 for own trials, else the number of another; given
    (others,) in (0, 1) the weights of studies 1, 2, ...
    """

    codes: Array
    ok: NDArray[np.bool_]
    measured: NDArray[np.bool_]
    gains: Array
    noise: Array
    kinds: tuple[str, ...]
    seconds: Array
    study: NDArray[np.int64]
    given: Array
    scales: tuple[Scale, ...]


def observe(
    trial: FrozenTrial, codes: Array, names: Sequence[str], weight: float = 1.0
) -> Observation | None:
    """The observation of a finished trial; None when it teaches nothing (lost, pruned, empty)."""
    attrs = trial.user_attrs
    if not trial.params or attrs.get("lost"):
        return None
    seconds = _number(attrs.get("trial_seconds"))
    kind = str(attrs.get("failure_kind") or UNKNOWN_KIND)
    study = str(attrs.get("study", "")) if weight < 1.0 else ""
    failure = Observation(codes, None, kind, seconds, weight=weight, study=study)
    if trial.state == TrialState.FAIL:
        return failure
    if trial.state != TrialState.COMPLETE:
        return None
    values = tuple(trial.values or ())
    usable = len(values) == len(names) and all(math.isfinite(value) for value in values)
    violated = any(value > 0 for value in trial.constraints.values())
    if not usable or (violated and kind not in MEASURED_KINDS):
        return failure
    spread = _spread(attrs.get("spread"), names)
    return Observation(codes, values, kind if violated else "", seconds, spread, weight, study)


def objective_names(study: Study) -> list[str]:
    """The metric names, or "0", "1", ... where none are set."""
    return list(study.metric_names or map(str, range(len(study.directions))))


def collect(
    trials: Iterable[FrozenTrial], space: KnownSpace, names: Sequence[str], weight: float = 1.0
) -> list[Observation]:
    """What finished trials teach, in order of completion."""
    read = [
        observe(trial, space.encode([space.canonical(trial.params)])[0], names, weight)
        for trial in sorted(trials, key=completion)
        if trial.state.is_finished() and trial.params
    ]
    return [one for one in read if one is not None]


def completion(trial: FrozenTrial) -> tuple[float, int]:
    """Sorts finished trials by the time they ended: none ever comes before one that is known."""
    ended = trial.datetime_complete
    return (ended.timestamp() if ended is not None else 0.0), trial.number


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
    measured = np.array([one.values is not None for one in observations], dtype=bool)
    raw = np.full((count, objectives), np.nan)
    noise = np.full((count, objectives), np.nan)
    for row, one in enumerate(observations):
        if one.values is not None:
            raw[row] = one.values
            if len(one.spread) == objectives:
                noise[row] = one.spread
    scales = tuple(
        Scale(-1.0 if d == StudyDirection.MINIMIZE else 1.0, bool(np.all(raw[measured, i] > 0)))
        for i, d in enumerate(directions)
    )
    gains = np.full_like(raw, np.nan)
    for i, scale in enumerate(scales):
        gains[measured, i] = scale.gain(raw[measured, i])
        if not scale.log:
            noise[:, i] *= np.abs(raw[:, i])
    study, given = _studies(observations)
    return Data(
        codes=np.array([one.codes for one in observations]).reshape(count, len(space.axes)),
        ok=np.array([not one.kind for one in observations], dtype=bool),
        measured=measured,
        gains=gains,
        noise=noise,
        kinds=tuple(one.kind for one in observations),
        seconds=np.array([one.seconds or math.nan for one in observations]),
        study=study,
        given=given,
        scales=scales,
    )


def _studies(observations: Sequence[Observation]) -> tuple[NDArray[np.int64], Array]:
    """Numbers (n,), 0 for own trials, and the weights of the others.

    They are told apart by their weight and the trials' ``study``.
    """
    others = sorted({(one.weight, one.study) for one in observations if one.weight < 1.0})
    number = {other: index + 1 for index, other in enumerate(others)}
    found = [number.get((one.weight, one.study), 0) for one in observations]
    return np.array(found, dtype=np.int64), np.array([weight for weight, _ in others])
