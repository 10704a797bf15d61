"""What one must know before one believes a front: no baseline, members launched once or forbidden
by now."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from autotune.conditions import forbidden
from autotune.confirmation import to_confirm
from autotune.experiment import Confirm, Forbid
from autotune.front import front_of, telling
from autotune.run import Run
from autotune.verdict import trials_text, without_gains


def caveats(run: Run) -> list[str]:
    """A line each; none for a front that is confirmed and has a baseline."""
    return [line for line in (without_gains(run), *of_confirmation(run)) if line]


def of_confirmation(run: Run) -> list[str]:
    """A line for each thing that keeps the front from being confirmed as it stands."""
    lines = (_failed_together(run), *_forbidden(run), *_launched_once(run))
    return [line for line in lines if line]


def _failed_together(run: Run) -> str:
    """Which fresh launches count for nothing."""
    counted = {outcome.number for outcome in telling(run.outcomes)}
    others = [outcome.number for outcome in run.outcomes if outcome.number not in counted]
    if not others:
        return ""
    return (
        f"fresh launches failed together with the baseline's: {trials_text(others)}; that is the "
        "machine's fault, and the configurations keep the figures they had"
    )


def _forbidden(run: Run) -> Iterator[str]:
    """The front's members that the experiment forbids by now, and why."""
    for number, because in forbidden_members(run).items():
        yield f"forbidden by now: {trials_text([number])} ({because})"


def forbidden_members(run: Run) -> dict[int, str]:
    """The front's members that the experiment forbids by now -> why."""
    rules = _forbid(run)
    reasons = ((number, forbidden(rules, run.outcome(number).params)) for number in run.front)
    return {number: because for number, because in reasons if because is not None}


def _launched_once(run: Run) -> list[str]:
    """The front's members that carry the luck of one launch, and what becomes of them.

    What a confirmation had to leave at its bound, a resumed search launches. Before a search has
    come to its end it is not known which members will be there then.
    """
    confirm, never = _confirm(run), forbidden_members(run)
    members = [point for point in front_of(run.points) if point.number not in never]
    once = [point.number for point in members if point.launched_once]
    if not once or confirm is None or not (confirm.finalists and confirm.relaunches):
        return []
    if not run.finished:
        return [f"launched once so far: {trials_text(once)}"]
    waiting = {outcome.number for outcome in to_confirm(confirm, run.outcomes, 0, _forbid(run))}
    next_ones = [number for number in once if number in waiting]
    others = [number for number in once if number not in waiting]
    lines = []
    if next_ones:
        then = "the same search with --resume launches "
        then += "it again" if len(next_ones) == 1 else "them again"
        lines.append(f"launched once so far: {trials_text(next_ones)}; {then}")
    if others:
        lines.append(
            f"launched once: {trials_text(others)} (confirm.finalists: {confirm.finalists})"
        )
    return lines


def _forbid(run: Run) -> list[Forbid]:
    """Nothing where the run's experiment cannot be read."""
    try:
        return [Forbid.model_validate(rule) for rule in run.experiment.get("forbid") or []]
    except (ValidationError, TypeError):
        return []


def _confirm(run: Run) -> Confirm | None:
    """None where the run's experiment cannot be read."""
    try:
        return Confirm.model_validate(run.experiment.get("confirm") or {})
    except ValidationError:
        return None
