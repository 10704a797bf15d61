"""What the engine says of itself while it is measured: counters, gauges, log lines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

import httpx

from autotune.clock import Clock, WallClock
from autotune.engines.base import Engine, ServingSample
from autotune.gauges import believed

_PERIOD_SECONDS = 1.0
_SIMULATED_PERIODS_SECONDS = (0.004, 0.1)  # of the host's time: a simulated load may be over soon
_SILENT = ServingSample()
_FEWEST_SAMPLES = 4
_FULL = 0.9  # of the KV cache: a request that may not fit waits
_NEARLY_ALL = 0.97  # HTTP and tokenising keep a few requests out of the engine at any moment


@dataclass
class Observation:
    """The samples of one phase: (server seconds, sample), and the log written meanwhile."""

    samples: list[tuple[float, ServingSample]] = field(default_factory=list)
    before: ServingSample = _SILENT
    after: ServingSample = _SILENT
    log: ServingSample = _SILENT

    def during(self, name: str, start: float, end: float) -> list[float]:
        """The values of one gauge between two moments."""
        return [
            value
            for when, sample in self.samples
            if start <= when <= end and (value := getattr(sample, name)) is not None
        ]

    def growth(self, name: str) -> float | None:
        """How much a counter grew; None where the engine has none, or where it was reset."""
        first, last = getattr(self.before, name), getattr(self.after, name)
        if first is None or last is None:
            return None
        return float(last - first) if last >= first else None

    @property
    def accept_length(self) -> float | None:
        """Tokens per verify step with the bonus token; None without speculation."""
        drafts, accepted = self.growth("drafts_total"), self.growth("accepted_tokens_total")
        if drafts and accepted is not None:
            return 1 + accepted / drafts
        return self.log.accept_length or self.after.accept_length

    @property
    def accept_rate(self) -> float | None:
        """Accepted / drafted tokens, 0-1; None without speculation."""
        drafted, accepted = (
            self.growth("drafted_tokens_total"),
            self.growth("accepted_tokens_total"),
        )
        if drafted and accepted is not None:
            return accepted / drafted
        if self.accept_length is None:  # a gauge says 0 without speculation
            return None
        return self.after.accept_rate if self.log.accept_rate is None else self.log.accept_rate

    @property
    def graph_share(self) -> float | None:
        """Share of decode or verify steps that ran from a CUDA graph, 0-1."""
        graph, eager = self.growth("graph_steps_total"), self.growth("eager_steps_total")
        if graph is None or eager is None:
            graph, eager = self.log.graph_steps_total, self.log.eager_steps_total
        if graph is None or eager is None or graph + eager == 0:
            return None
        return graph / (graph + eager)

    def figures(self, start: float, end: float) -> dict[str, float]:
        """Gauges over a window of server seconds, and what was put back, as in FIGURES."""
        running, queued = self.during("running", start, end), self.during("queued", start, end)
        figures: dict[str, float] = {}
        if len(running) >= _FEWEST_SAMPLES:  # fewer may all lie in one burst of prefills
            figures["running_requests_max"] = max(running)
            figures["running_requests_mean"] = sum(running) / len(running)
        if queued:
            figures["queued_requests_mean"] = sum(queued) / len(queued)
        usage = self.during("kv_usage", start, end)
        if usage or self.log.kv_usage is not None:
            figures["kv_usage_max"] = max([*usage, self.log.kv_usage or 0.0])
        retractions = self.growth("retractions_total")
        if retractions is not None:
            figures["retractions"] = retractions
        return figures


def capacity_warning(figures: dict[str, float], concurrency: int) -> str | None:
    """'128 asked, 107 ran', if the server did not run what was kept in flight.

    Nothing is said where the client saw more requests decode than the gauge shows.
    """
    most = believed("running_requests_max", figures, figures.get("peak_window_tok_s"))
    if most is None or most >= _NEARLY_ALL * concurrency - 1:
        return None
    return (
        f"capacity_limited: {concurrency} requests asked, {most:.0f} ran at most "
        f"({figures.get('queued_requests_mean', 0):.0f} queued on average)"
    )


def with_cause(warning: str, figures: Mapping[str, float]) -> str:
    """A capacity warning with what limited the server, as far as its own figures tell.

    SGLang counts a prompt that it prefills in chunks twice, so one place of
    `max_running_requests` stays empty where prompts are cut (H200, 0.5.23: 31 of 32).
    """
    most, limit = figures.get("running_requests_max"), figures.get("max_running_requests")
    if not warning.startswith("capacity_limited") or most is None:
        return warning
    if limit is not None and limit - 1 <= most <= limit:
        chunked = ", and a prompt prefilled in chunks takes two places" if most < limit else ""
        return f"{warning}: the server's limit is max_running_requests {limit:.0f}{chunked}"
    if figures.get("kv_usage_max", 0.0) >= _FULL or figures.get("retractions", 0.0) > 0:
        return f"{warning}: its KV cache was full"
    return warning


@dataclass
class _Log:
    """A server's log, read on from where it was read to last."""

    text: Callable[[int], str] | None
    offset: int = 0

    def __post_init__(self) -> None:
        self.news()

    def news(self) -> str:
        """What was written since."""
        found = self.text(self.offset) if self.text is not None else ""
        self.offset += len(found.encode())
        return found


@contextlib.asynccontextmanager
async def observing(
    engine: Engine | None,
    http: httpx.AsyncClient,
    clock: Clock,
    log_text: Callable[[int], str] | None,
) -> AsyncIterator[Observation]:
    """Sample the engine about once a second of its own time while the block runs."""
    observation = Observation()
    if engine is None:
        yield observation
        return
    log, live = _Log(log_text), _Log(log_text)
    observation.before = await _sample(engine, http)
    task = asyncio.create_task(_keep_sampling(observation, engine, http, clock, live))
    try:
        yield observation
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    observation.after = await _sample(engine, http)
    observation.log = engine.sample_from_log(log.news())


async def _keep_sampling(
    observation: Observation, engine: Engine, http: httpx.AsyncClient, clock: Clock, log: _Log
) -> None:
    # Never `clock.sleep`: a simulated server would stop its clock for this sleeper's sake.
    shortest, longest = _SIMULATED_PERIODS_SECONDS
    if isinstance(clock, WallClock):
        shortest = longest = _PERIOD_SECONDS
    while True:
        await asyncio.sleep(shortest)
        shortest = min(longest, 1.2 * shortest)
        asked = clock.now()
        sample = await _sample(engine, http)
        if sample.running is None:  # no metrics: the log's newest line tells
            sample = engine.sample_from_log(log.news())
        observation.samples.append(((asked + clock.now()) / 2, sample))


async def _sample(engine: Engine, http: httpx.AsyncClient) -> ServingSample:
    """One sample; an engine that does not answer now is silent, not broken."""
    try:
        return await engine.sample(http)
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return _SILENT
