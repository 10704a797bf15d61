"""The time that is shown as left is that of the launches that are still to come."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from autotune.experiment import Experiment
from autotune.records import Outcome
from autotune.time_left import confirmation_seconds_left, search_seconds_left
from tests.runs import EXPERIMENT, baseline, failed, measured
from tests.searching import study_in

TRIAL = {"load": 500.0, "peak": 100.0}
"""What each trial below takes: ten minutes."""


def minutes(
    *outcomes: Outcome,
    running: tuple[float, ...] = (),
    slots: int = 1,
    size: int | None = None,
    confirm: int = 0,
    **budget: Any,
) -> float:
    relaunches = {"finalists": confirm, "relaunches": int(confirm > 0)}
    experiment = Experiment.model_validate(EXPERIMENT | {"budget": budget, "confirm": relaunches})
    seconds = search_seconds_left(experiment, outcomes, running, slots=slots, size=size)
    assert seconds is not None
    return seconds / 60


def done(count: int) -> tuple[Outcome, ...]:
    """The baseline, which is the whole front, and others behind it."""
    others = (measured(n, 70 - n, 1400 - n, seconds=TRIAL) for n in range(1, count))
    return (baseline(seconds=TRIAL), *others)


def test_trials_that_the_budget_has_left_are_counted() -> None:
    assert minutes(*done(4), trials=10) == 60
    assert minutes(*done(4), trials=10, running=(240.0,)) == 56
    assert minutes(*done(4), trials=4) == 0


def test_a_trial_that_lasts_takes_nothing_from_those_to_come() -> None:
    assert minutes(*done(4), trials=10, running=(9000.0,)) == 50


def test_trials_that_the_hours_forbid_are_not_counted() -> None:
    assert minutes(*done(4), trials=40, hours=1.0) == 20
    assert minutes(*done(4), trials=40, hours=1.0, running=(0.0,)) == 20
    assert minutes(*done(4), trials=40, hours=0.1) == 0
    assert minutes(*done(4), trials=40, hours=2.0, confirm=3) == 80  # of them 40 to confirm


def test_trials_that_the_space_does_not_have_are_not_counted() -> None:
    assert minutes(*done(4), trials=40, size=6) == 20


def test_trials_that_fail_are_over_sooner() -> None:
    quick = failed(4, seconds={"load": 60.0}), failed(5, seconds={"load": 60.0})
    assert minutes(*done(4), *quick, trials=12) == pytest.approx(6 * (4 * 10 + 2 * 1) / 6)


def test_slots_share_what_is_left_but_none_ends_before_its_trial() -> None:
    assert minutes(*done(4), trials=12, slots=4) == 20
    assert minutes(*done(4), trials=5, slots=4) == 10
    assert minutes(*done(4), trials=6, slots=4, running=(60.0, 300.0)) == 9


def test_launches_that_confirm_are_counted_as_far_as_there_can_be_any() -> None:
    assert minutes(*done(4), trials=20, confirm=3) == 160 + 40
    assert minutes(*done(4), trials=5, confirm=3) == 10 + 20
    assert minutes(*done(4), trials=4, confirm=3) == 10
    again = measured(4, 80, 1500, purpose="finalist", repeats=0, seconds=TRIAL)
    assert minutes(*done(4), again, trials=4, confirm=3) == 0


def test_a_confirmation_takes_what_it_has_left_to_launch() -> None:
    assert confirmation_seconds_left(done(4), [120.0], 2, slots=1) == 480 + 1200
    assert confirmation_seconds_left(done(4), [], 0, slots=1) == 0
    assert confirmation_seconds_left((), [], 4, slots=1) is None


def test_a_search_whose_hours_are_over_shows_only_what_it_confirms(tmp_path: Path) -> None:
    study = study_in(tmp_path / "study", trials=5)
    file = study.folder / "small.yaml"
    file.write_text(file.read_text().replace("{finalists: 0, relaunches: 0}", "{finalists: 1}"))
    status, output = study.search("--hours", "0.0001")
    assert status == 0, output
    first, again = study.outcomes()
    assert again["purpose"] == "finalist"
    # Of the one launch that is left, less what it has taken by the time the line is printed.
    shown = re.search(
        r"\[1 of 5 trials, (?:about|at least) (\d+) min (\d+) s left\] trial 0", output
    )
    assert shown is not None, output
    left = 60 * int(shown[1]) + int(shown[2])
    assert 0 < left <= sum(first["seconds"].values()) + 1
    assert "[1 of 5 trials] trial 1 (finalist)" in output
    assert json.loads((study.run / "status.json").read_text())["eta_seconds"] == 0
