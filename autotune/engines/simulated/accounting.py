"""What a scheduler tells the outside: counters, gauges, and an engine's log."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.engines.simulated.requests import Sequence


@dataclass
class Counters:
    """What `/metrics` and the log tell."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    retracted: int = 0
    cycles: int = 0  # speculative: verify steps of requests
    accepted: int = 0  # drafted tokens accepted
    spec_cycles: int = 0  # since the last flush
    spec_tokens: int = 0
    graph_steps: int = 0
    eager_steps: int = 0
    prefill_steps: int = 0
    ttft_sum: float = 0.0
    ttft_count: int = 0


@dataclass(frozen=True)
class Gauges:
    """The state during the last step: what engines publish, and not what a turn leaves."""

    running: int = 0
    waiting: int = 0
    kv_used: int = 0


class Watcher:
    """What the scheduler reports to, so that an engine can log in its own words."""

    def prefilled(self, new: list[Sequence], tokens: int, cached: int, seconds: float) -> None:
        """A prefill batch was done."""

    def decoded(self, cycles: int, tokens: int, graph: bool) -> None:
        """Decode steps were done."""

    def retracted(self, count: int) -> None:
        """Requests were put back for lack of KV room."""
