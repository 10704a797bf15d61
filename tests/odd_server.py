"""A real server on a real socket that misbehaves on purpose, for tests of the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

Body = dict[str, Any]
Writer = asyncio.StreamWriter
Answer = Callable[[str, Body, Writer], Awaitable[None]]

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """Serve `answer(path, body, writer)` on a free port; gives the URL."""

    async def connection(reader: asyncio.StreamReader, writer: Writer) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lengths = [
                    int(line.partition(b":")[2])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                ]
                body = await reader.readexactly(lengths[0]) if lengths else b""
                await answer(head.split(b" ")[1].decode(), json.loads(body or b"{}"), writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def chunk(payload: Any) -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    event = f"data: {text}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(event), event)


def delta(text: str, **more: Any) -> bytes:
    return chunk({"choices": [{"index": 0, "delta": {"content": text}, **more}]})


def usage(tokens: int, prompt: int = 10, cached: int | None = None) -> bytes:
    counts: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": tokens}
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return chunk({"choices": [], "usage": counts})


END = chunk("[DONE]") + b"0\r\n\r\n"


def send_json(writer: Writer, body: Any, status: str = "200 OK") -> None:
    text = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    writer.write(head.encode() + b"\r\n\r\n" + text)


def send_models(writer: Writer, name: str = "m", context: int | None = None) -> None:
    model: dict[str, Any] = {"id": name}
    if context is not None:
        model["max_model_len"] = context
    send_json(writer, {"data": [model]})


async def good_answer(path: str, body: Body, writer: Writer) -> None:
    """What a well-behaved server does, at once."""
    if path.endswith("/models"):
        return send_models(writer)
    if not path.endswith("completions"):
        return send_json(writer, {"error": "no such path"}, "404 Not Found")
    tokens = body["max_tokens"]
    if not body.get("stream"):
        choice = {"message": {"content": "word " * tokens}, "finish_reason": "length"}
        counts = {"prompt_tokens": 10, "completion_tokens": tokens}
        return send_json(writer, {"choices": [choice], "usage": counts})
    writer.write(STREAM_HEAD + b"".join(delta(f"w{i} ") for i in range(tokens)))
    writer.write(usage(tokens) + END)
