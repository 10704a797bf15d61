"""What autotune must know about an inference server to launch, wait for, judge and measure it.

One class per server (`sglang.py`, `vllm.py`, `openai.py`), looked up by its name in the
experiment file through `engines.registry.engine_named`. An adapter holds no state: everything
about one launch is in `Launch`, everything about one running server in the arguments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import httpx
from pydantic import JsonValue

from autotune.clock import Clock, WallClock
from autotune.records import FailureKind, Launch, Override, Phase

ArgValue = bool | int | float | str | list[int | float | str] | None
"""An argument: `True` is a bare flag, `None` and `False` leave it out, a list repeats values."""


@dataclass(frozen=True)
class Place:
    """Where a trial's server runs."""

    host: str
    port: int
    served_name: str
    trial_dir: Path
    gpus: tuple[int, ...] = ()
    cores: tuple[int, ...] = ()  # CPUs it may use; empty: all


@dataclass(frozen=True)
class LoadProgress:
    """What a log line says about how far the start-up is."""

    detail: str  # "loading weights 61/163 shards"
    fraction: float | None = None  # of the phase, 0-1
    step: int | None = None  # its place among the steps, if every rank writes when it begins it


@dataclass(frozen=True)
class Effective:
    """What the server says it runs."""

    settings: Mapping[str, JsonValue] = field(default_factory=dict)  # resolved arguments
    figures: Mapping[str, float] = field(default_factory=dict)  # kv_tokens, max_running_requests
    version: str | None = None


@dataclass(frozen=True)
class ServingSample:
    """Counters and gauges of a serving engine at one moment; None where the engine is silent.

    Counters (`*_total`) only grow while a server lives, but for `flush_cache`, which may reset
    the speculation counters.
    """

    running: float | None = None
    queued: float | None = None
    kv_usage: float | None = None  # 0-1
    retractions_total: float | None = None
    generated_tokens_total: float | None = None
    prompt_tokens_total: float | None = None
    cached_tokens_total: float | None = None
    drafts_total: float | None = None  # verify steps
    drafted_tokens_total: float | None = None
    accepted_tokens_total: float | None = None  # drafted tokens that were accepted
    accept_length: float | None = None  # the engine's own mean, where it has no counters
    accept_rate: float | None = None  # the same: accepted / drafted tokens, 0-1
    graph_steps_total: float | None = None  # decode or verify steps from a CUDA graph
    eager_steps_total: float | None = None  # decode or verify steps without one
    decode_tpot_ms: float | None = None  # a request's time per token, as the scheduler makes them


class NoAnswer(Exception):
    """A request that a server answered with an error or without a token; says which."""


class Engine(ABC):
    """One kind of inference server."""

    name: ClassVar[str]
    flags: ClassVar[bool] = True  # False: takes no flags of its own, all must be written

    # -- launch ---------------------------------------------------------------------------
    @abstractmethod
    def complete(self, args: Mapping[str, ArgValue], place: Place) -> dict[str, ArgValue]:
        """`args` plus host, port, served name and what measuring needs, unless given."""

    def command(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """What is run for the experiment's `command`; a simulated engine runs something else."""
        return command

    def environment(self, place: Place) -> dict[str, str]:
        """Variables that autotune sets: raised limits, offline telemetry, per-trial TMPDIR.

        The experiment's own `env` wins over these.
        """
        return {}

    def parallel_sizes(self, words: Sequence[str]) -> Mapping[str, int] | None:
        """Sizes whose product is the number of GPUs that a server started with these words uses.

        None where the words do not say it: a file of options, several hosts.
        """
        return None

    def preflight(self, launch: Launch) -> tuple[str, ...] | None:
        """A command, run in the launch's environment, that asks the engine's own parser.

        It must exit 0 if the arguments are accepted, and with a status in
        `preflight_rejects` and the reason in its output if they are not; any other status
        says nothing. None if the engine cannot be asked cheaply.
        """
        return None

    preflight_rejects: ClassVar[tuple[int, ...]] = (2,)

    # -- log ------------------------------------------------------------------------------
    @abstractmethod
    def phase_of(self, line: str) -> Phase | None:
        """The phase that begins with this log line, if one does."""

    def progress_of(self, line: str) -> LoadProgress | None:
        """What this log line (or this carriage-return segment of one) says about progress."""
        return None

    @abstractmethod
    def failure_of(self, line: str) -> FailureKind | None:
        """The kind of failure whose cause this line states; None for noise and generic lines."""

    def hint_of(self, line: str) -> str | None:
        """What would be right, for a cause such as a flag that was renamed; None if unknown."""
        return None

    # -- a running server -----------------------------------------------------------------
    async def is_ready(self, http: httpx.AsyncClient, launch: Launch) -> bool:
        """True once this trial's own server (its served name) answers a real generation.

        Raises `NoAnswer` if it answers with an error: for long, and it is given up.
        """
        raise NotImplementedError

    async def effective(self, http: httpx.AsyncClient, log: str) -> Effective:
        """The server's resolved settings, from its endpoints and its log so far."""
        return Effective()

    def overrides(self, args: Mapping[str, ArgValue], effective: Effective) -> Sequence[Override]:
        """Which of the asked arguments the server silently changed or ignored."""
        return ()

    async def flush_cache(self, http: httpx.AsyncClient) -> bool:
        """Empty the prefix cache; True if the server says it did."""
        return False

    async def abort_all(self, http: httpx.AsyncClient) -> None:
        """Give up all requests: a server that finishes them first takes longer to end."""
        return  # nothing to do where a server drops those whose clients are gone

    async def sample(self, http: httpx.AsyncClient) -> ServingSample:
        """Counters and gauges now; must be cheap and must not disturb a measurement."""
        return ServingSample()

    def sample_from_log(self, text: str) -> ServingSample:
        """The same from the log written in between, where the engine has no metrics."""
        return ServingSample()

    # -- time and speculation ---------------------------------------------------------------
    def clock(self, launch: Launch) -> Clock:
        """The clock the server's times are measured with."""
        return WallClock()
