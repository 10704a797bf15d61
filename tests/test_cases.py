"""What must hold when a search goes wrong: the real command line, real processes, real sockets.

Every search starts Ray, which takes seconds: so one search serves several questions.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import optuna
import pytest

from autotune import reaper
from autotune.engines.simulated import ledger
from autotune.engines.simulated.adapter import make_host
from autotune.placement import locked
from autotune.run import read_run
from autotune.rundir import RunDir
from tests.patience import until
from tests.searching import Outcome, Study, ended, kill, wait_for


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path)


def niceness(pid: int) -> int:
    """How much a process stands back for others; a server's decides what it can do."""
    return os.getpriority(os.PRIO_PROCESS, pid)


def command_name(pid: int) -> str:
    """The name of a process, as the kernel has it; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def begun(*arguments: str) -> subprocess.Popen[str]:
    """Another command than a simulated search."""
    return subprocess.Popen(
        [sys.executable, "-m", "autotune", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def configuration(outcome: Outcome) -> str:
    return json.dumps(outcome["params"], sort_keys=True)


# -- launches fail --------------------------------------------------------------------------------
def test_a_failing_baseline_does_not_loop_and_no_failed_configuration_is_launched_again(
    study: Study,
) -> None:
    """Each configuration once, the sampler told of each, stopped by the failures in a row."""
    study.write(trials=5, consecutive_failures=4, faults="oom@load", first_fault="oom@load")
    status, output = study.search()
    outcomes = study.outcomes()
    assert status == 1
    assert "4 trials failed in a row: 4x out_of_memory" in output
    assert outcomes[0]["purpose"] == "baseline"
    assert [outcome["number"] for outcome in outcomes] == [0, 1, 2, 3]
    assert len({configuration(outcome) for outcome in outcomes}) == 4
    assert len(study.launched()) == 4
    told = optuna.load_study(study_name="small", storage=f"sqlite:///{study.run}/study.db")
    assert [trial.state.name for trial in told.trials] == ["COMPLETE"] * 4
    assert all(trial.user_attrs["failure_kind"] == "out_of_memory" for trial in told.trials)
    assert not study.left()


BAD_ANSWERS = """
  - {attention_backend: triton, max_running_requests: 32, fault: no_tokens}
  - {attention_backend: triton, max_running_requests: 32, fault: "error_in_stream:0.5"}
"""


def test_what_fails_under_load_keeps_what_was_measured_and_is_never_a_figure(study: Study) -> None:
    """Out of memory at the first burst (the baseline); 200 without tokens; errors inside a 200."""
    study.write(
        trials=3,
        faults='oom@burst, no_tokens, "error_in_stream:0.5"',
        first_fault="oom@burst",
        more=BAD_ANSWERS,
    )
    status, output = study.search()
    assert status == 1, output
    outcomes = study.outcomes()
    assert len(outcomes) == 3, "never more trials than were asked for"
    assert {outcome["state"] for outcome in outcomes} == {"infeasible"}
    burst, empty, errors = outcomes
    assert (burst["failure"]["kind"], burst["failure"]["phase"]) == ("out_of_memory", "peak")
    assert burst["values"]["single_stream_tok_s"] > 30
    assert "peak_tok_s" not in burst["values"]
    assert empty["failure"]["kind"] in ("requests_failed", "stalled")
    assert errors["failure"]["kind"] == "requests_failed"
    assert not empty["values"]
    assert not errors["values"]
    assert not study.left()


# -- one machine, several trials ------------------------------------------------------------------
def test_trials_that_run_together_never_share_a_gpu_and_strangers_are_named(study: Study) -> None:
    """Two slots of four GPUs; somebody else's process holds memory on one of them."""
    study.write(gpus=4, trials=4)
    file = study.folder / "small.yaml"
    file.write_text(file.read_text().replace("moonshotai/Kimi-K2.5", "Qwen/Qwen3-8B"))  # fits
    RunDir(study.run).create()
    make_host(study.run / "simulated", "8x-rtx-pro-6000")
    stranger = subprocess.Popen(["sleep", "600"])
    theirs = {"pid": stranger.pid, "gpu": 5, "bytes": 2**30, "mark": None, "name": "theirs"}
    try:
        ledger.hold(study.run / "simulated" / "gpus.json", [theirs])
        status, output = study.search()  # which begins once both slots are there
        assert status in (0, 1), output
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    spans = [(*span_of(folder), gpus_of(folder)) for folder in study.launched()]
    together = [(a, b) for a in spans for b in spans if a is not b and a[0] < b[1] and b[0] < a[1]]
    assert together, "nothing ran at the same time"
    assert all(not (a[2] & b[2]) for a, b in together)
    for outcome, (_, _, gpus) in zip(study.outcomes(), spans, strict=True):
        named = any(f"pid {stranger.pid} (theirs)" in line for line in outcome["warnings"])
        assert named == ("5" in gpus)


def span_of(folder: Path) -> tuple[float, float]:
    """When a trial began and ended."""
    return (folder / "launch.sh").stat().st_mtime, (folder / "outcome.json").stat().st_mtime


def gpus_of(folder: Path) -> set[str]:
    """The GPUs that a trial was given."""
    name = "export CUDA_VISIBLE_DEVICES="
    lines = (folder / "launch.sh").read_text().splitlines()
    line = next(line for line in lines if line.startswith(name))
    return set(line.removeprefix(name).split(","))


