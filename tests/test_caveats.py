"""What is said about a front that cannot be taken as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.caveats import caveats
from autotune.confirmation import to_confirm
from autotune.experiment import Confirm, Forbid
from autotune.export import export
from autotune.records import Outcome
from autotune.report import render_report
from autotune.run import read_run
from autotune.rundir import RunDir, write_json
from tests.runs import EXPERIMENT, baseline, failed, measured, write_run

OVER = {"reason": "5 trials", "finished": True}


def said(path: Path, *outcomes: Outcome, summary: Any = OVER, **confirm: int) -> list[str]:
    write_run(path, *outcomes, experiment={**EXPERIMENT, "confirm": confirm})
    write_json(RunDir(path).summary_json, summary)
    return caveats(read_run(path))


def again(number: int, first: int, single: float, peak: float) -> Outcome:
    return measured(number, single, peak, purpose="finalist", repeats=first)


CONFIRMED = (baseline(), again(10, 0, 80, 1500))
NEW_MEMBERS = (
    *CONFIRMED,
    measured(1, 120, 900),  # it was the front's end, and is now behind trial 2
    measured(2, 110, 1000),
    measured(3, 90, 1600),
    again(11, 1, 100, 900),
    again(12, 3, 90, 1600),
)


def test_members_that_the_confirmation_brought_are_named(tmp_path: Path) -> None:
    (line,) = said(tmp_path / "run", *NEW_MEMBERS)
    assert line == (
        "launched once so far: trial 2; the same search with --resume launches it again"
    )


def test_what_is_named_is_what_a_resumed_search_launches(tmp_path: Path) -> None:
    assert said(
        tmp_path / "run", *NEW_MEMBERS, measured(4, 85, 1700), finalists=2, relaunches=1
    ) == ["launched once so far: trials 2, 4; the same search with --resume launches them again"]
    launched = to_confirm(Confirm(finalists=2), (*NEW_MEMBERS, measured(4, 85, 1700)), seed=0)
    assert {outcome.number for outcome in launched} == {2, 4}


def test_members_that_are_no_finalists_stay_as_they_are(tmp_path: Path) -> None:
    middle = measured(5, 100, 1200)
    lines = said(tmp_path / "run", *NEW_MEMBERS, middle, finalists=2, relaunches=1)
    assert lines == [
        "launched once so far: trial 2; the same search with --resume launches it again",
        "launched once: trial 5 (confirm.finalists: 2)",
    ]


def test_launches_that_failed_with_the_baseline_are_named(tmp_path: Path) -> None:
    broken = [failed(number, purpose="finalist", repeats=of) for number, of in ((10, 1), (11, 0))]
    first, second = said(tmp_path / "run", baseline(), measured(1, 90, 1600), *broken)
    assert first.startswith("fresh launches failed together with the baseline's: trials 10, 11;")
    assert "launched once so far: trial 1; the same search with --resume" in second
    report = render_report(read_run(tmp_path / "run"), "md")
    assert all(line[1:] in report for line in (first, second))


def test_a_member_that_is_forbidden_by_now_is_named_and_not_launched(tmp_path: Path) -> None:
    rule = {"if": "backend == 'slow'", "because": "it crashed the host"}
    bad = measured(5, 130, 1700, params={"backend": "slow"})
    path = write_run(
        tmp_path / "run", *NEW_MEMBERS, bad, experiment={**EXPERIMENT, "forbid": [rule]}
    )
    write_json(RunDir(path).summary_json, OVER)
    run = read_run(path)
    assert caveats(run) == ["forbidden by now: trial 5 (it crashed the host)"]
    assert "the experiment forbids it by now: it crashed the host" in export(run, 5).warnings
    launched = to_confirm(Confirm(), (*NEW_MEMBERS, bad), 0, [Forbid.model_validate(rule)])
    assert [outcome.number for outcome in launched] == [2]


@pytest.mark.parametrize("off", [{"finalists": 0}, {"relaunches": 0}])
def test_nothing_is_said_where_nothing_is_confirmed(tmp_path: Path, off: dict[str, int]) -> None:
    assert said(tmp_path / "run", *NEW_MEMBERS, **off) == []


def test_a_search_that_is_not_over_may_still_find_others(tmp_path: Path) -> None:
    stopped = {"reason": "interrupted", "finished": False}
    assert said(tmp_path / "run", *NEW_MEMBERS, summary=stopped) == [
        "launched once so far: trial 2"
    ]


def test_a_confirmed_front_needs_no_word(tmp_path: Path) -> None:
    assert said(tmp_path / "run", *NEW_MEMBERS, again(13, 2, 110, 1000)) == []


def test_a_baseline_that_failed_is_named(tmp_path: Path) -> None:
    first = failed(0, purpose="baseline")
    assert said(tmp_path / "first", first) == [
        "the baseline (trial 0) failed: no gains can be given"
    ]
    later = failed(10, purpose="finalist", repeats=0)
    assert said(tmp_path / "later", baseline(), later) == [
        "the baseline (trial 0) failed when launched again: no gains can be given"
    ]
