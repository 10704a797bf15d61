"""The engine that launches simulated servers in place of real ones."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from autotune.clock import Clock
from autotune.engines.base import (
    ArgValue,
    Effective,
    Engine,
    LoadProgress,
    Place,
    ServingSample,
)
from autotune.engines.simulated import ledger
from autotune.engines.simulated.clock import SimulatedClock
from autotune.engines.simulated.clock_file import DEFAULT_SPEED
from autotune.engines.simulated.hosts import host_named, infer_host
from autotune.engines.simulated.simulation import LEDGER_NAME
from autotune.errors import InputError
from autotune.records import FailureKind, Launch, Override, Phase

if TYPE_CHECKING:
    from autotune.experiment import Experiment


_HOST_NAME = "host.json"
# What an experiment's command runs, as far as it is not the engine's own arguments.
_ENTRIES: tuple[tuple[str, ...], ...] = (
    ("-m", "sglang.launch_server"),
    ("sglang", "serve"),
    ("-m", "vllm.entrypoints.openai.api_server"),
    ("-m", "vllm.entrypoints.cli.main", "serve"),
    ("vllm", "serve"),
)


def create_host(folder: Path, experiment: Experiment, kind: str | None = None) -> None:
    """Make the simulated machine that `experiment` is meant for (or of `kind`) in `folder`.

    AUTOTUNE_SIM_HOST in the environment wins over both. Raises InputError for an unknown kind.
    """
    words = [experiment.name, *(str(section.command) for section in experiment.engines.values())]
    words += [str(section.args) for section in experiment.engines.values()]
    asked = os.environ.get("AUTOTUNE_SIM_HOST") or kind
    try:
        make_host(folder, asked or infer_host(" ".join(words), experiment.gpus_per_trial))
    except KeyError as error:
        raise InputError(str(error.args[0]), field="AUTOTUNE_SIM_HOST") from error


def make_host(folder: Path, kind: str) -> None:
    """Make a simulated machine of that kind: its description and its empty GPU ledger."""
    host = host_named(kind)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _HOST_NAME).write_text(json.dumps({"host": host.name}))
    ledger.create(folder / LEDGER_NAME, host)


def without_entry(command: Sequence[str]) -> tuple[str, ...]:
    """The engine's own arguments in a command: what follows its entry point.

    `docker run IMAGE python3 -m sglang.launch_server --tp 8` gives `--tp 8`; a command without a
    known entry point gives nothing.
    """
    words = [Path(word).name if "/" in word else word for word in command]
    for entry in _ENTRIES:
        for start in range(len(words) - len(entry) + 1):
            if tuple(words[start : start + len(entry)]) == entry:
                return tuple(command[start + len(entry) :])
    return ()


class SimulatedEngine(Engine):
    """`inner`, but what it launches is a simulated server on the machine in `host_dir`."""

    def __init__(self, inner: Engine, host_dir: Path) -> None:
        self._inner, self._host_dir = inner, host_dir.absolute()
        # They are class variables of an engine; here they depend on what is wrapped.
        self.name = inner.name  # type: ignore[misc]
        self.flags = inner.flags  # type: ignore[misc]
        self.preflight_rejects = (1, 2)  # type: ignore[misc]

    # -- launch ------------------------------
    def complete(self, args: Mapping[str, ArgValue], place: Place) -> dict[str, ArgValue]:
        return self._inner.complete(args, place)

    def command(self, command: tuple[str, ...]) -> tuple[str, ...]:
        return (*self._entry(), *without_entry(command))

    def _entry(self, *options: str) -> tuple[str, ...]:
        return (sys.executable, "-m", __package__, *options, "--as", self.name)

    def environment(self, place: Place) -> dict[str, str]:
        kind = json.loads((self._host_dir / _HOST_NAME).read_text())["host"]
        return {
            **self._inner.environment(place),
            "AUTOTUNE_SIM_HOST": kind,
            "AUTOTUNE_SIM_DIR": str(self._host_dir),
            "AUTOTUNE_SIM_CLOCK_DIR": str(place.trial_dir),
            "AUTOTUNE_SIM_SPEED": str(_speed()),
        }

    def parallel_sizes(self, words: Sequence[str]) -> Mapping[str, int] | None:
        return self._inner.parallel_sizes(words)

    def preflight(self, launch: Launch) -> tuple[str, ...] | None:
        return (*self._entry("--preflight"), *launch.argv[len(self._entry()) :])

    # -- log ------------------------------
    def phase_of(self, line: str) -> Phase | None:
        return self._inner.phase_of(line)

    def progress_of(self, line: str) -> LoadProgress | None:
        return self._inner.progress_of(line)

    def failure_of(self, line: str) -> FailureKind | None:
        return self._inner.failure_of(line)

    def hint_of(self, line: str) -> str | None:
        return self._inner.hint_of(line)

    # -- a running server ------------------------------
    async def is_ready(self, http: httpx.AsyncClient, launch: Launch) -> bool:
        return await self._inner.is_ready(http, launch)

    async def effective(self, http: httpx.AsyncClient, log: str) -> Effective:
        return await self._inner.effective(http, log)

    def overrides(self, args: Mapping[str, ArgValue], effective: Effective) -> Sequence[Override]:
        return self._inner.overrides(args, effective)

    async def flush_cache(self, http: httpx.AsyncClient) -> bool:
        return await self._inner.flush_cache(http)

    async def abort_all(self, http: httpx.AsyncClient) -> None:
        await self._inner.abort_all(http)

    async def sample(self, http: httpx.AsyncClient) -> ServingSample:
        return await self._inner.sample(http)

    def sample_from_log(self, text: str) -> ServingSample:
        return self._inner.sample_from_log(text)

    # -- time ------------------------------
    def clock(self, launch: Launch) -> Clock:
        return SimulatedClock(launch.trial_dir, _speed())


def _speed() -> float:
    return float(os.environ.get("AUTOTUNE_SIM_SPEED") or DEFAULT_SPEED)
