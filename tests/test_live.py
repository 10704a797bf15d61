"""What a person sees while a study runs: on a terminal, in a log, and from another terminal."""

from __future__ import annotations

import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from autotune import live, snapshot
from autotune.errors import InputError
from autotune.live import (
    PlainView,
    duration,
    print_log,
    progress_line,
    screen,
    status_text,
    summary_line,
)
from autotune.records import Phase, Progress
from autotune.run import read_run
from autotune.rundir import RunDir, write_json
from autotune.search import SearchEnd
from autotune.snapshot import FrontRow, Snapshot
from tests.runs import baseline, failed, measured, write_run

BASELINE = FrontRow(number=0, single_stream_tok_s=78.2, peak_tok_s=1070, params="the baseline")
BETTER = FrontRow(
    number=2, single_stream_tok_s=104.5, peak_tok_s=1036, params="num_steps=2 backend=triton"
)


def state(**fields: Any) -> Snapshot:
    defaults: dict[str, Any] = {
        "name": "kimi",
        "pid": 2**22 + 1,  # of no process
        "simulated": False,
        "trials_done": 3,
        "trials_planned": 40,
        "launches": 3,
        "slots": 1,
        "running": (),
        "baseline": BASELINE,
        "front": (BETTER,),
        "failures": {},
        "spent_seconds": 1800.0,
        "budget_seconds": 43200.0,
        "eta_seconds": 24000.0,
        "stopping": None,
    }
    return Snapshot.model_validate(defaults | fields)


def seen(snapshot: Snapshot, width: int = 80) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(screen(snapshot))
    return capture.get()


def test_one_line_says_how_far_the_study_is() -> None:
    assert summary_line(state()) == (
        "kimi: 3 of 40 trials, about 6 h 40 min left | spent 30 min 00 s of 12 h 00 min | "
        "best 104.5 single, 1,036 peak tok/s"
    )
    assert "left" not in summary_line(state(eta_seconds=0.0))
    confirming = state(trials_done=40, eta_seconds=380.0, confirming=True)
    assert "40 of 40 trials, at least 6 min 20 s left |" in summary_line(confirming)


def test_it_is_said_which_machine_is_simulated() -> None:
    simulated = state(simulated=True, simulated_machines=("8x-b200", "8x-h200"))
    assert seen(simulated).startswith("SIMULATION of 8x-b200 and 8x-h200: no figure below")


def test_the_screen_shows_trials_front_failures_and_stopping() -> None:
    running = Progress(trial=3, phase=Phase.LOAD, detail="61/163 shards", phase_seconds=125)
    text = seen(
        state(
            simulated=True,
            running=(running,),
            failures={"out_of_memory": 2},
            stopping="Ctrl-C",
        )
    )
    assert "SIMULATION" in text
    assert "61/163 shards 2 min 05 s" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["2", "104.5", "1,036", "num_steps=2", "backend=triton"] in rows
    assert ["0", "78.2", "1,070", "the", "baseline"] in rows
    assert "2x out_of_memory" in text
    assert "stopping: Ctrl-C" in text


def test_a_baseline_on_the_front_is_shown_once() -> None:
    assert seen(state(front=(BASELINE,))).count("the baseline") == 2  # its row and the header


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.6, "1 min 00 s"), (450, "7 min 30 s"), (7500, "2 h 05 min")],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_phase_that_just_began_has_no_time() -> None:
    assert progress_line(Progress(trial=3, phase=Phase.WARM_UP)) == "trial 3: warm up"


def test_a_log_gets_a_line_for_each_trial_that_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_QUIET_SECONDS", math.inf)
    view = PlainView()
    view.show(state(launches=0, trials_done=0, recent=()))
    for phase in (Phase.LAUNCH, Phase.LOAD, Phase.SINGLE, Phase.PEAK):
        view.show(state(launches=0, running=(Progress(trial=0, phase=phase),)))
    view.show(state(launches=2, recent=("trial 0: 78.2", "trial 1: out_of_memory")))
    view.show(state(launches=2, recent=("trial 0: 78.2", "trial 1: out_of_memory")))
    view.show(state(launches=3, recent=("trial 0", "trial 1", "trial 2: 104.5")))
    lines = [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["trial 0: 78.2", "trial 1: out_of_memory", "trial 2: 104.5"]


def test_a_resumed_study_does_not_repeat_old_trials(capsys: pytest.CaptureFixture[str]) -> None:
    PlainView().show(state(launches=3, recent=("trial 0", "trial 1", "trial 2")))
    assert capsys.readouterr().out == ""


def test_a_log_hears_of_a_phase_that_lasts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_QUIET_SECONDS", -1.0)
    view = PlainView()
    loading = Progress(trial=3, phase=Phase.LOAD, detail="7/163 shards", phase_seconds=12)
    view.show(state(running=(loading,)))
    view.show(state(running=(loading,)))
    assert capsys.readouterr().out == "trial 3: load: 7/163 shards (12 s)\n"


def test_status_says_whether_anybody_runs_the_study(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", baseline())
    assert status_text(read_run(path)) == "synthetic: nothing has been written yet"
    write_json(RunDir(path).status_json, state())
    text = status_text(read_run(path))
    assert "not running: its process is gone; --resume continues" in text
    assert "front trial   2:   104.5 single,   1,036 peak tok/s  num_steps=2" in text


def test_the_newest_log_is_printed_and_a_missing_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path / "run", baseline(), measured(1, 90, 1400))
    (RunDir(path).trial(1) / "server.log").write_text("ready\n")
    print_log(path, None, follow=True)  # the trial has ended: nothing to wait for
    assert capsys.readouterr().out == "ready\n"
    with pytest.raises(InputError, match=r"trial 0 has no server\.log"):
        print_log(path, 0, follow=False)


def test_a_finished_search_has_no_time_left(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", baseline())
    place = RunDir(path)
    write_json(place.status_json, state())
    write_json(place.summary_json, {"reason": "3 trials", "finished": True})
    text = status_text(read_run(path))
    assert "finished: 3 trials" in text.splitlines()
    assert "left" not in text
    write_json(place.summary_json, {"reason": "interrupted", "finished": False})
    assert "not running: interrupted" in status_text(read_run(path))


def test_a_search_that_was_killed_when_continued_is_not_finished(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", baseline())
    write_json(RunDir(path).summary_json, {"reason": "3 trials", "finished": True})
    write_json(RunDir(path).status_json, state(running=(Progress(trial=3, phase=Phase.LOAD),)))
    assert "not running" in status_text(read_run(path))


def test_the_end_says_what_the_front_does_not(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", failed(0, purpose="baseline"), measured(1, 90, 1400))
    last = state(pid=os.getpid(), baseline=None)
    write_json(RunDir(path).status_json, last)  # as search itself sees it
    write_json(RunDir(path).summary_json, {"reason": "2 trials", "finished": True})
    lines = PlainView().closing_lines(SearchEnd(RunDir(path), "2 trials", last))
    assert "the baseline (trial 0) failed: no gains can be given" in lines
    once = "launched once so far: trial 1; the same search with --resume launches it again"
    assert once in lines
    assert once in status_lines(path)


def status_lines(path: Path) -> list[str]:
    write_json(RunDir(path).status_json, state(baseline=None))
    return status_text(read_run(path)).splitlines()


def test_an_interrupted_trial_is_told_as_one() -> None:
    study: Any = SimpleNamespace(outcomes=[baseline()])
    cut_off = measured(14, 0, 0, state="interrupted", values=None)
    assert snapshot._ended(study, cut_off) == "trial 14: interrupted"
