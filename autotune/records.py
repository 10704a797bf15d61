"""The frozen data that passes between the parts, and the glossary of measured figures.

Everything here is plain data: what is written to a trial's folder and read back by `show`,
`report`, `explain` and `export`. Behaviour lives in the functions of the other files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

Value = bool | int | float | str | None
"""A parameter's value."""

SINGLE, PEAK = "single_stream_tok_s", "peak_tok_s"
OBJECTIVES = (SINGLE, PEAK)
"""The two objectives, both maximised, in tokens per second."""


def _known(figures: object) -> object:
    """Without figures that are no number, which JSON stores as null: one of them must not make a
    trial's whole outcome unreadable."""
    if not isinstance(figures, Mapping):
        return figures
    return {name: value for name, value in figures.items() if _is_number(value)}


def _is_number(value: object) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


Figures = Annotated[dict[str, float], BeforeValidator(_known)]

FIGURES: Mapping[str, str] = {
    # Single stream: one request at a time.
    "single_end_to_end_tok_s": "completion tokens / request time, median over requests",
    "single_decode_tok_s": "completion tokens after the first delta / time after TTFT, median",
    "single_p50_ttft_ms": "time to first token, one request at a time, median",
    "single_p50_tpot_ms": "time per output token after the first, one at a time, median",
    "single_p99_tpot_ms": "the same, 99th percentile",
    "single_p50_e2e_ms": "request time, one at a time, median",
    "single_requests": "measured requests",
    "single_accept_length": "tokens accepted per verify step including the bonus token",
    "single_accept_rate": "share of the drafted tokens that were accepted, 0-1",
    "single_decode_graph_share": "share of decode or verify steps run from a CUDA graph, 0-1",
    "single_cold_tok_s": "the first request's end-to-end tok/s, before warm-up",
    # Peak: the workload's concurrency.
    "peak_window_tok_s": "completion tokens in the window of full concurrency / its length",
    "peak_whole_run_tok_s": "all completion tokens / first send to last token",
    "peak_waves": "waves of requests in that window: the samples of the peak figure",
    "peak_window_seconds": "length of the window of full concurrency",
    "peak_requests": "requests that finished",
    "peak_failed_requests": "requests that failed",
    "peak_concurrency": "requests in flight that the client kept up",
    "p50_ttft_ms": "time to first token at peak, median",
    "p99_ttft_ms": "the same, 99th percentile",
    "p50_tpot_ms": "time per output token after the first at peak, median",
    "p99_tpot_ms": "the same, 99th percentile",
    "p50_itl_ms": "gap between tokens at peak, median",
    "p99_itl_ms": "the same, 99th percentile",
    "p50_e2e_ms": "request time at peak, median",
    "p99_e2e_ms": "the same, 99th percentile",
    "goodput_rps": "requests per second that met every latency constraint",
    "goodput_share": "share of the open loop's requests that met every latency constraint, 0-1",
    "peak_accept_length": "tokens accepted per verify step at peak",
    "peak_accept_rate": "share of the drafted tokens that were accepted at peak, 0-1",
    "peak_server_tpot_ms": "time per output token by the scheduler's own log at peak, median",
    "peak_decode_graph_share": "share of decode (or verify) steps at peak run from a CUDA graph",
    "running_requests_max": "most requests the server ran at once",
    "running_requests_mean": "mean of the requests the server ran in the window",
    "queued_requests_mean": "mean of the requests the server kept waiting in the window",
    "retractions": "requests the server put back for lack of KV room",
    "worst_violation": "share by which the worst missed limit is missed",
    "cached_share": "share of prompt tokens served from the prefix cache, 0-1",
    # The server.
    "kv_tokens": "tokens of KV cache the server allocated",
    "kv_usage_max": "highest share of the KV cache in use, 0-1",
    "max_running_requests": "the server's effective limit of requests at once",
    "gpu_memory_max_bytes": "most memory held on one GPU",
    # The host, where hosts differ (`--allow-mixed`).
    "host_factor_single": "what the host's single-stream figure was multiplied by",
    "host_factor_peak": "what the host's peak figure was multiplied by",
    # The client.
    "client_ceiling_tok_s": "what this client reaches against a mock at the same concurrency",
    "client_cpu_us_per_token": "client CPU time per streamed token at peak",
}
"""Every figure a trial can have: name -> meaning. Constraints may name any of them."""


