"""One keep-alive HTTP/1.1 connection that streams a completion: bytes in, one `Reply` out.

Written on `asyncio.Protocol` because a measurement must not measure its own client: a shared
httpx client caps at about 3,000 tokens/s, and this costs a fraction of aiohttp's loop. Bytes
may be split anywhere; a read may hold many events.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast
from urllib.parse import urlsplit

from autotune.clock import Clock
from autotune.http1 import BadResponse, EventParser, ResponseParser


class Fault(StrEnum):
    """Why a request does not count."""

    HTTP = "http"  # a status other than 200
    IN_STREAM = "error_in_stream"  # an error object inside a 200
    SHORT = "short"  # fewer tokens than asked although end-of-text was to be ignored
    NO_USAGE = "no_usage"  # the server did not say how many tokens it made
    EMPTY = "empty"  # not one token
    RESET = "connection"  # refused, reset or closed in the middle
    PROTOCOL = "protocol"  # not HTTP, not JSON


@dataclass(frozen=True, slots=True)
class Request:
    """One request, ready to be written."""

    index: int
    body: bytes  # JSON
    min_tokens: int = 0  # fewer completion tokens than this is a short answer
    stream: bool = True


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back, with its times in the server's seconds."""

    index: int
    sent: float
    last: float  # when the last token came
    deltas: array[float]  # when each non-empty delta came; a non-streaming reply has one
    prompt_tokens: int | None = None
    completion_tokens: int = 0  # from the server's `usage`, never counted
    cached_tokens: int | None = None
    first_tokens: int | None = None  # tokens in the first delta, where the server says so
    finish_reason: str | None = None
    text: str = ""
    streamed: bool = True
    fault: Fault | None = None
    error: str = ""
    status: int = 200

    @property
    def ok(self) -> bool:
        """Whether this reply may be counted."""
        return self.fault is None

    @property
    def e2e_seconds(self) -> float:
        """Send to last token."""
        return self.last - self.sent

    @property
    def ttft_seconds(self) -> float | None:
        """Send to first non-empty delta; None where the reply was not streamed."""
        return self.deltas[0] - self.sent if self.streamed and self.deltas else None


@dataclass(frozen=True)
class Endpoint:
    """Where requests go."""

    base_url: str
    path: str = "/v1/chat/completions"
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return urlsplit(self.base_url).scheme == "https"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.base_url)
        return parts.hostname or "127.0.0.1", parts.port or (443 if self.tls else 80)

    def head(self, length: int) -> bytes:
        """The request's head for a body of `length` bytes."""
        parts = urlsplit(self.base_url)
        lines = [f"POST {parts.path.rstrip('/')}{self.path} HTTP/1.1", f"Host: {parts.netloc}"]
        fields = {"Content-Type": "application/json", "Accept": "*/*", **self.headers}
        lines += [f"{name}: {value}" for name, value in fields.items()]
        return "\r\n".join([*lines, f"Content-Length: {length}", "\r\n"]).encode()


class _Recording:
    """The reply that is being received."""

    __slots__ = (
        "cached",
        "completion",
        "deltas",
        "error",
        "finish",
        "first",
        "last",
        "prompt",
        "texts",
    )

    def __init__(self) -> None:
        self.deltas: array[float] = array("d")
        self.texts: list[str] = []
        self.error: str | None = None
        self.last: float | None = None
        self.finish: str | None = None
        self.prompt: int | None = None
        self.completion: int | None = None
        self.cached: int | None = None
        self.first: int | None = None

    def event(self, payload: bytes, clock: Clock) -> None:
        """Take one event's payload; raises ValueError when it is not JSON."""
        if payload == b"[DONE]":
            return
        event: dict[str, Any] = json.loads(payload)
        usage = event.get("usage")
        for choice in event.get("choices") or ():
            text = _delta_text(choice)
            if text:
                self.last = clock.stamp(event)
                self.deltas.append(self.last)
                self.texts.append(text)
                if usage and len(self.deltas) == 1:
                    self.first = usage.get("completion_tokens")
            if choice.get("finish_reason"):
                self.finish = choice["finish_reason"]
                if self.last is None:  # tokens without any text, such as halves of characters
                    self.last = clock.stamp(event)
        if usage:
            self._usage(usage)
        if "error" in event:
            self.error = _message(event)

    def _usage(self, usage: Mapping[str, Any]) -> None:
        self.completion = usage.get("completion_tokens", self.completion)
        self.prompt = usage.get("prompt_tokens", self.prompt)
        details = usage.get("prompt_tokens_details") or {}
        if details.get("cached_tokens") is not None:
            self.cached = details["cached_tokens"]


def _delta_text(choice: Mapping[str, Any]) -> str:
    """The text of a streamed or whole choice: content, reasoning and tool calls all are tokens."""
    part = choice.get("delta") or choice.get("message")
    if part is None:
        return choice.get("text") or ""
    text: str = part.get("content") or part.get("reasoning_content") or part.get("reasoning") or ""
    return text or (json.dumps(part["tool_calls"]) if part.get("tool_calls") else "")


