"""Launches for tests of the server lifecycle: simulated servers on a simulated machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from autotune.engines.base import ArgValue, Engine, Place
from autotune.engines.launch import build_launch
from autotune.engines.registry import engine_named
from autotune.engines.simulated.adapter import SimulatedEngine, make_host
from autotune.machine import Machine, free_port, open_machine
from autotune.records import Launch, Phase, Progress
from autotune.server import Server, running
from autotune.timeline import Timeline

FAULT = "AUTOTUNE_SIM_FAULT"
COMMANDS = {
    "sglang": ("python", "-m", "sglang.launch_server"),
    "vllm": ("vllm", "serve", "moonshotai/Kimi-K2.5"),
}
ARGS: dict[str, dict[str, ArgValue]] = {
    "sglang": {"model-path": "moonshotai/Kimi-K2.5", "tp-size": 8, "mem-fraction-static": 0.9},
    "vllm": {
        "tensor-parallel-size": 8,
        "max-model-len": 32_768,
        "gpu-memory-utilization": 0.95,
    },
}


@dataclass
class Stage:
    """A simulated machine and what was seen of the trials on it."""

    folder: Path
    stall_minutes: float = 15.0
    limit_hours: float = 3.0
    grace_seconds: float = 1.0
    progress: list[Progress] = field(default_factory=list)
    timeline: Timeline = field(init=False)

    def __post_init__(self) -> None:
        make_host(self.folder / "host", "8x-rtx-pro-6000")

    @property
    def ledger(self) -> Path:
        return self.folder / "host" / "gpus.json"

    @property
    def machine(self) -> Machine:
        return open_machine(self.ledger)

    @property
    def phases(self) -> list[Phase]:
        return list(dict.fromkeys(progress.phase for progress in self.progress))

    @property
    def details(self) -> str:
        return "\n".join(progress.detail for progress in self.progress)

    def engine(self, name: str = "sglang") -> Engine:
        """The adapter; `openai` launches what it is told to, in real time."""
        inner = engine_named(name)
        return inner if name == "openai" else SimulatedEngine(inner, self.folder / "host")

    def launch(
        self,
        fault: str = "",
        *,
        engine: str = "sglang",
        port: int | None = None,
        number: int = 1,
        args: dict[str, ArgValue] | None = None,
        env: dict[str, str] | None = None,
    ) -> Launch:
        """The launch of one trial of Kimi on eight GPUs."""
        trial_dir = self.folder / "trials" / f"{number:04d}"
        trial_dir.mkdir(parents=True, exist_ok=True)
        settings = SimpleNamespace(
            engine=engine,
            command=COMMANDS[engine],
            args=ARGS[engine] | (args or {}),
            env=({FAULT: fault} if fault else {}) | (env or {}),
        )
        place = Place(
            "127.0.0.1", port or free_port(), f"autotune-{number:04d}", trial_dir, tuple(range(8))
        )
        return build_launch(settings, self.engine(engine), place, number)

    @asynccontextmanager
    async def running(self, launch: Launch) -> AsyncIterator[Server]:
        """`server.running` on this machine."""
        engine = self.engine(launch.engine)
        self.timeline = Timeline(
            launch.trial,
            clock=engine.clock(launch),
            path=launch.trial_dir / "timeline.json",
            listener=self.progress.append,
        )
        async with running(
            launch,
            engine,
            startup=SimpleNamespace(stall_minutes=self.stall_minutes, limit_hours=self.limit_hours),
            stop=SimpleNamespace(grace_seconds=self.grace_seconds, memory_tolerance_mib=300.0),
            machine=self.machine,
            timeline=self.timeline,
        ) as server:
            yield server
