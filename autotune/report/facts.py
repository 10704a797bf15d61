"""What a report says about a run, ready to be written: no markup here, no arithmetic there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from autotune import __version__
from autotune.caveats import of_confirmation
from autotune.drift import Drift, drift_of
from autotune.explain import (
    Finding,
    explained_trials,
    findings_of,
    other_causes,
    run_findings,
)
from autotune.front import Point
from autotune.records import OBJECTIVES, PEAK, SINGLE, Outcome, Phase
from autotune.report.effects import Effect, effects_of
from autotune.run import Run
from autotune.verdict import (
    TITLES,
    FailureGroup,
    FrontRow,
    WarningGroup,
    baseline_point,
    engine_versions,
    failure_groups,
    figure_text,
    front_rows,
    gain_text,
    number_text,
    summary_line,
    warning_groups,
    without_gains,
)
from autotune.worth import worth_of, worth_text

MOST_EFFECTS = 10
"""Parameters shown for each objective: first those whose worth is known."""


@dataclass(frozen=True)
class Confirmed:
    """A finalist's first figure against that of its fresh launches, for one objective."""

    claimed: str
    confirmed: str
    change: str
    holds: bool


@dataclass(frozen=True)
class Finalist:
    """A configuration that was launched again; `figures` are by objective."""

    trial: int
    launches: int
    figures: Mapping[str, Confirmed]


@dataclass(frozen=True)
class PhaseCost:
    """Hours that all trials together spent in a phase, and the median trial's seconds."""

    phase: str
    hours: float
    share: float
    median_seconds: float


@dataclass(frozen=True)
class Repeated:
    """A text and the trials that gave it."""

    text: str
    trials: tuple[int, ...]


@dataclass(frozen=True)
class Facts:
    """Everything a report shows."""

    run: Run
    summary: str
    verdict: tuple[str, ...]
    front: tuple[FrontRow, ...]
    explanations: tuple[tuple[str, tuple[Finding, ...]], ...]
    other_causes: tuple[tuple[str, tuple[int, ...], str], ...]
    effects: Mapping[str, tuple[Effect, ...]]
    worth: Mapping[str, Mapping[str, str]]
    finalists: tuple[Finalist, ...]
    drift: tuple[Drift, ...]
    phases: tuple[PhaseCost, ...]
    hours: float
    failures: tuple[FailureGroup, ...]
    overrides: tuple[Repeated, ...]
    warnings: tuple[WarningGroup, ...]
    machine: tuple[tuple[str, str], ...]
    workload: tuple[tuple[str, str], ...]
    versions: tuple[tuple[str, str], ...]
    reproduce: tuple[tuple[str, str], ...]


def facts_of(run: Run) -> Facts:
    """Gather what a report of this run says."""
    phases = tuple(_phase_costs(run))
    return Facts(
        run=run,
        summary=summary_line(run),
        verdict=tuple(_verdict(run)),
        front=front_rows(run),
        explanations=tuple(_explanations(run)),
        other_causes=tuple(_other_causes(run)),
        effects={name: _effects(run, name) for name in OBJECTIVES},
        worth={
            name: {parameter: worth_text(effect) for parameter, effect in found.items()}
            for name, found in worth_of(run).items()
        },
        finalists=tuple(_finalists(run)),
        drift=drift_of(run),
        phases=phases,
        hours=sum(phase.hours for phase in phases),
        failures=failure_groups(run.outcomes),
        overrides=_repeated(_override_texts(run)),
        warnings=warning_groups([_without_overrides(outcome) for outcome in run.outcomes]),
        machine=tuple(_machine(run)),
        workload=tuple((k, f"{v}") for k, v in (run.experiment.get("workload") or {}).items()),
        versions=(("autotune", __version__), *engine_versions(run).items()),
        reproduce=tuple(_reproduce(run)),
    )


def _explanations(run: Run) -> Iterator[tuple[str, tuple[Finding, ...]]]:
    whole = run_findings(run)
    if whole:
        yield "The whole study", whole
    for number, title in explained_trials(run).items():
        yield title, findings_of(run, number)


def _other_causes(run: Run) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """(cause, trials, the first one's statement), the most frequent first."""
    found = sorted(other_causes(run).items(), key=lambda item: -len(item[1]))
    for name, trials in found:
        numbers = tuple(number for number, _ in trials)
        yield name.replace("_", " "), numbers, trials[0][1].statement


