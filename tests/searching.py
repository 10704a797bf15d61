"""Searches as a user runs them: the real command line against the simulated machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.leash import PROCESSES_NAME
from tests.census import Leftovers, leftovers, wait_until_nothing_is_left
from tests.patience import PATIENCE_SECONDS, until

# A few configurations of one engine; a trial takes about a second of real time. `fault` makes a
# configuration one that fails.
SPACE = """
name: small
gpus_per_trial: {gpus}
engines:
  sglang:
    command: [python, -m, sglang.launch_server]
    args: {{model-path: moonshotai/Kimi-K2.5, tp-size: {gpus}, trust-remote-code: true}}
parameters:
  attention_backend: {{choices: [{backends}], flag: attention-backend}}
  max_running_requests: {{choices: [8, 32, 64], flag: max-running-requests}}
  fault: {{choices: [{faults}], env: AUTOTUNE_SIM_FAULT}}
known_good:
  - {{attention_backend: flashinfer, max_running_requests: 32, fault: {first_fault}}}
{more}
workload: {{input_tokens: 128, output_tokens: {output_tokens}, peak_concurrency: 16}}
budget: {{trials: {trials}, consecutive_failures: {consecutive_failures}}}
confirm: {{finalists: 0, relaunches: 0}}
stop: {{grace_seconds: 2}}
"""
DEFAULTS = {
    "gpus": 8,
    "backends": "flashinfer, triton",
    "faults": "null",
    "first_fault": "null",
    "more": "",
    "output_tokens": 32,
    "trials": 3,
    "consecutive_failures": 8,
}

SEARCH_SECONDS = 2 * PATIENCE_SECONDS
"""A whole search, Ray's start included."""

Outcome = dict[str, Any]


@dataclass
class Study:
    """One run directory and the experiment file beside it."""

    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def write(self, **changes: Any) -> None:
        """Write the experiment file with some of `DEFAULTS` changed."""
        (self.folder / "small.yaml").write_text(SPACE.format(**DEFAULTS | changes))

    def start(self, *options: str, speed: int | None = None) -> subprocess.Popen[str]:
        """`autotune search`, in a session of its own; `speed` is the simulated servers'."""
        command = [sys.executable, "-m", "autotune", "search", str(self.folder / "small.yaml")]
        return subprocess.Popen(
            [*command, "--simulate", "--run-dir", str(self.run), *options],
            env=os.environ | ({"AUTOTUNE_SIM_SPEED": str(speed)} if speed else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def search(self, *options: str) -> tuple[int, str]:
        """The same to its end: exit status and output."""
        return ended(self.start(*options))

    def outcomes(self) -> list[Outcome]:
        """All stored outcomes, in order."""
        paths = sorted(self.run.glob("trials/*/outcome.json"))
        return [json.loads(path.read_text()) for path in paths]

    def launched(self) -> list[Path]:
        """The folders of the trials whose server was started, in order."""
        return [path.parent for path in sorted(self.run.glob(f"trials/*/{PROCESSES_NAME}"))]

    def processes(self) -> list[dict[str, Any]]:
        """What each started server wrote down of its processes, in order."""
        return [json.loads((folder / PROCESSES_NAME).read_text()) for folder in self.launched()]

    def has_launched(self, count: int) -> bool:
        """Whether so many servers were started."""
        return len(self.launched()) >= count

    def phase(self) -> str:
        """The newest trial's phase."""
        newest = max(self.run.glob("trials/*/timeline.json"), default=None)
        try:
            return str(json.loads(newest.read_text())[-1]["phase"]) if newest else ""
        except ValueError:  # it is being written
            return ""

    @property
    def _ledger(self) -> Path:
        return self.run / "simulated" / "gpus.json"

    def left(self) -> Leftovers:
        """What stays of all trials, however long one waits."""
        return wait_until_nothing_is_left(PATIENCE_SECONDS, self.run, self._ledger)

    def left_at_once(self) -> Leftovers:
        """The servers, ports and GPU memory that are there now; a reaper may be on its way out."""
        return leftovers(self.run, self._ledger, reapers=False)


def ended(process: subprocess.Popen[str], seconds: float = SEARCH_SECONDS) -> tuple[int, str]:
    """Exit status and output of a search, once it ends by itself."""
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, output


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the driver alone."""
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def wait_for(what: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait until something is there, as long as the search lives."""

    def there() -> object:
        found = what()
        assert found or process.poll() is None, process.communicate()[0]
        return found

    until(there)


def study_in(folder: Path, trials: int = 2) -> Study:
    """A study of so many trials, not yet searched."""
    folder.mkdir(exist_ok=True)
    study = Study(folder)
    study.write(trials=trials)
    return study


def only_line(output: str) -> str:
    """What a command said, without the live lines: one line of `autotune: …`."""
    lines = [line for line in output.splitlines() if line.startswith("autotune: ")]
    assert len(lines) == 1, output
    assert "Traceback" not in output
    return lines[0]
