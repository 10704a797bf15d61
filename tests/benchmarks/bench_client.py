"""What the load client costs, and whether it tells the truth, against the mock.

    python -m tests.benchmarks.bench_client [--quick]

1. Client CPU per streamed token at concurrency 128: ours, aiohttp's plain loop, one shared
   httpx client, in alternation in one run. Bars: ours <= aiohttp's, ours <= httpx's / 3, TTFT
   p50 within 20 ms of the mock's.
2. Truth at concurrency 1 to 512 with 1, 4 and 20 tokens a chunk. Bars: tok/s and TPOT within
   1 %. The mock and the client share the host, so the mock is paced to what a busy host of two
   cores can keep.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp
import httpx

from autotune.calibrate import mock_request, running_mock
from autotune.clock import WallClock
from autotune.figures import first_delta_tokens, tpot_seconds
from autotune.load import Run, closed_loop
from autotune.mock import Truth
from autotune.stream import Endpoint, Reply

CONCURRENCY = 128
TOKENS = 128
PACED = Truth(ttft_seconds=0.05, tpot_seconds=0.01)  # 100 tokens/s a stream


@dataclass(frozen=True)
class Cost:
    """One client's run."""

    cpu_us_per_token: float
    ttft_ms: float
    tok_s: float


async def ours(url: str, requests: int) -> Cost:
    run = await load(url, CONCURRENCY, requests, TOKENS)
    seconds = max(r.last for r in run.ok) - min(r.sent for r in run.ok)
    ttft = statistics.median(r.ttft_seconds or 0.0 for r in run.ok)
    return Cost(1e6 * run.client_cpu_seconds / run.tokens, 1000 * ttft, run.tokens / seconds)


async def load(url: str, concurrency: int, requests: int, tokens: int) -> Run:
    run = await closed_loop(
        Endpoint(url),
        lambda index: mock_request(index, tokens),
        concurrency,
        clock=WallClock(),
        more=lambda reply: True,
        indices=itertools.islice(itertools.count(), requests),
    )
    assert not run.failed, run.faults()
    return run


class Plain:
    """A client as people write it: read lines, parse JSON, note the first token."""

    def __init__(self) -> None:
        self.tokens, self.ttfts = 0, list[float]()

    def line(self, line: bytes | str, sent: float, first: bool) -> bool:
        """Take one line; True once a token has come."""
        text = line if isinstance(line, str) else line.decode()
        if not text.startswith("data: ") or text.strip() == "data: [DONE]":
            return not first
        event = json.loads(text[6:])
        if first and event["choices"] and event["choices"][0]["delta"].get("content"):
            self.ttfts.append(time.perf_counter() - sent)
            first = False
        if event.get("usage"):
            self.tokens += event["usage"]["completion_tokens"]
        return not first

    def cost(self, cpu: float, seconds: float) -> Cost:
        ttft = 1000 * statistics.median(self.ttfts)
        return Cost(1e6 * cpu / self.tokens, ttft, self.tokens / seconds)


async def spread(requests: int, worker: Callable[[int], Awaitable[None]]) -> tuple[float, float]:
    """Run `worker(index)` for all requests at the concurrency; CPU and wall seconds."""
    indices = iter(range(requests))

    async def work() -> None:
        for index in indices:
            await worker(index)

    cpu, start = time.thread_time(), time.perf_counter()
    await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
    return time.thread_time() - cpu, time.perf_counter() - start


async def plain_aiohttp(url: str, requests: int) -> Cost:
    plain = Plain()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=1 << 20) as session:

        async def one(index: int) -> None:
            sent, seen = time.perf_counter(), False
            body = mock_request(index, TOKENS).body
            headers = {"Content-Type": "application/json"}
            path = f"{url}/v1/chat/completions"
            async with session.post(path, data=body, headers=headers) as response:
                async for line in response.content:
                    seen = plain.line(line, sent, not seen)

        return plain.cost(*await spread(requests, one))


async def shared_httpx(url: str, requests: int) -> Cost:
    plain = Plain()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=300) as client:

        async def one(index: int) -> None:
            sent, seen = time.perf_counter(), False
            body = mock_request(index, TOKENS).body
            async with client.stream("POST", "/v1/chat/completions", content=body) as response:
                async for line in response.aiter_lines():
                    seen = plain.line(line, sent, not seen)

        return plain.cost(*await spread(requests, one))


async def costs(rounds: int) -> None:
    clients = {"ours": ours, "aiohttp": plain_aiohttp, "httpx, shared": shared_httpx}
    found: dict[str, list[Cost]] = {name: [] for name in clients}
    with running_mock(PACED) as url:
        await ours(url, CONCURRENCY)  # imports and first connections
        for _ in range(rounds):
            for name, client in clients.items():
                found[name].append(await client(url, 3 * CONCURRENCY))
    print(f"concurrency {CONCURRENCY}, {TOKENS} tokens, medians of {rounds} rounds in alternation")
    print(f"{'client':>14} {'CPU us/token':>13} {'TTFT p50 ms':>12} {'tok/s':>8} {'ours is':>9}")
    own = statistics.median(cost.cpu_us_per_token for cost in found["ours"])
    for name, runs in found.items():
        cpu = statistics.median(cost.cpu_us_per_token for cost in runs)
        ttft = statistics.median(cost.ttft_ms for cost in runs)
        rate = statistics.median(cost.tok_s for cost in runs)
        print(f"{name:>14} {cpu:>13.1f} {ttft:>12.1f} {rate:>8.0f} {cpu / own:>8.2f}x")


def truth_of(concurrency: int, tokens_per_chunk: int) -> Truth:
    """Paced to 2,000 chunks/s in all, and long enough for scheduling to matter little."""
    tpot = max(0.01, concurrency / (2_000 * tokens_per_chunk))
    return Truth(ttft_seconds=0.1, tpot_seconds=tpot, tokens_per_chunk=tokens_per_chunk)


async def truths(concurrencies: list[int]) -> None:
    print("\nagainst the mock's truth: error of tok/s (window), and of TPOT (median)")
    print(
        f"{'concurrency':>11} {'tokens/chunk':>12} {'tok/s':>9} {'error':>7} {'TPOT ms':>8} error"
    )
    for concurrency, chunk in itertools.product(concurrencies, (1, 4, 20)):
        truth = truth_of(concurrency, chunk)
        tokens = 20 * max(2, round(6 / (20 * truth.tpot_seconds)))
        with running_mock(truth) as url:
            run = await load(url, concurrency, 2 * concurrency + 2, tokens)
        counted = run.ok[: 2 * concurrency]
        first = first_delta_tokens(counted) if chunk == 1 else chunk
        rate = concurrency * statistics.mean(r.completion_tokens / r.e2e_seconds for r in counted)
        tpot = statistics.median(_tpot(reply, first) for reply in counted)
        true_rate = concurrency * tokens / truth.request_seconds(tokens)
        print(
            f"{concurrency:>11} {chunk:>12} {rate:>9.1f} {rate / true_rate - 1:>+7.2%} "
            f"{1000 * tpot:>8.3f} {tpot / truth.tpot_seconds - 1:>+6.2%}",
            flush=True,
        )


def _tpot(reply: Reply, first_tokens: int) -> float:
    seconds = tpot_seconds(reply, first_tokens)
    assert seconds is not None
    return seconds


def main() -> None:
    quick = "--quick" in sys.argv
    asyncio.run(costs(1 if quick else 5))
    asyncio.run(truths([1, 64] if quick else [1, 8, 64, 128, 512]))


if __name__ == "__main__":
    main()
