"""Kills parts of running searches at random, and counts what is left and what is lost.

    python -m tests.kill_storm --kills 50 --folder /tmp/storm

Each round starts (or resumes) a simulated search, waits for a random moment, sends SIGKILL to
the driver, Ray's actor, the raylet, the server's launcher or one of its ranks, and then asks:

(Driver and raylet: the search is resumed. The others: it goes on by itself.)

* is every process of the round gone within 20 s (a driver that lives on may go on searching)?
* are its ports free and the ledger of GPU memory empty?
* is every trial that had finished still there, unchanged?

At the end the search is resumed to its end, and its ledger must have the shape of one that was
never interrupted: trials counted from 0 without a gap, as many as were asked for. Prints one line
a round and one JSON document at the end; exit status 1 if anything was left or lost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from autotune import reaper
from autotune.leash import PROCESSES_NAME
from autotune.machine import open_machine, process_name
from tests.census import in_sessions, leftovers

ROOT = Path(__file__).parent.parent
TARGETS = ("launcher", "rank", "actor", "driver", "rank", "launcher", "actor", "raylet")
LIMIT_SECONDS = 20.0  # within which nothing may be left
ROUND_SECONDS = 120.0


@dataclass
class Storm:
    """What the rounds have found so far."""

    kills: dict[str, int] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    slowest_seconds: float = 0.0


class Search:
    """One `autotune search` in a session of its own."""

    def __init__(self, run_dir: Path, space: Path, trials: int) -> None:
        self.run_dir = run_dir
        command = [sys.executable, "-c", "from autotune.cli import main; main()", "search"]
        command += [str(space), "--simulate", "--trials", str(trials), "--run-dir", str(run_dir)]
        command += ["--resume"] if (run_dir / "experiment.yaml").exists() else []
        self._log = (run_dir.parent / "search.log").open("ab")
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=self._log, stderr=self._log, start_new_session=True
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def tree(self) -> set[int]:
        """The driver and everything below it: Ray's processes."""
        return {self.pid} | reaper.descendants(self.pid, reaper.process_table())

    def named(self, name: str) -> list[int]:
        """Processes of the tree whose command begins with, or whose program is, `name`."""
        return [pid for pid in self.tree() if _is_named(pid, name)]

    def newest(self) -> Path | None:
        """The folder of the newest trial whose server was started."""
        started = self.run_dir.glob(f"trials/*/{PROCESSES_NAME}")
        return max((path.parent for path in started), default=None)

    @property
    def ledger(self) -> Path | None:
        return next(self.run_dir.rglob("gpus.json"), None)

    def server(self) -> tuple[int, list[int]] | None:
        """The launcher and the other processes of the newest trial's server, if it runs."""
        for path in sorted(self.run_dir.glob(f"trials/*/{PROCESSES_NAME}"), reverse=True):
            with contextlib.suppress(ValueError):
                launcher = int(json.loads(path.read_text())["server"])
                others = sorted(in_sessions([launcher]) - {launcher})
                return (launcher, others) if others else None
        return None

    def finish(self) -> None:
        """Let it come to its end, if it still runs."""
        self.process.wait()
        self.close()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()


def _is_named(pid: int, name: str) -> bool:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return words[0].decode().startswith(name) or Path(words[0].decode()).name == name
    return False


def victims(search: Search, target: str) -> list[int]:
    """The processes of that kind that can be killed now."""
    if target == "driver":
        return [search.pid]
    if target in ("actor", "raylet"):
        return search.named("ray::Slot" if target == "actor" else "raylet")
    server = search.server()
    if server is None:
        return []
    launcher, others = server
    return [launcher] if target == "launcher" else others


def finished(run_dir: Path) -> dict[int, str]:
    """The outcomes of finished trials: number -> state and values, as stored."""
    found = {}
    for path in run_dir.glob("trials/*/outcome.json"):
        outcome = json.loads(path.read_text())
        if outcome["state"] in ("ok", "infeasible"):
            found[outcome["number"]] = json.dumps([outcome["state"], outcome["values"]])
    return found


