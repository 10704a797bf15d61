"""Ends a server's whole process tree when whoever launched it is gone.

Run as a program of its own, with the standard library alone:

    python -I -S reaper.py < lifeline > reports

Its first line of input describes the server as JSON. It leaves its parent's process tree with a
double fork, opens a session of its own, becomes the subreaper of everything the server orphans,
starts the server, and then holds the read end of a pipe whose only write end is the launcher's.
Whatever ends the launcher (SIGKILL, Ray, the kernel), the kernel closes that pipe, and the
reaper ends the server: no heartbeat, no timer, nobody who must still be alive to clean up.

It reports, a JSON object a line: {"reaper": pid, "server": pid}, then {"exit": status} when the
server's first process has ended (a negative status is a signal), then {"left": [pids]} when the
tree is gone, as far as it can be ended. A further input line {"stop": grace_seconds} asks for
the end; a smaller grace may follow.

Who may be signalled: descendants of the reaper, members of the server's session, and processes
that carry the trial's mark in their environment. Nobody else, whatever its name or port.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

MARK = "AUTOTUNE_MARK"
_POLL_SECONDS = 0.05
_ORPHANED_GRACE_SECONDS = 5.0  # nobody waits for a figure any more: be quick
_KILL_SECONDS = 60.0  # a process in uninterruptible sleep may not end at all
_WATCH_SECONDS = 1.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


# -- who belongs to the server ----------------------------------------------------------------
def process_table() -> dict[int, tuple[int, int, str]]:
    """pid -> (parent, session, state) of every process."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with (
                contextlib.suppress(OSError, ValueError, IndexError),
                open(f"/proc/{name}/stat", "rb") as stat,
            ):
                # The command name is in parentheses and may hold any character.
                fields = stat.read().rpartition(b")")[2].split()
                table[int(name)] = (int(fields[1]), int(fields[3]), fields[0].decode())
    return table


def descendants(root: int, table: dict[int, tuple[int, int, str]]) -> set[int]:
    """Every process below `root`."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    todo = [root]
    while todo:
        new = set(children.get(todo.pop(), ())) - found
        found |= new
        todo += new
    return found


def mark_of(pid: int) -> str | None:
    """The trial mark in a process's environment, None without one or without permission."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            variables = environ.read().split(b"\0")
    except OSError:
        return None
    start = MARK.encode() + b"="
    return next((v[len(start) :].decode() for v in variables if v.startswith(start)), None)


def members(mark: str, session: int | None = None, ancestor: int | None = None) -> set[int]:
    """The living processes of a trial: by mark, by session, by descent; never the caller."""
    table = process_table()
    found = descendants(ancestor, table) if ancestor is not None else set()
    for pid, (_, its_session, _) in table.items():
        if its_session == session or (pid not in found and mark_of(pid) == mark):
            found.add(pid)
    found -= {os.getpid(), 1}
    return {pid for pid in found if pid in table and table[pid][2] not in "ZX"}


def signal_all(pids: set[int], number: int) -> None:
    """Send a signal to each; who is gone already is none the worse."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def is_folder_of(path: str, mark: str) -> bool:
    """Whether a folder is this trial's alone: nothing else is ever removed."""
    return os.path.isabs(path) and len(mark) >= 8 and mark in os.path.basename(path)


def remove_folder(path: str, mark: str) -> None:
    """Remove the temporary folder of a trial that has ended."""
    if is_folder_of(path, mark):
        shutil.rmtree(path, ignore_errors=True)


