"""The reaper against real process trees that do not want to end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune import reaper
from autotune.leash import Leash
from autotune.records import Launch
from tests.census import marked
from tests.patience import PATIENCE_SECONDS, eventually

# A launcher with stubborn children: one in a session of its own, one without our environment,
# one that was orphaned; all ignore SIGTERM. It writes their pids and stays.
STUBBORN = """
import os, subprocess, sys, signal, time
sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
pids = []
pids.append(subprocess.Popen([sys.executable, "-c", sleeper]).pid)
pids.append(subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True).pid)
bare = ["env", "-i", sys.executable, "-c", sleeper]
pids.append(subprocess.Popen(bare, start_new_session=True).pid)
middle = subprocess.run([sys.executable, "-c", "import subprocess, sys;"
    "print(subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True,"
    "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)", sleeper],
    capture_output=True, text=True)
pids.append(int(middle.stdout))
open("pids.part", "w").write(" ".join(map(str, pids)))
os.rename("pids.part", "pids")
EXIT
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("pids",):  # what a failing test would leave
        for pid in (tmp_path / name).read_text().split() if (tmp_path / name).exists() else ():
            reaper.signal_all({int(pid)}, signal.SIGKILL)


def launch_in(folder: Path, *command: str) -> Launch:
    mark = f"test-{os.getpid()}-{time.monotonic_ns()}"
    return Launch(
        trial=1,
        engine="openai",
        argv=command,
        env={"AUTOTUNE_MARK": mark, "TMPDIR": str(folder.absolute() / f"tmp-{mark}")},
        host="127.0.0.1",
        port=1,
        served_name="x",
        trial_dir=folder.absolute(),
        mark=mark,
    )


async def written(path: Path) -> list[int]:
    await eventually(path.exists)
    return [int(word) for word in path.read_text().split()]


def alive(pid: int) -> bool:
    row = reaper.process_table().get(pid)
    return row is not None and row[2] not in "ZX"


async def end_of(*pids: int) -> None:
    await eventually(lambda: not any(alive(pid) for pid in pids))