def one_round(search: Search, target: str, chance: random.Random, storm: Storm) -> bool:
    """Kill one `target` at a random moment and see what is left of the round.

    False if there was none to kill until the search had ended.
    """
    pid = _wait_for_a_victim(search, target, chance)
    if pid is None:
        return False
    trial = search.newest()
    before, tree = finished(search.run_dir), search.tree()
    known_left, known_lost = len(storm.left), len(storm.lost)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    started = time.monotonic()
    storm.kills[target] = storm.kills.get(target, 0) + 1
    if target in ("driver", "raylet"):
        _count_what_is_left(lambda: _left(search, tree), started, f"{target} {pid}", storm)
        search.close()
    else:  # the search goes on: only what it killed is counted
        _count_what_is_left(lambda: _left_of(search, trial), started, f"{target} {pid}", storm)
    after = finished(search.run_dir)
    storm.lost += [f"{target}: trial {n}" for n in before if after.get(n) != before[n]]
    print(f"{sum(storm.kills.values()):3} {target:9}", flush=True)
    for line in (*storm.left[known_left:], *storm.lost[known_lost:]):
        print(f"    {line}", flush=True)
    return True


def _wait_for_a_victim(search: Search, target: str, chance: random.Random) -> int | None:
    end = time.monotonic() + ROUND_SECONDS
    while time.monotonic() < end and not search.ended:
        if (search.run_dir / "trials").is_dir() and victims(search, target):
            time.sleep(chance.uniform(0.0, 3.0))
            pids = victims(search, target)
            if pids and not search.ended:
                return chance.choice(pids)
        time.sleep(0.1)
    return None


def _count_what_is_left(
    left_now: Callable[[], Iterator[str]], started: float, what: str, storm: Storm
) -> None:
    while True:
        left = list(left_now())
        seconds = time.monotonic() - started
        if not left or seconds > LIMIT_SECONDS:
            break
        time.sleep(0.1)
    storm.slowest_seconds = max(storm.slowest_seconds, round(seconds, 1))
    storm.left += [f"{what}: {line}" for line in left]


def _left(search: Search, tree: set[int]) -> Iterator[str]:
    """What is left of a search that lost its driver or its raylet: nothing may be."""
    search.process.poll()
    table = reaper.process_table()
    for pid in tree:
        if pid in table and table[pid][2] not in "ZX":
            yield f"process {pid} of the search's tree: {process_name(pid)}"
    found = leftovers(search.run_dir, search.ledger)
    yield from (*found.processes, *found.ports, *found.gpu_memory)


def _left_of(search: Search, trial: Path | None) -> Iterator[str]:
    """What is left of one trial, the next of which may be running already."""
    if trial is None:
        return
    found = leftovers(trial)
    yield from (*found.processes, *found.ports)
    mark = json.loads((trial / PROCESSES_NAME).read_text())["mark"]
    if search.ledger is not None:
        yield from (str(h) for h in open_machine(search.ledger).holders() if h.mark == mark)


def shape(run_dir: Path) -> list[int]:
    """The numbers of all trials that count against the budget."""
    outcomes = [json.loads(p.read_text()) for p in run_dir.glob("trials/*/outcome.json")]
    counted = ("ok", "infeasible")
    return sorted(o["number"] for o in outcomes if o["state"] in counted and o["repeats"] is None)


def main() -> int:
    """Run the storm; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--trials", type=int, default=14, help="of each search")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--space", type=Path, default=ROOT / "docs" / "tutorial.yaml")
    options = parser.parse_args()
    chance, storm, searches = random.Random(options.seed), Storm(), 0
    unfinished: list[str] = []
    while sum(storm.kills.values()) < options.kills:
        folder = options.folder / f"search{searches}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        run_dir = folder / "run"
        searches += 1
        search: Search | None = None
        for _ in range(len(TARGETS)):
            if sum(storm.kills.values()) >= options.kills:
                break
            target = TARGETS[sum(storm.kills.values()) % len(TARGETS)]
            if search is None or search.ended:
                search = Search(run_dir, options.space, options.trials)
            if not one_round(search, target, chance, storm):
                break  # it was done before it could be struck
        if search is not None:
            search.finish()
        last = Search(run_dir, options.space, options.trials)
        status = last.process.wait()
        counted = shape(run_dir)
        if status not in (0, 1) or len(counted) != options.trials:
            unfinished.append(f"{run_dir}: exit {status}, {len(counted)} trials: {counted}")
        last.close()
    print(json.dumps(asdict(storm) | {"searches": searches, "unfinished": unfinished}, indent=1))
    return 1 if storm.left or storm.lost or unfinished else 0


if __name__ == "__main__":
    sys.exit(main())
