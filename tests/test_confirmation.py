"""A fresh launch that was cut off is made good when the search is continued, and only once."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

from autotune.confirmation import to_confirm
from autotune.experiment import Confirm
from tests.runs import baseline, measured
from tests.searching import Study, ended, study_in, wait_for


def test_a_fresh_launch_that_says_nothing_is_due_again() -> None:
    first = baseline()
    for state, due in (("ok", []), ("interrupted", [first]), ("lost", [first])):
        again = measured(1, 80, 1500, purpose="finalist", repeats=0, state=state)
        assert to_confirm(Confirm(), (first, again), seed=0) == due


def test_a_confirmation_that_was_interrupted_is_made_good_once(tmp_path: Path) -> None:
    study = study_in(tmp_path / "study", trials=2)
    file = study.folder / "small.yaml"
    file.write_text(file.read_text().replace("{finalists: 0, relaunches: 0}", "{finalists: 1}"))
    process = study.start()
    wait_for(lambda: study.has_launched(3), process)
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 130
    assert confirmed(study, "interrupted")
    assert study.search("--resume")[0] == 0
    assert set(confirmed(study, "interrupted")) <= set(confirmed(study, "ok"))
    assert study.search("--resume", "--trials", "3")[0] == 0
    assert set(confirmed(study, "ok").values()) == {1}


def confirmed(study: Study, state: str) -> Counter[int]:
    """How often each configuration was launched again, by how it ended."""
    again = [o for o in study.outcomes() if o["purpose"] == "finalist" and o["state"] == state]
    return Counter(o["repeats"] for o in again)
