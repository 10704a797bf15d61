"""Everything one simulated server is made of, and the GPU memory it accounts for."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.engines.simulated import ledger
from autotune.engines.simulated.faults import Faults
from autotune.engines.simulated.hosts import Host
from autotune.engines.simulated.launch_args import Arguments
from autotune.engines.simulated.logs import SGLangLog, VLLMLog
from autotune.engines.simulated.models import Model
from autotune.engines.simulated.noise import Noise
from autotune.engines.simulated.processes import Tree
from autotune.engines.simulated.settings import Settings
from autotune.engines.simulated.support import PredictedFailure
from autotune.engines.simulated.timekeeper import Timekeeper

LEDGER_NAME = "gpus.json"
CACHES_NAME = "caches.json"


class StartupFailed(Exception):
    """The server cannot start; what it dies of."""

    def __init__(self, failure: PredictedFailure) -> None:
        super().__init__(failure.line)
        self.failure = failure


@dataclass
class GpuMemory:
    """What this server's ranks hold, as entries of the host's ledger."""

    path: Path | None
    gpus: list[int]
    mark: str
    tree: Tree
    stays: bool = False
    stays_seconds: float | None = None  # after the end; None: for ever
    _held: int = 0
    _until: float | None = None

    def __post_init__(self) -> None:
        self._count_from_now()  # should the server be killed, nobody counts from its end

    def hold(self, bytes_a_gpu: float, busy_percent: int | None = None) -> None:
        """Every rank holds that much on its GPU."""
        self._held = int(bytes_a_gpu)
        if self.path is None:
            return
        entries = [
            {
                "pid": rank.pid,
                "gpu": gpu,
                "bytes": self._held,
                "mark": self.mark,
                "name": rank.title,
                "leaked": self.stays,
                "until": self._until,
            }
            for rank, gpu in zip(self.tree.ranks, self.gpus, strict=False)
        ]
        ledger.hold(self.path, entries, busy_percent)

    def busy(self, percent: int) -> None:
        """How busy the GPUs are."""
        self.hold(self._held, percent)

    def stay(self) -> None:
        """The server is about to end: what stays held does so for its time from now on."""
        if self.stays_seconds is not None:
            self._count_from_now()
            self.hold(self._held)

    def _count_from_now(self) -> None:
        if self.stays_seconds is not None:
            self._until = time.time() + self.stays_seconds

    def others(self) -> int:
        """The most bytes that anybody else holds on one of our GPUs."""
        if self.path is None:
            return 0
        return ledger.held_by_others(self.path, self.gpus, self.tree.pids)


class Caches:
    """What earlier launches left on the host: page cache and compiled kernels."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / CACHES_NAME if folder else None

    def first(self, what: str) -> bool:
        """Whether this is the first time; it never is again."""
        known = self._known()
        if what in known:
            return False
        if self._path is not None:
            partial = self._path.with_name(f"{CACHES_NAME}.{os.getpid()}")
            partial.write_text(json.dumps(sorted({*known, what})))
            partial.replace(self._path)
        return True

    def _known(self) -> set[str]:
        try:
            return set(json.loads(self._path.read_text())) if self._path else set()
        except (OSError, ValueError):
            return set()


@dataclass
class Simulation:
    """One server. `settings` is what really runs, `args.settings` what it says it runs."""

    args: Arguments
    env: Mapping[str, str]
    host: Host
    model: Model
    settings: Settings
    clock: Timekeeper
    log: Any  # SGLangLog | VLLMLog
    faults: Faults
    noise: Noise
    tree: Tree
    memory: GpuMemory
    caches: Caches
    healthy: bool = False  # /health answers 200
    dead: bool = False  # the engine died, HTTP still answers
    timings: dict[str, float] = field(default_factory=dict)

    @property
    def sglang(self) -> SGLangLog:
        """The log, where the engine is SGLang."""
        assert isinstance(self.log, SGLangLog)
        return self.log

    @property
    def vllm(self) -> VLLMLog:
        """The log, where the engine is vLLM."""
        assert isinstance(self.log, VLLMLog)
        return self.log

    @property
    def kernel_key(self) -> str:
        """Launches with equal keys share compiled kernels."""
        parts = [self.args.engine, self.model.name, self.settings.attention]
        if self.settings.spec_steps and self.args.engine == "vllm":
            parts.append("spec")  # SGLang 0.5.15's first one found all that it needed compiled
        return "/".join(parts)


def visible_gpus(env: Mapping[str, str], tp: int) -> list[int]:
    """Physical indices of the GPUs that the ranks run on."""
    text = env.get("CUDA_VISIBLE_DEVICES", "")
    listed = [int(word) for word in text.split(",") if word.strip().isdigit()]
    return (listed or list(range(tp)))[:tp]


def seed_of(env: Mapping[str, str]) -> str:
    """What makes this launch differ from another one of the same configuration."""
    return env.get("AUTOTUNE_SIM_SEED") or env.get("AUTOTUNE_MARK") or str(os.getpid())
