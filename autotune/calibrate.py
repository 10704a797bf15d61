"""How fast this client is on this host: measured against the mock, cached per concurrency.

A figure that comes near the client's own ceiling is the client's, not the server's. The mock
paces its streams as a server does; the ceiling is what one process would reach if all its time
went into tokens at the cost seen there. Batching makes tokens cheaper as load grows, so the
true ceiling is higher.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path

from autotune.clock import WallClock
from autotune.foreign_json import foreign_json
from autotune.load import closed_loop
from autotune.mock import Truth
from autotune.stream import Endpoint, Request

_TOKENS = 64
_WAVES = 2
_PACED_TOK_S = 8_000  # in all: what a common host's mock can keep to


@dataclass(frozen=True)
class Calibration:
    """What this client costs and reaches at one concurrency."""

    concurrency: int
    cpu_us_per_token: float
    ceiling_tok_s: float


def ceiling_warning(calibration: Calibration, tok_s: float) -> str | None:
    """A warning if a figure is above a third of the client's ceiling."""
    if 3 * tok_s <= calibration.ceiling_tok_s:
        return None
    return (
        f"client_ceiling: {tok_s:.0f} tok/s is above a third of what this client is sure to "
        f"reach on this host ({calibration.ceiling_tok_s:.0f}); the server may do more"
    )


async def client_calibration(concurrency: int) -> Calibration:
    """The stored calibration of this host, or a new one (about two seconds)."""
    path = _cache_path(concurrency)
    try:
        return Calibration(**foreign_json(path.read_text()))
    except (OSError, ValueError, TypeError):
        # On a thread with an event loop of its own: this one may be busy with other things.
        calibration = await asyncio.to_thread(asyncio.run, calibrate(concurrency))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(calibration)))
        return calibration


def _cache_path(concurrency: int) -> Path:
    """One file per host, Python and concurrency, in the user's cache."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    host = (platform.node(), platform.processor(), os.cpu_count(), sys.version)
    digest = hashlib.sha256(repr(host).encode()).hexdigest()[:12]
    return root / "autotune" / "client" / f"{digest}-{concurrency}.json"


async def calibrate(concurrency: int, truth: Truth | None = None) -> Calibration:
    """Run the client against a mock of its own at this concurrency."""
    paced = truth or Truth(ttft_seconds=0.05, tpot_seconds=concurrency / _PACED_TOK_S)
    with running_mock(paced) as url:
        run = await closed_loop(
            Endpoint(url),
            lambda index: mock_request(index, _TOKENS),
            concurrency,
            clock=WallClock(),
            more=lambda reply: True,
            indices=islice(count(), _WAVES * concurrency + 4),
        )
    cost = run.client_cpu_seconds / max(1, run.tokens)
    return Calibration(concurrency, 1e6 * cost, 1 / cost)


def mock_request(index: int, tokens: int, **fields: object) -> Request:
    """A request as the mock takes it."""
    body = {
        "model": "mock",
        "messages": [{"role": "user", "content": f"{index:09d}: " + "word " * 200}],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    return Request(index, json.dumps(body).encode(), min_tokens=tokens)


@contextlib.contextmanager
def running_mock(truth: Truth) -> Iterator[str]:
    """A mock server in a process of its own; gives its URL."""
    options = {
        "--ttft": truth.ttft_seconds,
        "--tpot": truth.tpot_seconds,
        "--tokens-per-chunk": truth.tokens_per_chunk,
    }
    arguments = [str(part) for option in options.items() for part in option]
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune.mock", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.communicate()  # closing its standard input ends it
