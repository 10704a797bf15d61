"""An HTTP/1.1 server on bare asyncio: keep-alive, bodies, and streams of events.

Written by hand because a server process must start in a moment and stay small, and because a
stream must cost microseconds a chunk.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from autotune.foreign_json import foreign_json

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
HIGH_WATER_BYTES = 1 << 18
SIMULATED_HEADER = "x-autotune-simulated"
SPEED_HEADER = "x-autotune-simulated-speed"
"""In every answer of a simulated server, whatever engine it plays; the speed is that of its clock,
virtual seconds a real second."""


@dataclass(frozen=True)
class HttpRequest:
    """One request as it came."""

    method: str
    path: str
    query: str
    body: bytes
    peer: str
    authorization: str = ""

    def json(self) -> dict[str, Any]:
        """The body as an object; raises ValueError."""
        value = foreign_json(self.body or b"{}")
        if not isinstance(value, dict):
            raise ValueError("the body is not an object")
        return value


class Connection(asyncio.Protocol):
    """One client connection; requests are answered in turn."""

    def __init__(
        self,
        handle: Callable[[Connection, HttpRequest], Awaitable[None]],
        open_connections: set[Connection],
        speed: float,
    ) -> None:
        self._handle, self._open = handle, open_connections
        self._mark = f"{SIMULATED_HEADER}: true\r\n{SPEED_HEADER}: {speed:g}\r\n"
        self._buffer = b""
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.on_close: Callable[[], None] | None = None
        self.closed = False
        self.status = 0
        self.peer = "?"
        self.opened_at = time.monotonic()
        self.has_asked = False

    # -- what the event loop calls ------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._open.add(self)
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "?"

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)
        self.closed = True
        self._writable.set()
        if self.on_close is not None:
            self.on_close()

    # -- requests ------------------------------
    def _next(self) -> None:
        if self._task is not None:
            return
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        lines = head.decode("latin-1").split("\r\n")
        length, keep, authorization = 0, True, ""
        for line in lines[1:]:
            name, _, value = line.partition(":")
            lowered = name.lower()
            if lowered == "content-length":
                length = int(value)
            elif lowered == "connection" and value.strip().lower() == "close":
                keep = False
            elif lowered == "authorization":
                authorization = value.strip()
            elif lowered == "expect":
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        self.has_asked = True
        method, target, _ = (lines[0] + "  ").split(" ", 2)
        path, _, query = target.partition("?")
        request = HttpRequest(method, path, query, rest[:length], self.peer, authorization)
        self._task = asyncio.ensure_future(self._answer(request, keep))

    async def _answer(self, request: HttpRequest, keep: bool) -> None:
        try:
            await self._handle(self, request)
        finally:
            self._task, self.on_close = None, None
        if not keep:
            self.transport.close()
        elif not self.closed:
            self._next()

    # -- answers ------------------------------
    def send(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """A whole answer."""
        self.status = status
        head = (
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}\r\n{self._mark}"
            f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)

    def send_json(self, status: int, body: Any) -> None:
        """A whole answer that is an object."""
        self.send(status, json.dumps(body).encode())

    def begin_stream(self) -> None:
        """The head of a stream of events."""
        self.status = 200
        self.transport.write(
            f"HTTP/1.1 200 OK\r\n{self._mark}"
            "content-type: text/event-stream; charset=utf-8\r\n"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )

    def event(self, payload: str) -> None:
        """One event of the stream."""
        data = f"data: {payload}\n\n".encode()
        self.transport.write(b"%x\r\n%s\r\n" % (len(data), data))

    def end_stream(self) -> None:
        """The stream's regular end."""
        self.transport.write(b"0\r\n\r\n")

    @property
    def clogged(self) -> bool:
        """Whether the client does not take what is sent."""
        return not self._writable.is_set()

    async def drained(self) -> None:
        """Wait until the client has taken most of it."""
        await self._writable.wait()