# -- the program ------------------------------------------------------------------------------
class Reaper:
    """One server from its start to its end."""

    def __init__(self, spec: dict[str, Any], more_input: bytes = b"") -> None:
        self.spec = spec
        self.mark: str = spec["mark"]
        self.server = 0
        self.exit: int | None = None
        self.signalled = False  # a signal asks the reaper itself to end
        self._input = more_input

    def run(self) -> None:
        """Start the server, wait for its end or for the order to end it, leave nothing."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self.server = self._start()
        self._report(reaper=os.getpid(), server=self.server)
        grace = self._wait_for_end_or_order()
        self._end(grace)
        left = self._kill()
        if not left:
            remove_folder(self.spec["temporary_folder"], self.mark)
        self._report(left=sorted(left))

    def _on_signal(self, number: int, frame: object) -> None:
        self.signalled = True

    def _start(self) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            self._become_server()
        except BaseException as error:
            os.write(2, f"autotune: cannot start {self.spec['argv'][0]}: {error}\n".encode())
        os._exit(127)

    def _become_server(self) -> None:
        os.setsid()
        if self.spec.get("cores"):
            os.sched_setaffinity(0, self.spec["cores"])
        # Should the reaper itself be killed, at least the server's first process goes with it.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        null = os.open(os.devnull, os.O_RDONLY)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        log = os.open(self.spec["log"], flags, 0o600)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(3, 256)
        os.chdir(self.spec["cwd"])
        os.execvpe(self.spec["argv"][0], self.spec["argv"], self.spec["env"])

    def _wait_for_end_or_order(self) -> float:
        """Grace in seconds, once the server has ended by itself or is to end."""
        while True:
            self._reap()
            if self.exit is not None:
                return min(float(self.spec["grace"]), _ORPHANED_GRACE_SECONDS)
            if self.signalled:
                return _ORPHANED_GRACE_SECONDS
            order = self._order(_POLL_SECONDS)
            if order is not None:
                return order

    def _order(self, seconds: float) -> float | None:
        """The grace that the launcher asks for, a short one if it is gone, None if it is silent."""
        if b"\n" not in self._input:
            ready, _, _ = select.select([0], [], [], seconds)
            if not ready:
                return None
            data = os.read(0, 65536)
            if not data:
                return _ORPHANED_GRACE_SECONDS
            self._input += data
        line, end, self._input = self._input.partition(b"\n")
        if not end:
            self._input = line
            return None
        order: dict[str, float] = json.loads(line)
        return order["stop"]

    def _end(self, grace: float) -> None:
        """SIGTERM to the first process, which knows best how to end the others; then to all."""
        if self.exit is None:
            signal_all({self.server}, signal.SIGTERM)
        else:
            signal_all(self._members(), signal.SIGTERM)
        start, told_all, closed = time.monotonic(), self.exit is not None, False
        while time.monotonic() - start < grace:
            self._reap()
            if self.exit is not None:
                left = self._members()
                if not left:
                    return
                if not told_all:
                    signal_all(left, signal.SIGTERM)
                    told_all, grace = True, min(grace, time.monotonic() - start + 5.0)
            if closed:
                time.sleep(_POLL_SECONDS)
                continue
            order = self._order(_POLL_SECONDS)
            if order is not None:
                grace = min(grace, order)
                closed = not _is_open(0)

    def _kill(self) -> set[int]:
        """SIGKILL until nobody is left; returns who cannot be ended."""
        end = time.monotonic() + _KILL_SECONDS
        while True:
            self._reap()
            left = self._members()
            if not left or time.monotonic() > end:
                self._reap()
                return left
            signal_all(left, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)

    def _members(self) -> set[int]:
        return members(self.mark, session=self.server, ancestor=os.getpid())

    def _reap(self) -> None:
        for pid, status in _ended_children():
            if pid == self.server and self.exit is None:
                self.exit = os.waitstatus_to_exitcode(status)
                self._report(exit=self.exit)

    def _report(self, **facts: Any) -> None:
        with contextlib.suppress(OSError):  # the launcher may be gone
            os.write(1, json.dumps(facts).encode() + b"\n")


def watch(root: int) -> None:
    """Outlive the process `root`, and end the children that it leaves.

    For Ray's daemons, some of which live on for a minute after a killed driver. Only processes
    that were seen below `root` while it lived are ended, each known by its start time too.
    """
    seen: dict[int, str] = {}
    begun = time.monotonic()
    while not select.select([0], [], [], _watch_seconds(begun))[0]:
        seen = _still_there(seen | _below({root}))
    end = time.monotonic() + _ORPHANED_GRACE_SECONDS
    # Who is left may still start others: a raylet whose driver was killed as Ray came up.
    while (seen := _still_there(seen | _below(set(seen)))) and (
        time.monotonic() < end + _KILL_SECONDS
    ):
        if time.monotonic() > end:
            signal_all(set(seen), signal.SIGKILL)
        time.sleep(_POLL_SECONDS * 4)


def _watch_seconds(begun: float) -> float:
    """How long until the next look: often while the daemons are being started."""
    return _WATCH_SECONDS if time.monotonic() - begun > 60.0 else _WATCH_SECONDS / 5


def _below(roots: set[int]) -> dict[int, str]:
    """The processes below these, with their start times."""
    table = process_table()
    pids = set().union(*(descendants(root, table) for root in roots))
    return {pid: start_of(pid) for pid in pids}


def _still_there(seen: dict[int, str]) -> dict[int, str]:
    return {pid: start for pid, start in seen.items() if start and start_of(pid) == start}


def start_of(pid: int) -> str:
    """When a process started, in clock ticks since boot; "" if it is gone."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
        return "" if fields[0] in b"ZX" else fields[19].decode()
    return ""


def _is_open(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return not any(event & select.POLLHUP for _, event in poll.poll(0))


def _ended_children() -> Iterator[tuple[int, int]]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _first_line() -> tuple[bytes, bytes]:
    """The description, and what came with it; without a line end the launcher is gone."""
    data = b""
    while b"\n" not in data:
        more = os.read(0, 65536)
        if not more:
            break
        data += more
    line, end, rest = data.partition(b"\n")
    return (line, rest) if end else (b"", b"")


def main() -> None:
    """Leave the launcher's process tree and be a reaper."""
    if os.fork():
        os._exit(0)
    os.setsid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    line, rest = _first_line()
    spec = json.loads(line) if line else {}
    if "watch" in spec:
        watch(spec["watch"])
    elif spec:
        Reaper(spec, rest).run()


if __name__ == "__main__":
    main()
    sys.exit(0)
