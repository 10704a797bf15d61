"""Which trial to take home: an end of the front, its knee, a number, or a rule."""

from __future__ import annotations

from collections.abc import Mapping

from autotune import expressions
from autotune.errors import InputError
from autotune.front import Point, front_of, picks_of
from autotune.limits import is_upper_limit
from autotune.records import FIGURES, OBJECTIVES, PEAK, SINGLE
from autotune.run import Run

PICKS = ("single", "peak", "knee")
_SHORT = {"single": SINGLE, "peak": PEAK}


def choose(
    run: Run,
    *,
    pick: str | None = None,
    trial: int | None = None,
    best: str | None = None,
    where: str | None = None,
) -> int:
    """The number of the trial chosen; the knee if nothing is said.

    Args:
        pick: `single` and `peak` are the ends of the front, `knee` its balanced member
            (`front.knee_of`).
        trial: a trial's number, feasible or not.
        best: an objective or a figure to have the most of, or the least if it is a time.
        where: an expression over objectives and figures that must hold, such as
            `single_stream_tok_s >= 60 and p99_ttft_ms < 4000`.

    Raises:
        InputError: more than one way of choosing, an unknown name, or nothing to choose from.
    """
    ways = [pick is not None, trial is not None, best is not None or where is not None]
    if sum(ways) > 1:
        raise InputError("--pick, --trial and --max/--where exclude each other")
    if trial is not None:
        return run.outcome(trial).number
    if not run.points:
        raise InputError("no trial was measured: there is nothing to choose from", file=run.path)
    if best is not None or where is not None:
        return _by_rule(run, best or "peak", where)
    return _by_pick(run, pick or "knee")


def _by_pick(run: Run, pick: str) -> int:
    front = front_of(run.points)
    if pick not in PICKS:
        raise InputError(f"unknown pick {pick!r}: one of {', '.join(PICKS)}", field="--pick")
    return picks_of(front)[pick].number


def _by_rule(run: Run, best: str, where: str | None) -> int:
    name = _SHORT.get(best, best)
    if name not in (*OBJECTIVES, *FIGURES):
        raise InputError(f"unknown figure {best!r}: {_known()}", field="--max")
    if where is not None:
        _check_names(where)
    fitting = [
        point
        for point in run.points
        if name in (figures := figures_of(run, point))
        and (where is None or expressions.holds(where, figures))
    ]
    if not fitting:
        raise InputError(_nothing_fits(run, name, where), field="--where" if where else "--max")
    sign = -1 if is_upper_limit(name) else 1
    return max(fitting, key=lambda point: sign * figures_of(run, point)[name]).number


def figures_of(run: Run, point: Point) -> Mapping[str, float]:
    """Everything a rule may name: the trial's figures, its pooled objectives, their short names."""
    short = {name: point.values[objective] for name, objective in _SHORT.items()}
    return {**run.outcome(point.number).figures, **point.values, **short}


def _check_names(where: str) -> None:
    unknown = sorted(expressions.names(where) - {*OBJECTIVES, *FIGURES, *_SHORT})
    if unknown:
        raise InputError(f"unknown figure {unknown[0]!r}: {_known()}", field="--where")


def _known() -> str:
    return f"one of {', '.join((*_SHORT, *OBJECTIVES, *FIGURES))}"


def _nothing_fits(run: Run, name: str, where: str | None) -> str:
    if where is None:
        return f"no trial has the figure {name}"
    ends = " and ".join(
        f"{objective} {min(p.values[objective] for p in run.points):,.1f} to "
        f"{max(p.values[objective] for p in run.points):,.1f}"
        for objective in OBJECTIVES
    )
    return f"no measured trial with {name} meets {where!r}; there is {ends}"
