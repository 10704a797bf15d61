"""What a run found, in words and rows: the parts that `show`, notes, reports and exports share."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.front import Point, front_of, is_measured, picks_of
from autotune.records import OBJECTIVES, PEAK, SINGLE, Outcome, Value
from autotune.run import Run

TITLES: Mapping[str, str] = {SINGLE: "single stream", PEAK: "peak"}


@dataclass(frozen=True)
class Change:
    """A parameter that differs from the baseline's; None is written as `unset`.

    `applies` and `applied` say whether the parameter has a meaning in this configuration and in
    the baseline's.
    """

    name: str
    value: Value
    was: Value
    applies: bool = True
    applied: bool = True

    @property
    def text(self) -> str:
        """`num_steps 0 → 3`; `num_steps → 3` where it did not apply, `without num_steps` now."""
        if not self.applies:
            return f"without {self.name}"
        before = f" {value_text(self.was)}" if self.applied else ""
        return f"{self.name}{before} → {value_text(self.value)}"


@dataclass(frozen=True)
class FrontRow:
    """A member of the front, or the baseline; `mark` says which end, knee or baseline it is.

    `gains` are ratios to the baseline's values; the baseline itself has none.
    """

    point: Point
    mark: str
    on_front: bool
    changes: tuple[Change, ...]
    gains: Mapping[str, float]

    @property
    def changes_text(self) -> str:
        return ", ".join(change.text for change in self.changes) or "nothing"


def front_rows(run: Run) -> tuple[FrontRow, ...]:
    """The front from single stream to peak; then the baseline, where it is not on it."""
    front = front_of(run.points)
    if not front:
        return ()
    baseline = baseline_point(run)
    marks: dict[int, list[str]] = {}
    for mark, point in (*picks_of(front).items(), ("baseline", baseline)):
        if point is not None:
            marks.setdefault(point.number, []).append(mark)
    points = [*front] + ([baseline] if baseline is not None and baseline not in front else [])
    return tuple(
        FrontRow(
            point=point,
            mark=", ".join(marks.get(point.number, ())),
            on_front=point in front,
            changes=changes_of(run, point.number),
            gains=_gains(point, baseline),
        )
        for point in points
    )


def _gains(point: Point, baseline: Point | None) -> dict[str, float]:
    if baseline is None or baseline.number == point.number:
        return {}
    return {name: point.values[name] / baseline.values[name] for name in OBJECTIVES}


def baseline_point(run: Run) -> Point | None:
    return run.point(run.baseline) if run.baseline is not None else None


def without_gains(run: Run) -> str:
    """Why no gains can be given, in a clause; "" if they can, or nothing was to be compared yet."""
    if run.baseline is None or baseline_point(run) is not None:
        return ""
    again = " when launched again" if is_measured(run.outcome(run.baseline)) else ""
    return f"the baseline (trial {run.baseline}) failed{again}: no gains can be given"


def changes_of(run: Run, number: int) -> tuple[Change, ...]:
    """What a trial's configuration changes against the baseline's; all of it without one."""
    params = run.outcome(number).params
    if run.baseline is None or number == run.baseline:
        return ()
    return differences(params, run.outcome(run.baseline).params)


def differences(params: Mapping[str, Value], before: Mapping[str, Value]) -> tuple[Change, ...]:
    """Parameters in which two configurations differ; `1` and `true` are different values."""
    names = [*params, *(name for name in before if name not in params)]
    changes = (
        Change(name, params.get(name), before.get(name), name in params, name in before)
        for name in names
    )
    return tuple(change for change in changes if _differs(change))


def _differs(change: Change) -> bool:
    same = change.value == change.was and type(change.value) is type(change.was)
    return not same or change.applies != change.applied


def settings_text(changes: Sequence[Change]) -> str:
    """`num_steps=3 nccl_proto=LL`: what changed, without what no longer applies."""
    words = [f"{change.name}={value_text(change.value)}" for change in changes if change.applies]
    return " ".join(words) or "nothing"


def engine_versions(run: Run) -> dict[str, str]:
    """Engine -> version; several versions of one engine are joined, oldest trial first."""
    versions: dict[str, list[str]] = {}
    for outcome in run.outcomes:
        seen = versions.setdefault(outcome.engine, [])
        if outcome.engine_version and outcome.engine_version not in seen:
            seen.append(outcome.engine_version)
    return {engine: ", ".join(seen) for engine, seen in versions.items() if seen}


def without_outcome(run: Run) -> list[int]:
    """Trials that have a folder and no outcome: they run now, or their driver was killed."""
    known = {outcome.number for outcome in run.outcomes}
    return [number for number in run.unfinished if number not in known]


@dataclass(frozen=True)
class FailureGroup:
    """The trials that failed for one cause."""

    kind: str
    phase: str
    cause: str
    trials: tuple[int, ...]
    excerpt: tuple[str, ...]


def failure_groups(outcomes: Sequence[Outcome]) -> tuple[FailureGroup, ...]:
    """Failures by cause, numbers in it aside, the most frequent first.

    Cause and excerpt are those of the group's first trial.
    """
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.failure is not None:
            failure = outcome.failure
            same = _NUMBER.sub("#", failure.cause)  # 0.19 GiB and 0.27 GiB free are one cause
            key = (failure.kind.value, failure.phase.value, same)
            groups.setdefault(key, []).append(outcome)
    ordered = sorted(groups.values(), key=lambda group: (-len(group), group[0].number))
    return tuple(_failure_group(failed) for failed in ordered)


_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def _failure_group(failed: Sequence[Outcome]) -> FailureGroup:
    first = failed[0].failure
    assert first is not None
    return FailureGroup(
        kind=first.kind.value,
        phase=first.phase.value,
        cause=first.cause,
        trials=tuple(outcome.number for outcome in failed),
        excerpt=first.excerpt,
    )


@dataclass(frozen=True)
class WarningGroup:
    """The trials that gave one warning; `text` is the first one's.

    `alike` says whether the others' are the same to the letter, or have other numbers in them.
    """

    text: str
    trials: tuple[int, ...]
    alike: bool

    @property
    def trials_text(self) -> str:
        """`trials 3, 7`, and whose figures `text` has if they differ."""
        whose = "" if self.alike else f"; these are the figures of trial {self.trials[0]}"
        return f"{trials_text(self.trials)}{whose}"


def warning_groups(outcomes: Sequence[Outcome]) -> tuple[WarningGroup, ...]:
    """Warnings by kind, that is measures in them aside; the most frequent first."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for outcome in outcomes:
        for text in outcome.warnings:
            groups.setdefault(_without_measures(text), []).append((outcome.number, text))
    ordered = sorted(groups.values(), key=lambda group: (-len(group), group[0][0]))
    return tuple(
        WarningGroup(
            text=group[0][1],
            trials=tuple(dict.fromkeys(number for number, _ in group)),
            alike=len({text for _, text in group}) == 1,
        )
        for group in ordered
    )


