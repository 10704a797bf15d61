"""How long the phases of a start and a stop take, in seconds.

SGLang's were measured with 0.5.15 on one H200 (17 launches of an 8B model and of a small one with
experts, kernel caches cold and warm); load times of large models are those that were reported.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.engines.simulated.models import Model
from autotune.engines.simulated.settings import Settings

IMPORT_SECONDS = 25.0  # to the first line of log: 22-34
SPAWN_SECONDS = 23.0  # the scheduler process imports the same again: 20-29
# What --enable-p2p-check costs the first launch on two H200: 41 s until it was known who reaches
# whom, 13 more until the ranks were connected; none of it later.
PEERS_SECONDS = 54.0
POOL_SECONDS = 0.4
WARM_UP_SECONDS = 0.5  # the server's own first request
STOP_SECONDS = 4.0  # processes end after the last request has: 3-5
STOP_POLL_SECONDS = 5.0  # how often a server that is told to stop looks for requests left
DRAFT_DECODE = 2.3  # capture of the drafter's decode graphs, against one pass of it


@dataclass(frozen=True)
class Compiling:
    """What the first launch of a kind spends on kernels, beside what a later one does."""

    capture: float = 0.0
    first_request: float = 0.0


def compiling(settings: Settings) -> Compiling:
    """First-launch compilation: in the first graph and the first request, else all in the latter.

    Measured: triton 70, 78 and 81 s in the first graph; flashinfer 28 and 38 there and 95 in the
    first request; without graphs 98 in the first request with two backends.
    """
    if not settings.graph_max_bs:
        return Compiling(first_request=98.0)
    if settings.attention == "flashinfer":
        return Compiling(capture=33.0, first_request=95.0)
    return Compiling(capture=75.0, first_request=6.0)


@dataclass(frozen=True)
class Capture:
    """The graphs of one kind: what the log calls them, tokens a request, seconds a batch size."""

    what: str
    width: int
    each: float


def captures(model: Model, settings: Settings, draft_in_graph: bool = True) -> list[Capture]:
    """The kinds of graphs that a launch captures, in order, kernels compiled."""
    if not settings.graph_max_bs:
        return []
    width, target = settings.spec_steps + 1, _graph_seconds(model.layers, bool(model.experts))
    if not settings.spec_steps:
        return [Capture("target decode", 1, target)]
    found = [Capture("target verify", width, target)]
    drafter = model.draft
    draft = _graph_seconds(
        drafter.layers if drafter else 1, bool(drafter and drafter.built_in and model.experts)
    )
    if settings.spec_steps > 1:
        found.append(Capture("draft decode", 1, DRAFT_DECODE * draft))
    if draft_in_graph:
        found.append(Capture("draft extend", width, draft))
    return found


def _graph_seconds(layers: int, experts: bool) -> float:
    """One batch size: 0.19 s with 36 dense layers, 0.12 with 16, 0.45 with 8 that have experts."""
    return 0.06 + 0.0035 * layers + (0.36 if experts else 0.0)


def capture_seconds(model: Model, settings: Settings) -> float:
    """All graphs of a launch, kernels compiled."""
    return settings.graph_sizes * sum(kind.each for kind in captures(model, settings))


def load_seconds(model: Model, settings: Settings, cold: bool, luck: float = 0.5) -> float:
    """Reading (and unpacking) the weights; `luck` 0-1 places a cold load in its range."""
    low, high = model.first_load_seconds
    seconds = low + (high - low) * luck if cold else 0.45 * low
    seconds *= 0.6 if settings.fast_load else 1.0
    return 0.3 if settings.dummy_weights else seconds


def draft_load_seconds(settings: Settings) -> float:
    """Reading the drafter's weights."""
    return 0.6 if settings.dummy_weights else 6.0
