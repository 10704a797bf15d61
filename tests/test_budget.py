"""When a study may start another trial."""

from __future__ import annotations

from autotune.budget import overrun, reason_to_stop, searched, spent_seconds
from autotune.experiment import Budget
from autotune.records import Failure, FailureKind, Outcome, Phase, Purpose, State
from tests.runs import bare_outcome


def outcome(
    number: int,
    state: State = "ok",
    purpose: Purpose = "search",
    kind: FailureKind = FailureKind.CRASHED,
    seconds: float = 600.0,
) -> Outcome:
    failure = Failure(kind=kind, phase=Phase.LOAD, cause="segfault")
    return bare_outcome(
        number,
        str(number),
        state=state,
        failure=failure if state == "infeasible" else None,
        values={"single_stream_tok_s": 1.0, "peak_tok_s": 2.0} if state == "ok" else None,
        seconds={"load": seconds},
        purpose=purpose,
    )


def test_running_trials_count_against_the_trials_asked() -> None:
    done = [outcome(n) for n in range(8)]
    assert reason_to_stop(Budget(trials=10), done, running=1, slots=1) is None
    assert reason_to_stop(Budget(trials=10), done, running=2, slots=1) == "10 trials"
    assert reason_to_stop(Budget(trials=1), done[:1], running=0, slots=1) == "1 trial"


def test_lost_trials_and_confirmations_do_not_count_as_trials() -> None:
    done = [
        outcome(0),
        outcome(1, "lost"),
        outcome(2, purpose="finalist"),
        outcome(3, "infeasible"),
    ]
    assert [o.number for o in searched(done)] == [0, 3]


def test_a_trial_that_would_overrun_the_hours_is_not_started() -> None:
    done = [outcome(n, seconds=1200.0) for n in range(3)]
    assert reason_to_stop(Budget(trials=99, hours=1.34), done, running=0, slots=1) is None
    stop = reason_to_stop(Budget(trials=99, hours=1.33), done, running=0, slots=1)
    assert stop is not None
    assert "overrun" in stop


def test_the_hours_hold_what_confirms_a_trial_too() -> None:
    done = [outcome(n, seconds=1200.0) for n in range(3)]
    assert reason_to_stop(Budget(trials=99, hours=2.34), done, running=0, slots=1, again=3) is None
    stop = reason_to_stop(Budget(trials=99, hours=2.33), done, running=0, slots=1, again=3)
    assert stop == "2.33 hours: another trial and the launches that confirm would overrun them"
    assert not overrun(Budget(hours=1.34), done, slots=2, launches=5)  # 30 of 80 minutes are over
    assert overrun(Budget(hours=1.34), done, slots=2, launches=7)
    assert not overrun(Budget(), done, slots=1, launches=99)
    assert not overrun(Budget(hours=0.1), [], slots=1, launches=99)  # nobody knows


def test_slots_share_the_hours() -> None:
    assert spent_seconds([outcome(n, seconds=900.0) for n in range(4)], slots=4) == 900.0


def test_failures_in_a_row_stop_the_study_and_are_counted_by_cause() -> None:
    done = [outcome(0), *(outcome(n, "infeasible") for n in range(1, 4))]
    assert reason_to_stop(Budget(consecutive_failures=4), done, running=0, slots=1) is None
    reason = reason_to_stop(Budget(consecutive_failures=3), done, running=0, slots=1)
    assert reason == "3 trials failed in a row: 3x crashed during load: segfault"


def test_a_missed_limit_is_a_measurement_and_no_failure_in_a_row() -> None:
    done = [outcome(n, "infeasible", kind=FailureKind.LIMIT_VIOLATED) for n in range(5)]
    assert reason_to_stop(Budget(consecutive_failures=3), done, running=0, slots=1) is None