class Frozen(BaseModel):
    """Base of all records: immutable, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Phase(StrEnum):
    """The phases of a trial, in order."""

    PREPARE = "prepare"
    LAUNCH = "launch"  # from exec to the first sign of weights
    LOAD = "load"  # weights, KV pool
    CAPTURE = "capture"  # compilation, autotuning, CUDA graphs
    READY = "ready"  # HTTP is open, the first real answer is awaited
    TURN = "turn"  # a neighbour on the same host is being measured
    ANSWER_CHECK = "answer_check"
    WARM_UP = "warm_up"
    SINGLE = "single"
    PEAK = "peak"
    STOP = "stop"
    DRAINED = "drained"  # processes, ports and GPU memory are back


class FailureKind(StrEnum):
    """What a trial died of, as far as it is the configuration's fault."""

    BAD_FLAGS = "bad_flags"  # the engine's parser or validation refused the launch
    UNSUPPORTED = "unsupported"  # this GPU, model or build cannot do it
    OUT_OF_MEMORY = "out_of_memory"
    NO_KV_ROOM = "no_kv_room"
    COLLECTIVE = "collective"  # NCCL or another collective failed or hung
    CRASHED = "crashed"
    STALLED = "stalled"
    WRONG_OUTPUT = "wrong_output"
    REQUESTS_FAILED = "requests_failed"
    LIMIT_VIOLATED = "limit_violated"  # a constraint of the experiment


class Failure(Frozen):
    """Kind, phase and root cause: the first causal line of the log, not the last generic one."""

    kind: FailureKind
    phase: Phase
    cause: str
    excerpt: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} during {self.phase}: {self.cause}"


class Launch(Frozen):
    """Everything needed to start one server by hand: also written as `launch.sh`."""

    trial: int
    engine: str
    argv: tuple[str, ...]
    env: dict[str, str] = Field(description="what autotune sets on top of the host's environment")
    host: str
    port: int
    served_name: str
    trial_dir: Path
    mark: str = Field(description="value of AUTOTUNE_MARK in the server's environment")
    gpus: tuple[int, ...] = Field(default=(), description="physical GPU indices of the slot")
    cores: tuple[int, ...] = Field(default=(), description="CPUs it may use; empty: all")


class Override(Frozen):
    """A setting that was asked for and is not what the server runs."""

    setting: str
    asked: JsonValue
    effective: JsonValue
    source: str = Field(description="where the effective value was read: server_info, log, proc")


class Measurement(Frozen):
    """The result of measuring one server."""

    values: dict[str, float] = Field(description="objective -> tokens per second")
    spread: Figures = Field(
        description="objective -> half-width of the 95 % interval, tokens per second"
    )
    figures: Figures = Field(description="names as in FIGURES")
    warnings: tuple[str, ...] = ()
    answers: tuple[str, ...] = Field(default=(), description="to the fixed greedy questions")


State = Literal["ok", "infeasible", "lost", "running", "interrupted"]
Purpose = Literal[
    "baseline", "known_good", "search", "finalist", "drift", "replay", "host_baseline"
]
"""Why a trial was launched; `drift` is the baseline measured again, `host_baseline` the baseline
on another kind of host, whose figures are then told in the first host's."""


class Outcome(Frozen):
    """How one trial ended; the file `outcome.json` of its folder. Secrets are masked."""

    number: int
    state: State
    engine: str
    params: dict[str, Value]
    command: tuple[str, ...]
    env: dict[str, str]
    key: str = Field(description="digest of the canonical launch: equal keys are one configuration")
    failure: Failure | None = None
    values: dict[str, float] | None = None
    spread: Figures = {}
    figures: Figures = {}
    seconds: Figures = Field(default={}, description="phase -> seconds")
    warnings: tuple[str, ...] = ()
    overrides: tuple[Override, ...] = ()
    effective: dict[str, JsonValue] = Field(default={}, description="settings the server reports")
    answers: tuple[str, ...] = ()
    engine_version: str | None = None
    machine: str = Field(default="", description="fingerprint digest of the host it ran on")
    host: str = Field(default="", description="name of the host it ran on")
    purpose: Purpose = "search"
    repeats: int | None = Field(default=None, description="number of the trial this one repeats")
    simulated: bool = False
    started_at: str = Field(default="", description="UTC, ISO 8601")
    finished_at: str = ""


class Progress(Frozen):
    """What a trial is doing right now; shown live, never stored."""

    trial: int
    phase: Phase
    detail: str = Field(default="", description='e.g. "loading weights 61/163 shards, 4.2 GB/s"')
    fraction: float | None = Field(default=None, description="of this phase, 0-1, if known")
    phase_seconds: float = 0.0
    total_seconds: float = 0.0
