"""`autotune explain`: why a configuration is fast or slow, from measured quantities only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from autotune.explain.capacity import concurrency_limit, front_end, graph_batch_limit
from autotune.explain.collective import collective
from autotune.explain.decode import (
    decode_step,
    decode_without_graph,
    speculation,
    speculation_at_peak,
)
from autotune.explain.finding import Case, Finding, Rule, in_order
from autotune.explain.host import (
    client_overloaded,
    cold_request,
    cold_start,
    first_claim_too_high,
    host_drift,
)
from autotune.explain.settings import (
    changed_by_the_server,
    contradicted_by_figures,
    failed,
    without_effect,
)
from autotune.front import is_measured
from autotune.run import Run
from autotune.verdict import front_rows, params_text, trials_text

CAUSES: tuple[Rule, ...] = (
    speculation,
    decode_without_graph,
    concurrency_limit,
    graph_batch_limit,
    front_end,
    collective,
    changed_by_the_server,
    contradicted_by_figures,
    client_overloaded,
)
FACTS: tuple[Rule, ...] = (
    speculation_at_peak,
    without_effect,
    cold_request,
    cold_start,
    first_claim_too_high,
)
RULES: tuple[Rule, ...] = (decode_step, *CAUSES, *FACTS)
"""What is asked about every measured trial. To add a diagnosis, write a rule and list it above:
under CAUSES if it can name what holds a trial back."""


def findings_of(run: Run, number: int) -> tuple[Finding, ...]:
    """What can be said about one trial: causes first, then facts, then what is not known."""
    case = Case(run, run.outcome(number))
    rules = RULES if is_measured(case.trial) else (failed,)
    return in_order(finding for rule in rules for finding in rule(case))


def run_findings(run: Run) -> tuple[Finding, ...]:
    """What holds for the run as a whole: whether its machine stayed the same."""
    if run.baseline is None:
        return ()
    return tuple(host_drift(Case(run, run.outcome(run.baseline))))


def explained_trials(run: Run) -> dict[int, str]:
    """Trial -> title, of those that an explanation of the whole run talks about."""
    titles: dict[int, str] = {}
    for row in front_rows(run):
        if row.mark:
            titles[row.point.number] = f"Trial {row.point.number} ({row.mark})"
    return titles


def other_causes(run: Run) -> dict[str, list[tuple[int, Finding]]]:
    """Cause -> the trials that it holds back, of those not explained on their own."""
    shown = explained_trials(run)
    causes: dict[str, list[tuple[int, Finding]]] = {}
    for outcome in run.outcomes:
        if outcome.number in shown or outcome.repeats is not None or not is_measured(outcome):
            continue
        case = Case(run, outcome)
        found = [f for rule in CAUSES for f in rule(case) if f.kind == "cause"]
        for name, finding in {finding.name: finding for finding in reversed(found)}.items():
            causes.setdefault(name, []).append((outcome.number, finding))
    return causes


def explain_document(run: Run, trial: int | None = None) -> dict[str, Any]:
    """The explanation as plain data: of one trial, or of the run and its choices."""
    numbers = [trial] if trial is not None else list(explained_trials(run))
    document: dict[str, Any] = {
        "name": run.name,
        "run": [asdict(finding) for finding in run_findings(run)],
        "trials": {
            str(number): [asdict(finding) for finding in findings_of(run, number)]
            for number in numbers
        },
    }
    if trial is None:
        document["other_causes"] = {
            name: [number for number, _ in found] for name, found in other_causes(run).items()
        }
    return document


def explain_text(run: Run, trial: int | None = None) -> str:
    """The explanation in words, for a terminal."""
    return "\n".join(_lines(run, trial))


def _lines(run: Run, trial: int | None) -> Iterator[str]:
    yield from _finding_lines(run_findings(run))
    titles = explained_trials(run) if trial is None else {trial: _title(run, trial)}
    if not titles:
        yield "Nothing was measured: `autotune show` has the failures by cause."
    for number, title in titles.items():
        yield f"{title}: {params_text(run.outcome(number).params)}"
        yield from _finding_lines(findings_of(run, number))
        yield ""
    if trial is None:
        yield from _other_lines(run)


def _title(run: Run, trial: int) -> str:
    first = run.outcome(trial).repeats
    return f"Trial {trial}" + (f" (trial {first}, launched again)" if first is not None else "")


def _finding_lines(findings: tuple[Finding, ...]) -> Iterator[str]:
    signs = {"cause": "!", "fact": "-", "unknown": "?"}
    for finding in findings:
        yield f"  {signs[finding.kind]} {finding.statement}"
        if finding.advice:
            yield f"    try: {finding.advice}"


def _other_lines(run: Run) -> Iterator[str]:
    causes = other_causes(run)
    if causes:
        yield "What held other trials back:"
    for name, found in sorted(causes.items(), key=lambda item: -len(item[1])):
        yield f"  ! {name.replace('_', ' ')}: {trials_text([number for number, _ in found])}"
        yield f"    e.g. trial {found[0][0]}: {found[0][1].statement}"


__all__ = [
    "RULES",
    "Finding",
    "explain_document",
    "explain_text",
    "explained_trials",
    "findings_of",
    "other_causes",
    "run_findings",
]