async def within(what: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(what, PATIENCE_SECONDS)


async def test_an_ordered_end_takes_the_whole_tree_along(folder: Path) -> None:
    leash = Leash(launch_in(folder, sys.executable, "-c", STUBBORN.replace("EXIT", "")), 0.5)
    await leash.started
    children = await written(folder / "pids")
    assert all(alive(pid) for pid in children)
    leash.order_end(0.5)
    assert await within(leash.gone) == ()
    assert leash.exit.result() == -signal.SIGTERM
    assert [pid for pid in (leash.server_pid, *children) if alive(pid)] == []
    assert marked(leash.launch.mark) == set()
    await leash.close()
    assert not Path(leash.launch.env["TMPDIR"]).exists()


@pytest.mark.parametrize("status", [0, 1])
async def test_a_launcher_that_exits_is_noticed_and_its_children_are_ended(
    folder: Path, status: int
) -> None:
    script = STUBBORN.replace("EXIT", f"os._exit({status})")
    leash = Leash(launch_in(folder, sys.executable, "-c", script), 30.0)
    assert await within(leash.exit) == status
    children = await written(folder / "pids")
    assert await within(leash.gone) == ()
    assert not any(alive(pid) for pid in children)
    await leash.close()


DRIVER = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.test_reaper import STUBBORN, launch_in
from autotune.leash import Leash
async def main():
    launch = launch_in(Path("."), sys.executable, "-c", STUBBORN.replace("EXIT", ""))
    leash = Leash(launch, 600.0)
    await leash.started
    Path("mark").write_text(launch.mark)
    print(leash.reaper_pid, leash.server_pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def start_driver() -> tuple[subprocess.Popen[str], int, int]:
    root = str(Path(__file__).parent.parent)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, root], stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    reaper_pid, server_pid = map(int, driver.stdout.readline().split())
    return driver, reaper_pid, server_pid


async def test_kill_9_of_the_launcher_ends_the_server_and_only_the_server(folder: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)  # scheduler"])
    driver, reaper_pid, server_pid = start_driver()
    children = await written(folder / "pids")
    driver.kill()
    driver.wait()
    assert driver.stdout is not None
    driver.stdout.close()
    await end_of(reaper_pid, server_pid, *children)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


async def test_the_launchers_process_group_gets_no_signal(folder: Path) -> None:
    caught: list[int] = []
    before = {n: signal.signal(n, lambda n, _: caught.append(n)) for n in (15, 1, 2)}
    neighbour = subprocess.Popen(["sleep", "600"])  # in this process's own group
    try:
        leash = Leash(launch_in(folder, "sleep", "600"), 1.0)
        await leash.started
        leash.order_end(1.0)
        await within(leash.gone)
        await leash.close()
        assert os.getsid(os.getpid()) != leash.server_pid
        assert caught == []
        assert neighbour.poll() is None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        neighbour.kill()
        neighbour.wait()


async def test_a_killed_reaper_is_stood_in_for(folder: Path) -> None:
    leash = Leash(launch_in(folder, sys.executable, "-c", STUBBORN.replace("EXIT", "")), 5.0)
    await leash.started
    children = await written(folder / "pids")
    os.kill(leash.reaper_pid, signal.SIGKILL)
    assert await within(leash.exit) is None
    assert await within(leash.gone) == ()
    marked_children = [pid for index, pid in enumerate(children) if index != 2]
    assert not any(alive(pid) for pid in (leash.server_pid, *marked_children))
    await leash.close()


async def test_the_server_has_its_grace_to_end_in_order(folder: Path) -> None:
    orderly = (
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n    time.sleep(0.5); pathlib.Path('ended').write_text('1'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\npathlib.Path('pids').write_text('')\ntime.sleep(600)"
    )
    leash = Leash(launch_in(folder, sys.executable, "-c", orderly), 30.0)
    await written(folder / "pids")
    leash.order_end(30.0)
    await within(leash.gone)
    assert (folder / "ended").exists()
    assert leash.exit.result() == 0
    await leash.close()


async def test_a_second_order_shortens_the_grace(folder: Path) -> None:
    deaf = "import pathlib, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    deaf += "pathlib.Path('pids').write_text('')\ntime.sleep(600)"
    leash = Leash(launch_in(folder, sys.executable, "-c", deaf), 600.0)
    await written(folder / "pids")
    leash.order_end(600.0)
    await asyncio.sleep(0.5)
    assert not leash.gone.done()
    leash.order_end(0.0)
    await within(leash.gone)
    assert leash.exit.result() == -signal.SIGKILL
    await leash.close()


async def test_a_command_that_is_not_there_is_said_in_the_log(folder: Path) -> None:
    leash = Leash(launch_in(folder, "no-such-engine", "serve"), 1.0)
    assert await within(leash.exit) == 127
    await within(leash.gone)
    await leash.close()
    assert "cannot start no-such-engine: [Errno 2]" in leash.log_path.read_text()


async def test_the_server_has_no_terminal_no_pipe_and_a_session_of_its_own(folder: Path) -> None:
    show = (
        "import os; print(os.readlink('/proc/self/fd/0'), os.getsid(0) == os.getpid(), "
        "sorted(int(n) for n in os.listdir('/proc/self/fd'))[:4])"
    )
    leash = Leash(launch_in(folder, sys.executable, "-c", show), 1.0)
    await within(leash.gone)
    await leash.close()
    assert leash.log_path.read_text() == "/dev/null True [0, 1, 2, 3]\n"


# It stays until who watches it has looked at the child: that sleeps after every look.
TIED = r"""
import os, re, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from autotune.leash import tie_children
knot = tie_children()
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
def reads(pid, pipe):
    try:
        return os.readlink(f"/proc/{pid}/fd/0") == pipe
    except OSError:
        return False
pipe = os.readlink(f"/proc/self/fd/{knot}")
(watcher,) = [pid for pid in os.listdir("/proc") if pid.isdigit() and reads(pid, pipe)]
def sleeps():
    status = Path(f"/proc/{watcher}/status").read_text()
    return int(re.search(r"\nvoluntary_ctxt_switches:\t(\d+)", status)[1])
start = sleeps()
while sleeps() < start + 3:
    time.sleep(0.05)
open("pids.part", "w").write(str(child.pid))
os.rename("pids.part", "pids")
time.sleep(600)
"""


async def test_children_that_are_tied_do_not_outlive_a_killed_parent(folder: Path) -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    parent = subprocess.Popen([sys.executable, "-c", TIED, str(Path(__file__).parent.parent)])
    children = await written(folder / "pids")
    parent.kill()
    parent.wait()
    await end_of(*children)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


@pytest.mark.parametrize("folder", ["tmp", "/", "/tmp", "/home/user", "relative/autotune-MARK1234"])
def test_only_a_folder_that_carries_the_mark_is_ever_removed(folder: str) -> None:
    assert not reaper.is_folder_of(folder, "MARK1234")
    assert reaper.is_folder_of("/tmp/autotune-MARK1234", "MARK1234")