# -- stopped by a person --------------------------------------------------------------------------
def test_a_stopped_search_cleans_up_and_the_stopped_trial_is_asked_again(study: Study) -> None:
    """During the baseline: Ctrl-C once, Ctrl-C twice, SIGTERM; then to the end."""
    study.write(trials=2)
    resume: tuple[str, ...] = ()
    for stops, signals in enumerate([(signal.SIGINT,), (signal.SIGINT,) * 2, (signal.SIGTERM,)]):
        search = study.start(*resume, speed=30)
        wait_for(partial(study.has_launched, stops + 1), search)
        for number in signals:
            time.sleep(0.3)
            os.kill(search.pid, number)
        status, output = ended(search)
        assert status == 130, output
        assert "--resume continues" in output
        assert not study.left_at_once()
        assert not study.left()
        assert [outcome["state"] for outcome in study.outcomes()] == ["interrupted"] * (stops + 1)
        resume = ("--resume",)
    status, output = study.search("--resume")
    assert status == 0, output
    outcomes = study.outcomes()
    assert [o["state"] for o in outcomes] == ["interrupted"] * 3 + ["ok"] * 2
    assert [o["purpose"] for o in outcomes] == ["baseline"] * 4 + ["search"]
    assert read_run(study.run).baseline == 3


# -- killed ---------------------------------------------------------------------------------------
def test_a_killed_driver_or_ray_daemon_leaves_nothing_and_resume_continues(study: Study) -> None:
    """kill -9 of the driver while a model loads, of the raylet on resume; what was measured stays.

    (A trial that is nearly over may finish without its driver, and is then taken up on resume.)
    """
    study.write(trials=3)
    search = study.start(speed=60)
    wait_for(lambda: len(study.launched()) == 2 and study.phase() == "load", search)
    before = study.outcomes()
    assert [outcome["state"] for outcome in before] == ["ok"]
    daemons = reaper.descendants(search.pid, reaper.process_table())
    assert len(daemons) > 3
    (server,) = [fact["server"] for fact in study.processes() if reaper.start_of(fact["server"])]
    assert niceness(server) == niceness(search.pid), "Ray's own is 15"
    kill(search)
    assert not study.left()
    until(lambda: not any(reaper.start_of(pid) for pid in daemons))

    search = study.start("--resume", speed=60)
    wait_for(lambda: len(study.launched()) == 3, search)
    below = reaper.descendants(search.pid, reaper.process_table())
    (raylet,) = [p for p in below if command_name(p) == "raylet"]
    os.kill(raylet, signal.SIGKILL)
    status, output = ended(search)
    assert status == 4
    said = "autotune: Ray died; what was measured is kept, --resume continues"
    assert output.splitlines()[-1] == said
    assert not study.left_at_once()
    assert not study.left()

    status, output = study.search("--resume")
    assert status == 0, output
    outcomes = study.outcomes()
    assert outcomes[0] == before[0]
    assert [o["state"] for o in outcomes] == ["ok", "interrupted", "interrupted", "ok", "ok"]
    assert outcomes[1]["params"] == outcomes[2]["params"] == outcomes[3]["params"]
    assert [o["purpose"] for o in outcomes].count("baseline") == 1
    assert not study.left()


# -- the file is edited, the driver is slow -------------------------------------------------------
def test_what_has_no_result_any_more_is_asked_again_and_a_run_is_used_by_one(study: Study) -> None:
    """A file that cannot be read, a trial that was lost as its driver ended; the lock."""
    study.write(trials=3)
    assert study.search()[0] == 0
    before = study.outcomes()
    files = [study.run / "trials" / f"{number:04d}" / "outcome.json" for number in (1, 2)]
    files[0].write_text(files[0].read_text()[:300])
    files[1].write_text(json.dumps(before[2] | {"state": "lost", "values": None, "failure": None}))
    with sqlite3.connect(study.run / "study.db") as database:
        database.execute("UPDATE trials SET state = 'FAIL' WHERE number = 2")
    arguments = [str(study.folder / "small.yaml"), "--run-dir", str(study.run), "--resume"]
    status, output = ended(begun("search", *arguments))
    assert (status, output.count("\n")) == (2, 1)
    assert "add --simulate" in output
    with locked(RunDir(study.run)):
        status, output = ended(begun("replay", str(study.run), "--trial", "0"))
    assert (status, output.count("\n")) == (2, 1)
    assert f"another `autotune search` (process {os.getpid()})" in output
    status, output = study.search("--resume")
    assert status == 0, output
    files[0].write_text(json.dumps(before[1]))
    after = study.outcomes()
    assert [configuration(o) for o in after[3:]] == [configuration(o) for o in before[1:]]
    assert [outcome["state"] for outcome in after[3:]] == ["ok", "ok"]


def test_an_edited_file_continues_or_is_refused_in_one_line_before_any_launch(study: Study) -> None:
    """And a driver that stands still for longer than its own limits takes no trial for stale."""
    study.write(trials=2)
    search = study.start(speed=100)
    wait_for(lambda: study.phase() == "load", search)
    os.kill(search.pid, signal.SIGSTOP)
    time.sleep(8.0)
    os.kill(search.pid, signal.SIGCONT)
    status, output = ended(search)
    assert status == 0, output
    assert [o["state"] for o in study.outcomes()] == ["ok"] * 2

    study.write(trials=3, backends="flashinfer, triton, trtllm_mla")
    status, output = study.search("--resume")
    assert status == 0, output
    assert [o["number"] for o in study.outcomes()] == [0, 1, 2]

    study.write(trials=4, output_tokens=99)
    status, output = study.search("--resume")
    assert status == 2
    assert len(output.splitlines()) == 1
    assert "output_tokens" in output
    assert "--fork" in output
    assert len(study.launched()) == 3
