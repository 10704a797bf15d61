"""A server with a known truth, to calibrate the client against: `python -m autotune.mock`.

It streams `max_tokens` tokens, `tokens_per_chunk` at a time: the first chunk `ttft` after the
request, then one every `tokens_per_chunk * tpot`, on an absolute schedule, so that a late chunk
does not delay the next. With `tpot` 0 it sends as fast as the connection takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Truth:
    """What the mock does."""

    ttft_seconds: float = 0.05
    tpot_seconds: float = 0.01
    tokens_per_chunk: int = 1

    def chunks(self, tokens: int) -> list[int]:
        """Tokens of each chunk."""
        full, rest = divmod(tokens, self.tokens_per_chunk)
        return [self.tokens_per_chunk] * full + ([rest] if rest else [])

    def request_seconds(self, tokens: int) -> float:
        """Send to last token."""
        gaps = len(self.chunks(tokens)) - 1
        return self.ttft_seconds + gaps * self.tokens_per_chunk * self.tpot_seconds


_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_CHUNK = (
    '{"id":"chatcmpl-5f1d9a0c2b7e4f8d","object":"chat.completion.chunk","created":1765000000,'
    '"model":"mock","choices":[{"index":0,"delta":{"content":"%s"},"logprobs":null,'
    '"finish_reason":null}]%s}'
)


def _framed(payload: str) -> bytes:
    event = f"data: {payload}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(event), event)


def _json_response(body: dict[str, Any], status: str = "200 OK") -> bytes:
    text = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return (head % len(text)).encode() + text


class MockServer(asyncio.Protocol):
    """One connection of the mock."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self._buffer = b""
        self._prompt_tokens = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        if len(body) >= length:
            self._buffer = body[length:]
            self._answer(head.split(b" ", 2)[1].decode(), body[:length])

    def _answer(self, path: str, body: bytes) -> None:
        if path.endswith("/models"):
            model = {"id": "mock", "object": "model", "max_model_len": 1 << 20}
            self._transport.write(_json_response({"object": "list", "data": [model]}))
            return
        if not path.endswith("/completions"):
            self._transport.write(_json_response({"error": "no such path"}, "404 Not Found"))
            return
        request = json.loads(body)
        tokens = int(request.get("max_completion_tokens") or request.get("max_tokens") or 16)
        self._prompt_tokens = len(body) // 4
        if request.get("stream"):
            self._stream(tokens, request.get("stream_options") or {})
        else:
            self._loop.call_later(self.truth.request_seconds(tokens), self._whole, tokens)

    def _usage(self, tokens: int) -> dict[str, int]:
        total = self._prompt_tokens + tokens
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": total,
        }

    def _whole(self, tokens: int) -> None:
        message = {"role": "assistant", "content": " token" * tokens}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        self._transport.write(_json_response({"choices": [choice], "usage": self._usage(tokens)}))

    def _stream(self, tokens: int, options: dict[str, Any]) -> None:
        plan, sent, frames = self.truth.chunks(tokens), 0, []
        for count in plan:
            sent += count
            usage = ""
            if options.get("continuous_usage_stats"):
                usage = ',"usage":' + json.dumps(self._usage(sent))
            frames.append(_framed(_CHUNK % (" token" * count, usage)))
        final = {"object": "chat.completion.chunk", "choices": [], "usage": self._usage(tokens)}
        frames[-1] += _framed(json.dumps(final)) + _framed("[DONE]") + b"0\r\n\r\n"
        frames[0] = _HEAD + frames[0]
        self._send(frames, 0, self._loop.time() + self.truth.ttft_seconds)

    def _send(self, frames: list[bytes], index: int, due: float) -> None:
        """Write frame `index` when it is due, then plan the next."""
        if self._transport.is_closing():
            return
        if due > self._loop.time():
            self._loop.call_at(due, self._write, frames, index, due)
        else:
            # Even without a wait each chunk is a write of its own, as a server's would be.
            self._loop.call_soon(self._write, frames, index, due)

    def _write(self, frames: list[bytes], index: int, due: float) -> None:
        self._transport.write(frames[index])
        if index + 1 < len(frames):
            gap = self.truth.tokens_per_chunk * self.truth.tpot_seconds
            self._send(frames, index + 1, due + gap)


async def serve(truth: Truth) -> None:
    """Serve on a free loopback port, print the port, run until standard input closes."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: MockServer(truth), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    # Not `async with server`: from Python 3.12 on that waits for every client to hang up.
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), _stdin())
    await reader.read()  # the parent is gone, or done with us
    server.close()


def _stdin() -> Any:
    import sys

    return sys.stdin


def main() -> None:
    """Command line: --ttft SECONDS --tpot SECONDS --tokens-per-chunk N."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ttft", type=float, default=0.05)
    parser.add_argument("--tpot", type=float, default=0.01)
    parser.add_argument("--tokens-per-chunk", type=int, default=1)
    options = parser.parse_args()
    truth = Truth(options.ttft, options.tpot, options.tokens_per_chunk)
    asyncio.run(serve(truth))


if __name__ == "__main__":
    main()