_NAME_OR_MEASURE = re.compile(
    r"""(?P<name>
        \b(?:gpu|cuda|device|rank|worker|trial|slot|port|pid|process|host|node|cpu|core)s?
            [ ]?[#=:]?\d+(?:(?:,[ ]?|-|[ ]and[ ])\d+)*     # GPU 0; ranks 0, 3; cores 0-7; cuda:1
        | [^\W\d]+-?\d[\w.-]*                            # TP0, node-1, python3.11
        | \d+(?:\.\d+){2,}                                # an address or a version
    ) | \d+(?:[.,]\d+)*""",
    re.VERBOSE | re.IGNORECASE,
)


def _without_measures(text: str) -> str:
    """`#` for each number that measures; one that says which GPU, rank or process it is stays."""
    return _NAME_OR_MEASURE.sub(lambda match: match["name"] or "#", text)


# -- words ----------------------------------------------------------------------------------


def summary_line(run: Run) -> str:
    """`kimi-k2.5: 40 trials, 33 measured, 7 infeasible; front of 4; sglang 0.5.23`."""
    states = Counter(outcome.state for outcome in run.outcomes)
    states["running" if run.live else "interrupted"] += len(without_outcome(run))
    counts = [f"{states['ok']} measured"] + [
        f"{count} {state}" for state, count in states.items() if state != "ok" and count
    ]
    trials = sum(states.values())
    versions = " and ".join(f"{name} {text}" for name, text in engine_versions(run).items())
    parts = [
        f"{trials} trial{'' if trials == 1 else 's'}, {', '.join(counts)}",
        f"front of {len(run.front)}",
        versions,
        "simulated" if run.simulated else "",
    ]
    return f"{run.name}: " + "; ".join(part for part in parts if part)


def trials_text(numbers: Sequence[int], most: int = 12) -> str:
    """`trial 3`, `trials 3, 7 and 5 more`: the first `most` of them."""
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    listed = ", ".join(str(number) for number in numbers[:most])
    return f"trial{'' if len(numbers) == 1 else 's'} {listed}{more}"


def value_text(value: Value) -> str:
    """A value as it stands in an experiment file; null is `unset`."""
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def params_text(params: Mapping[str, Value]) -> str:
    return " ".join(f"{name}={value_text(value)}" for name, value in params.items())


def number_text(value: float) -> str:
    """Tokens per second with the digits that mean something: `81.9`, `2,370`."""
    return f"{value:,.{1 if abs(value) < 1000 else 0}f}"


def figure_text(point: Point, name: str) -> str:
    """`81.9 ± 0.4`."""
    value, spread = point.values[name], point.spread.get(name, 0.0)
    digits = 1 if value < 1000 else 0
    return number_text(value) + (f" ± {spread:,.{digits}f}" if spread else "")


def gain_text(ratio: float) -> str:
    """`+12.3 %` for 1.123."""
    return f"{(ratio - 1) * 100:+.1f} %"


def command_line(outcome: Outcome) -> str:
    """The command as one line of shell, with its environment in front."""
    words = [f"{name}={shlex.quote(value)}" for name, value in outcome.env.items()]
    return " ".join([*words, *map(shlex.quote, outcome.command)])
