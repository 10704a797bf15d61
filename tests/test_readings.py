"""What `doctor` reads of trials' processes: a server that is looked after is never to be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import autotune
from autotune.doctor import Finding, judge
from autotune.leash import Leash
from autotune.machine import NoGpuMachine, process_name
from autotune.readings import Marked, Readings, is_reaper, marked_processes, read_host
from tests.census import marked
from tests.patience import eventually
from tests.searching import Study, ended, wait_for
from tests.test_reaper import launch_in

# As long as the paths of virtual environments are; shown names of processes are cut long before.
LONG = "a-project-s-virtual-environment/lib/python3.11/site-packages-of-somebody-with-long-names"


@pytest.fixture
def far_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started next runs the package by a long path."""
    folder = tmp_path / LONG
    folder.mkdir(parents=True)
    (folder / "autotune").symlink_to(Path(autotune.__file__).parent)
    monkeypatch.chdir(folder)


def of_trial(mark: str) -> tuple[Marked, ...]:
    return tuple(process for process in marked_processes() if process.mark == mark)


def findings_of(processes: tuple[Marked, ...]) -> list[Finding]:
    return [finding for finding in judge(Readings(marked=processes)) if "trial" in finding.title]


@pytest.mark.usefixtures("far_away")
def test_the_server_of_a_running_trial_is_never_to_be_killed(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.write(trials=2, output_tokens=512)
    search = study.start(speed=20)
    try:
        wait_for(lambda: study.has_launched(1), search)
        facts = study.processes()[0]
        wait_for(lambda: len(of_trial(facts["mark"])) > 8, search)  # the ranks are there
        assert LONG in Path(f"/proc/{facts['reaper']}/cmdline").read_text()
        processes = of_trial(facts["mark"])
    finally:
        search.terminate()
        ended(search)
    assert facts["server"] in {process.pid for process in processes}
    assert all(process.supervised for process in processes)
    assert [(f.level, f.fix) for f in findings_of(processes)] == [("warning", "")]
    assert not study.left()


@pytest.fixture
def orphan() -> Iterator[tuple[int, str]]:
    """A process that carries a trial's mark, and that no reaper looks after."""
    mark = f"0003-{uuid.uuid4().hex[:16]}"
    title = [sys.executable, "-c", "input()", "padded" + " " * 60]
    with subprocess.Popen(
        title, env=os.environ | {"AUTOTUNE_MARK": mark}, stdin=subprocess.PIPE
    ) as process:
        yield process.pid, mark
        process.kill()


def test_who_is_really_left_is_named_without_the_blanks_of_a_title(
    orphan: tuple[int, str],
) -> None:
    pid, mark = orphan
    processes = of_trial(mark)
    assert [(process.pid, process.supervised) for process in processes] == [(pid, False)]
    [finding] = findings_of(processes)
    assert (finding.level, finding.fix) == ("error", f"kill -KILL {pid}")
    assert not process_name(pid).endswith(" ")


def test_who_is_ended_a_moment_later_was_not_left(
    orphan: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, mark = orphan

    def driver_ends_it(_: float) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    monkeypatch.setattr("time.sleep", driver_ends_it)
    assert of_trial(mark) == ()


async def test_who_left_the_reapers_tree_is_still_its_trials(tmp_path: Path) -> None:
    launch = launch_in(tmp_path, sys.executable, "-c", "import time; time.sleep(600)")
    leash = Leash(launch, 1.0)
    try:
        await eventually(lambda: bool(marked(launch.mark)))
        with subprocess.Popen(["sleep", "600"], env=os.environ | launch.env) as stray:
            processes = await asyncio.to_thread(of_trial, launch.mark)
            stray.kill()
    finally:
        leash.order_end(0.0)
        await leash.gone
        await leash.close()
    assert {process.pid for process in processes} == {leash.server_pid, stray.pid}
    assert all(process.supervised for process in processes)


def test_no_other_process_is_a_reaper() -> None:
    assert not is_reaper(os.getpid())
    assert not is_reaper(2**22 + 1)  # there is none


def test_a_file_in_shared_memory_counts_by_the_memory_behind_it() -> None:
    """A dead engine's ring of which it had touched one page."""
    ring = Path("/dev/shm") / f"psm_autotune_{os.getpid()}"
    try:
        with ring.open("wb") as file:
            file.write(b"x" * 4096)
            file.truncate(2**28)
        found = dict(read_host(NoGpuMachine(), {}, {}).shared_memory)
    finally:
        ring.unlink()
    assert found[ring.name] == 4096
