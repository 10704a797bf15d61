"""What is launched again: all that people choose from, and what was cut off only once more."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.confirmation import (
    broken_machine,
    finalists,
    most_launches,
    next_round,
    to_confirm,
)
from autotune.experiment import Confirm, Experiment
from autotune.front import front_of, points_of
from autotune.records import PEAK, SINGLE, Outcome
from autotune.run import read_run
from tests.runs import EXPERIMENT, baseline, failed, measured
from tests.searching import Study, ended, kill, study_in, wait_for

KNEE = 2
# The knee, with the largest product, is neither an end nor in the middle of this front.
FRONT = tuple(
    measured(number, single, peak)
    for number, (single, peak) in enumerate(
        [(120, 900), (118, 1000), (115, 1500), (100, 1550), (90, 1600), (80, 1650), (50, 1700)]
    )
)


@pytest.mark.parametrize(
    ("most", "numbers"),
    [(0, []), (1, [KNEE]), (2, [0, 6]), (3, [0, 6, KNEE]), (4, [0, 6, KNEE, 4]), (9, range(7))],
)
def test_the_ends_and_the_knee_are_launched_again_first(most: int, numbers: list[int]) -> None:
    assert chosen(FRONT, most) == list(numbers)


def test_a_member_that_was_launched_again_is_not_replaced_by_one_that_was_not() -> None:
    again = measured(7, 80, 1650, purpose="finalist", repeats=5)
    assert chosen((*FRONT, again), 4) == [0, 6, KNEE, 5]


def test_where_the_knee_is_an_end_the_one_between_is_in_the_middle() -> None:
    tail = FRONT[KNEE:]
    assert chosen(tail, 3) == [KNEE, 6, 4]


def chosen(outcomes: tuple[Outcome, ...], most: int) -> list[int]:
    return [point.number for point in finalists(front_of(points_of(outcomes)), most)]


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


def test_a_driver_killed_as_it_confirms_forgets_no_known_good(tmp_path: Path) -> None:
    study = study_in(tmp_path / "study", trials=1)
    file = study.folder / "small.yaml"
    text = file.read_text().replace("{finalists: 0, relaunches: 0}", "{finalists: 1}")
    (line,) = [line for line in text.splitlines() if line.startswith("  - {")]
    file.write_text(text.replace(line, f"{line}\n{line.replace('32', '64')}"))
    process = study.start(speed=40)
    wait_for(lambda: study.has_launched(2), process)
    kill(process)
    assert study.search("--resume", "--trials", "2")[0] == 0
    outcomes = study.outcomes()
    assert [o["purpose"] for o in outcomes if o["repeats"] is None] == ["baseline", "known_good"]
    assert set(confirmed(study, "ok").values()) == {1}


def test_a_known_good_entry_that_is_added_is_launched_next_and_finalists_after_it(
    tmp_path: Path,
) -> None:
    study = study_in(tmp_path / "study", trials=1)
    file = study.folder / "small.yaml"
    file.write_text(file.read_text().replace("{finalists: 0, relaunches: 0}", "{finalists: 1}"))
    process = study.start()
    wait_for(lambda: study.has_launched(2), process)
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 130
    added = "{attention_backend: triton, max_running_requests: 8, fault: null}"
    file.write_text(file.read_text().replace("known_good:", f"known_good:\n  - {added}"))
    assert study.search("--resume", "--trials", "2")[0] == 0
    after = study.outcomes()[2:]
    assert [o["purpose"] for o in after][:2] == ["known_good", "finalist"]
    assert after[0]["params"]["max_running_requests"] == 8


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("works", range(5))
def test_a_machine_that_breaks_after_some_launches_costs_no_member(works: int, seed: int) -> None:
    first = (baseline(), *(measured(n, 100 + n, 2000 - n) for n in range(1, 7)))
    outcomes, why = confirm(first, seed, runs=lambda number, _: number < len(first) + works)
    assert why is not None or works == 4  # all had been launched
    assert {p.number for p in points_of(outcomes)} == set(range(7))
    repaired, why = confirm(outcomes, seed, runs=lambda *_: True)
    assert why is None
    assert Counter(o.repeats for o in repaired[7:] if o.state == "ok").keys() == {0, 1, 3, 6}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("works", range(4))
def test_a_driver_that_ends_before_its_witness_costs_no_member(works: int, seed: int) -> None:
    first = (baseline(), *(measured(n, 100 + n, 2000 - n) for n in range(1, 7)))
    began = len(first) + works
    outcomes, _ = confirm(first, seed, runs=lambda number, _: number < began)
    resumed, _ = confirm(outcomes[: began + 1], seed, runs=lambda *_: False)
    assert {p.number for p in points_of(resumed)} == set(range(7))


def test_a_finalist_that_fails_while_the_baseline_runs_is_left_out() -> None:
    first = (baseline(), *(measured(n, 100 + n, 2000 - n) for n in range(1, 4)))
    outcomes, why = confirm(first, seed=0, runs=lambda _, of: of not in (1, 2))
    assert why is None
    assert {p.number for p in points_of(outcomes)} == {0, 3}


def confirm(
    outcomes: tuple[Outcome, ...], seed: int, runs: Callable[[int, int], bool]
) -> tuple[tuple[Outcome, ...], str | None]:
    """One search's confirmation, one launch after another; `runs` says which work, by their number
    and what they repeat."""
    experiment, begun = Experiment.model_validate(EXPERIMENT), len(outcomes)
    while due := next_round(experiment, outcomes, seed):
        for of in due:
            again = {"purpose": "finalist", "repeats": of.number}
            number, values = len(outcomes), of.values or {}
            if runs(number, of.number):
                outcomes += (measured(number, values[SINGLE], values[PEAK], **again),)
            else:
                outcomes += (failed(number, **again),)
        assert len(outcomes) - begun <= most_launches(experiment.confirm)
        if why := broken_machine(experiment, outcomes, begun):
            return outcomes, why
    return outcomes, None


def test_a_machine_that_breaks_as_it_confirms_costs_no_member_of_the_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, (lucky,) = study_of_lucky_figures(tmp_path, trials=2, faults="null")
    monkeypatch.setenv("AUTOTUNE_SIM_FAULT", "exit1")
    status, output = study.search("--resume")
    assert status == 0, output
    assert "done: the last 2 fresh launches failed: 2x crashed during launch" in output
    assert read_run(study.run).front == (lucky,)
    monkeypatch.delenv("AUTOTUNE_SIM_FAULT")
    assert study.search("--resume")[0] == 0
    assert confirmed(study, "ok") == Counter([0, lucky])


def test_a_machine_that_breaks_once_the_baseline_is_confirmed_costs_none_either(
    tmp_path: Path,
) -> None:
    study, (lucky,) = study_of_lucky_figures(tmp_path, trials=2, faults="null")
    process = study.start("--resume", speed=40)
    wait_for(lambda: study.has_launched(3), process)  # the baseline, again: it runs to its end
    (study.run / "simulated" / "host.json").write_text('{"host": "1x-rtx-pro-6000"}')
    status, output = ended(process)
    assert status == 0, output
    assert confirmed(study, "ok") == Counter([0])
    assert "done: the last 2 fresh launches failed" in output
    assert read_run(study.run).front == (lucky,)
    assert study.search("--resume")[0] == 0  # on a whole machine, as every search begins
    assert confirmed(study, "ok") == Counter([0, lucky])


def test_what_a_confirmation_brings_to_the_front_is_confirmed_too(tmp_path: Path) -> None:
    study, lucky = study_of_lucky_figures(tmp_path, trials=8)
    most = most_launches(Confirm(finalists=1))
    assert len(lucky) > most

    status, output = study.search("--resume")
    assert status == 0, output
    assert confirmed(study, "ok") == Counter([0, *lucky[: most - 1]])
    assert f"launched once so far: trial {lucky[most - 1]}; the same search" in output

    status, output = study.search("--resume")
    assert status == 0, output
    assert confirmed(study, "ok") == Counter([0, *lucky])
    assert "launched once so far" not in output


def test_the_finalists_are_launched_again_and_others_within_the_hours(tmp_path: Path) -> None:
    study, lucky = study_of_lucky_figures(tmp_path, trials=4)
    status, output = study.search("--resume", "--hours", "0.0001")
    assert status == 0, output
    assert confirmed(study, "ok") == Counter([0, lucky[0]])
    assert f"launched once so far: trial {lucky[1]}; the same search" in output


def study_of_lucky_figures(
    tmp_path: Path, trials: int, faults: str = "null, 'crash_under_load:1e9'"
) -> tuple[Study, list[int]]:
    """A study that has not confirmed anything, and trials of which one after another comes to
    the front as those before it are launched again."""
    study = study_in(tmp_path / "study")
    study.write(trials=trials, faults=faults)  # the more, the more configurations that work
    assert study.search()[0] == 0
    lucky = [outcome["number"] for outcome in study.outcomes() if outcome["state"] == "ok"][1:]
    for rank, number in enumerate(lucky):
        claim(study, number, 100.0 / (rank + 2))
    file = study.folder / "small.yaml"
    file.write_text(file.read_text().replace("{finalists: 0, relaunches: 0}", "{finalists: 1}"))
    return study, lucky


def claim(study: Study, number: int, factor: float) -> None:
    """Make a stored trial's figures so many times the baseline's."""
    baseline, path = study.outcomes()[0], study.run / "trials" / f"{number:04d}" / "outcome.json"
    outcome = json.loads(path.read_text())
    outcome["values"] = {name: value * factor for name, value in baseline["values"].items()}
    path.write_text(json.dumps(outcome))


def confirmed(study: Study, state: str) -> Counter[int]:
    """How often each configuration was launched again, by how it ended."""
    again = [o for o in study.outcomes() if o["purpose"] == "finalist" and o["state"] == state]
    return Counter(o["repeats"] for o in again)