def _message(body: Mapping[str, Any]) -> str:
    error = body.get("error", body)
    if isinstance(error, Mapping):
        error = error.get("message") or error.get("detail") or json.dumps(error)
    return str(error)[:500]


class Connection(asyncio.Protocol):
    """One connection that carries one request at a time; reconnects by itself."""

    def __init__(self, endpoint: Endpoint, clock: Clock) -> None:
        self.endpoint, self.clock = endpoint, clock
        self.heard = 0.0  # when bytes last came, on the event loop's clock
        self.abandoned = False
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] | None = None

    # -- what a load loop calls -------------------------------------------------------------
    async def open(self) -> None:
        """Connect now, so that no request pays for it; raises OSError."""
        if self._transport is None:
            host, port = self.endpoint.address
            context = ssl.create_default_context() if self.endpoint.tls else None
            await self._loop.create_connection(lambda: self, host, port, ssl=context)

    async def send(self, request: Request) -> Reply:
        """Send one request and wait for its whole reply. Every fault comes back as a Reply."""
        reused = self._transport is not None
        reply = await self._attempt(request)
        lost = reply.fault is Fault.RESET and not self._response.heard
        if reused and lost and not self.abandoned:
            # The server closed an idle connection while we wrote: ask once more on a new one.
            reply = await self._attempt(request)
        return reply

    def abandon(self) -> None:
        """Give up a running request that has not brought a token yet; no other is touched."""
        if self._done is not None and not self._recording.deltas:
            self.abandoned = True
            self.close()

    def close(self) -> None:
        """Drop the connection; a running request ends as a reset."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    async def _attempt(self, request: Request) -> Reply:
        self._response, self._events, self._recording = (
            ResponseParser(),
            EventParser(),
            _Recording(),
        )
        fault, error, sent = None, "", self.clock.now()
        try:
            await self.open()
            assert self._transport is not None
            self._done = self._loop.create_future()
            head = self.endpoint.head(len(request.body))
            sent = self.clock.now()
            self._transport.write(head + request.body)
            await self._done
            self._read_whole_body()
        except OSError as problem:
            fault, error = Fault.RESET, str(problem) or type(problem).__name__
        except (BadResponse, ValueError, TypeError, AttributeError) as problem:
            fault, error = Fault.PROTOCOL, f"not an OpenAI reply: {problem}"
        finally:
            self._done = None
            if not self._response.keeps_alive:
                self.close()
        return self._reply(request, sent, fault, error)

    def _read_whole_body(self) -> None:
        """A body that is not a stream of events: one JSON document, whatever its status."""
        if not self._response.is_stream and self._response.status == 200:
            self._recording.event(bytes(self._response.body), self.clock)

    def _reply(self, request: Request, sent: float, fault: Fault | None, error: str) -> Reply:
        it, status = self._recording, self._response.status
        if fault is None:
            fault, error = self._judge(request)
        return Reply(
            index=request.index,
            sent=sent,
            last=sent if it.last is None else it.last,
            deltas=it.deltas,
            prompt_tokens=it.prompt,
            completion_tokens=it.completion or 0,
            cached_tokens=it.cached,
            first_tokens=it.first,
            finish_reason=it.finish,
            text="".join(it.texts),
            streamed=self._response.is_stream,
            fault=fault,
            error=error,
            status=status,
        )

    def _judge(self, request: Request) -> tuple[Fault | None, str]:
        it = self._recording
        if self._response.status != 200:
            return Fault.HTTP, f"HTTP {self._response.status}: {self._body_message()}"
        if it.error is not None:
            return Fault.IN_STREAM, it.error
        if it.completion is None and it.last is not None:
            return Fault.NO_USAGE, "the reply has no usage, so its tokens cannot be counted"
        if not it.completion:
            return Fault.EMPTY, "the reply has no token"
        if it.completion < request.min_tokens:
            return Fault.SHORT, f"{it.completion} of {request.min_tokens} tokens ({it.finish})"
        return None, ""

    def _body_message(self) -> str:
        text = bytes(self._response.body).decode(errors="replace")
        try:
            return _message(json.loads(text))
        except (ValueError, TypeError, AttributeError):
            return text[:500]

    # -- what the event loop calls ------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not a test of its class: uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done():
            return self.close()  # bytes that nobody asked for: never reuse such a connection
        self.heard = self._loop.time()
        try:
            for piece in self._response.feed(data):
                for payload in self._events.feed(piece):
                    self._recording.event(payload, self.clock)
        except Exception as problem:  # whatever a broken server sends becomes this one's fault
            self._response.keeps_alive = False
            return self._done.set_exception(problem)
        if self._response.done:
            self._done.set_result(None)
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._done is None or self._done.done():
            return
        if self._response.ends_by_close:
            self._done.set_result(None)
        else:
            self._done.set_exception(exc or ConnectionResetError("the server closed the stream"))
