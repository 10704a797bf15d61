"""The launcher's side of the reaper: starts a server under it, hears its end, orders its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from autotune import reaper
from autotune.engines.launch import LOG_NAME, server_environment
from autotune.errors import TrialLost
from autotune.records import Launch

PROCESSES_NAME = "processes.json"


class Leash:
    """One server under its reaper.

    `exit` gets the status of the server's first process when that ends (negative: the signal,
    None: unknown, the reaper was killed); `gone` gets the pids that could not be ended, when
    everything else of the server has ended.
    """

    def __init__(self, launch: Launch, grace_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self.launch = launch
        self.reaper_pid, self.server_pid = 0, 0
        self.started: asyncio.Future[None] = loop.create_future()
        self.exit: asyncio.Future[int | None] = loop.create_future()
        self.gone: asyncio.Future[tuple[int, ...]] = loop.create_future()
        self._lifeline: int | None
        self._lifeline, reports = _spawn(launch, grace_seconds)
        self._listener = loop.create_task(self._listen(reports))

    @property
    def log_path(self) -> Path:
        """Where the server's output goes."""
        return self.launch.trial_dir / LOG_NAME

    @property
    def pids(self) -> set[int]:
        """The server's living processes, by descent from the reaper."""
        if not self.reaper_pid:
            return set()
        return reaper.descendants(self.reaper_pid, reaper.process_table())

    def order_end(self, grace_seconds: float) -> None:
        """Ask the reaper to end the server, with so long between SIGTERM and SIGKILL."""
        if self._lifeline is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._lifeline, json.dumps({"stop": grace_seconds}).encode() + b"\n")

    async def close(self) -> None:
        """Let go of the pipes; only once the server is gone."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None  # its number may soon be another file's
        await self._listener

    async def _listen(self, descriptor: int) -> None:
        reports = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reports), os.fdopen(descriptor, "rb")
        )
        try:
            async for line in reports:
                self._hear(json.loads(line))
        finally:
            transport.close()
        if not self.gone.done():
            await self._stand_in()

    def _hear(self, report: dict[str, Any]) -> None:
        if "server" in report:
            self.reaper_pid, self.server_pid = report["reaper"], report["server"]
            facts = report | {
                "mark": self.launch.mark,
                "port": self.launch.port,
                "boot": _boot(),
            }
            (self.launch.trial_dir / PROCESSES_NAME).write_text(json.dumps(facts) + "\n")
            if not self.started.done():
                self.started.set_result(None)
        if "exit" in report and not self.exit.done():
            self.exit.set_result(report["exit"])
        if "left" in report:
            self.gone.set_result(tuple(report["left"]))

    async def _stand_in(self) -> None:
        """Somebody killed the reaper: do its work."""
        if not self.started.done():
            self.started.set_exception(TrialLost("the reaper could not be started"))
            self.started.exception()  # retrieved: nobody may be waiting any more
        if not self.exit.done():
            self.exit.set_result(None)
        left = await asyncio.to_thread(end_members, self.launch.mark, self.server_pid or None)
        reaper.remove_folder(self.launch.env["TMPDIR"], self.launch.mark)
        self.gone.set_result(tuple(sorted(left)))


def end_members(mark: str, session: int | None = None, seconds: float = 20.0) -> set[int]:
    """SIGKILL every process of a trial until none is left; returns who cannot be ended."""
    left = reaper.members(mark, session)
    for _ in range(int(seconds / 0.1)):
        if not left:
            break
        reaper.signal_all(left, signal.SIGKILL)
        time.sleep(0.1)
        left = reaper.members(mark, session)
    return left


def tie_children() -> int:
    """Have whatever this process starts ended within seconds of its own death, however it dies.

    Returns the descriptor that holds the knot: it must stay open as long as this process lives
    (closing it has the children ended). Servers are not concerned, they have their own reaper.
    """
    read, write = os.pipe()
    try:
        command = [sys.executable, "-I", "-S", reaper.__file__]
        subprocess.run(command, stdin=read, stdout=subprocess.DEVNULL, cwd="/", check=True)
    finally:
        os.close(read)
    os.write(write, json.dumps({"watch": os.getpid()}).encode() + b"\n")
    return write


def end_leftovers(trial_dir: Path) -> set[int]:
    """End what is left of an earlier trial, should its reaper have been killed with its driver.

    Only the mark and the session that the trial wrote down count, and those only until the host
    is started again. Returns who cannot be ended; a trial that left nothing costs nothing.
    """
    try:
        facts = json.loads((trial_dir / PROCESSES_NAME).read_text())
    except (OSError, ValueError):
        return set()
    if facts.get("boot") != _boot():
        return set()
    return end_members(facts["mark"], facts["server"])


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _spawn(launch: Launch, grace_seconds: float) -> tuple[int, int]:
    """Start the reaper; returns the write end of its input and the read end of its reports."""
    temporary = Path(launch.env["TMPDIR"])
    temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
    spec = {
        "argv": list(launch.argv),
        "env": server_environment(launch),
        "cwd": os.getcwd(),
        "log": str(launch.trial_dir / LOG_NAME),
        "mark": launch.mark,
        "grace": grace_seconds,
        "cores": list(launch.cores),
        "temporary_folder": str(temporary),
    }
    order_read, order_write = os.pipe()
    report_read, report_write = os.pipe()
    try:
        with (launch.trial_dir / LOG_NAME).open("ab") as log:
            subprocess.run(
                [sys.executable, "-I", "-S", reaper.__file__],
                stdin=order_read,
                stdout=report_write,
                stderr=log,
                cwd="/",
                check=True,
            )
    except BaseException:
        os.close(order_write)
        os.close(report_read)
        raise
    finally:
        os.close(order_read)
        os.close(report_write)
    os.write(order_write, json.dumps(spec).encode() + b"\n")
    return order_write, report_read