def _effects(run: Run, objective: str) -> tuple[Effect, ...]:
    known = list(worth_of(run)[objective])
    effects = effects_of(run, objective)
    ranks = {name: rank for rank, name in enumerate(known)}
    return tuple(sorted(effects, key=lambda e: ranks.get(e.parameter, len(ranks))))[:MOST_EFFECTS]


def _verdict(run: Run) -> Iterator[str]:
    """One sentence for each choice on the front, best first; says what is not known."""
    rows = [row for row in front_rows(run) if row.on_front]
    if not rows:
        yield "No configuration was measured."
        return
    if baseline_point(run) is None:
        why = without_gains(run) or "there is no baseline: no gains can be given"
        yield f"{why[0].upper()}{why[1:]}."
    for name, row in ((SINGLE, rows[0]), (PEAK, rows[-1])):
        yield f"{_best_text(name, row)} (trial {row.point.number})."
    for line in of_confirmation(run):
        yield f"{line[0].upper()}{line[1:]}."


def _best_text(name: str, row: FrontRow) -> str:
    text = f"Best {TITLES[name]}: {figure_text(row.point, name)} tok/s"
    return text + (f", {gain_text(row.gains[name])} against the baseline" if row.gains else "")


def _finalists(run: Run) -> Iterator[Finalist]:
    for point in run.points:
        if point.claimed is not None:
            spread = run.outcome(point.number).spread
            figures = {name: _confirmed(point, name, spread.get(name, 0.0)) for name in OBJECTIVES}
            yield Finalist(point.number, len(point.launches), figures)


def _confirmed(point: Point, name: str, claimed_spread: float) -> Confirmed:
    claimed = (point.claimed or point.values)[name]
    return Confirmed(
        claimed=number_text(claimed),
        confirmed=figure_text(point, name),
        change=gain_text(point.values[name] / claimed),
        holds=abs(point.values[name] - claimed) <= claimed_spread + point.spread[name],
    )


def _phase_costs(run: Run) -> Iterator[PhaseCost]:
    total = sum(sum(outcome.seconds.values()) for outcome in run.outcomes)
    for phase in Phase:
        seconds = [o.seconds[phase] for o in run.outcomes if phase in o.seconds]
        if sum(seconds) > 0:
            spent = sum(seconds)
            yield PhaseCost(phase.value, spent / 3600, spent / total, median(seconds))


def _override_texts(run: Run) -> Iterator[tuple[str, int]]:
    for outcome in run.outcomes:
        for override in outcome.overrides:
            asked, ran = f"asked {override.asked}", f"the server ran {override.effective}"
            yield f"{override.setting}: {asked}, {ran} ({override.source})", outcome.number


def _without_overrides(outcome: Outcome) -> Outcome:
    """Without the warnings about settings, which are listed as overrides."""
    settings = tuple(f"{override.setting}: asked " for override in outcome.overrides)
    others = (text for text in outcome.warnings if not text.startswith(settings or ("\0",)))
    return outcome.model_copy(update={"warnings": tuple(others)})


def _repeated(texts: Iterator[tuple[str, int]]) -> tuple[Repeated, ...]:
    groups: dict[str, list[int]] = {}
    for text, trial in texts:
        groups.setdefault(text, []).append(trial)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    return tuple(Repeated(text, tuple(trials)) for text, trials in ordered)


def _machine(run: Run) -> Iterator[tuple[str, str]]:
    if "hostname" in run.machine:
        yield "host", f"{run.machine['hostname']}"
    settings = run.machine.get("settings")
    if isinstance(settings, Mapping):
        yield from ((str(name), str(value)) for name, value in settings.items())
    digests = sorted({outcome.machine for outcome in run.outcomes if outcome.machine})
    if digests:
        yield "fingerprint", ", ".join(digests)


def _reproduce(run: Run) -> Iterator[tuple[str, str]]:
    path = run.path
    yield "search again", f"autotune search {path}/experiment.yaml --run-dir NEW-DIRECTORY"
    if run.points:
        yield "take the balanced choice home", f"autotune export {path} --pick knee > serve.sh"
        yield "measure one trial again", f"autotune replay {path} --trial {run.front[0]}"
        yield "start one trial by hand", f"bash {path}/trials/{run.front[0]:04d}/launch.sh"
    yield "why it is fast or slow", f"autotune explain {path}"
