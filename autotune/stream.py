"""One keep-alive HTTP/1.1 connection that streams a completion: bytes in, one `Reply` out.

Written on `asyncio.Protocol` because a measurement must not measure its own client: a shared
httpx client caps at about 3,000 tokens/s, and this costs a fraction of aiohttp's loop. Bytes
may be split anywhere; a read may hold many events.
"""

from __future__ import annotations

import asyncio
import json
import math
import ssl
from array import array
from collections.abc import Mapping
from typing import Any, cast

from autotune.clock import Clock
from autotune.exchange import Endpoint, Fault, Reply, Request
from autotune.foreign_json import foreign_json
from autotune.http1 import BadResponse, EventParser, ResponseParser

__all__ = ["Connection", "Endpoint", "Fault", "Reply", "Request"]

_OVERSHOOT = 32  # tokens; a step that accepts several drafted ones may pass the limit by as many
_MOST_DELTAS_A_TOKEN = 16  # gateways cut a token's text into letters; more is an answer without end
_MOST_UNREAD_BYTES = 16 * 2**20  # of a whole body, or of a line, a chunk or comments between events


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
        event: dict[str, Any] = foreign_json(payload)
        usage = event.get("usage")
        for choice in event.get("choices") or ():
            text = _delta_text(choice)
            if text:
                self.last = clock.stamp(event)
                self.deltas.append(self.last)
                self.texts.append(text)
                if usage and len(self.deltas) == 1:
                    self.first = _count(usage.get("completion_tokens"))
            if choice.get("finish_reason"):
                self.finish = choice["finish_reason"]
                if self.last is None:  # tokens without any text, such as halves of characters
                    self.last = clock.stamp(event)
        if usage:
            self._usage(usage)
        if "error" in event:
            self.error = _message(event)

    def _usage(self, usage: Mapping[str, Any]) -> None:
        self.completion = _count(usage.get("completion_tokens", self.completion))
        self.prompt = _count(usage.get("prompt_tokens", self.prompt))
        details = usage.get("prompt_tokens_details") or {}
        if details.get("cached_tokens") is not None:
            self.cached = _count(details["cached_tokens"])


def _count(tokens: object) -> int | None:
    """Tokens as a server counts them; raises TypeError for what is no count."""
    if tokens is None or (type(tokens) is int and tokens >= 0):
        return tokens
    raise TypeError(f"{tokens!r} is no number of tokens")


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


def _most_deltas(request: Request) -> float:
    """More pieces of text, or tokens, than this are no answer of the length that was asked."""
    if request.max_tokens is None:
        return math.inf
    return _MOST_DELTAS_A_TOKEN * (request.max_tokens + _OVERSHOOT)


class Connection(asyncio.Protocol):
    """One connection that carries one request at a time; reconnects by itself."""

    def __init__(self, endpoint: Endpoint, clock: Clock) -> None:
        self.endpoint, self.clock = endpoint, clock
        self.abandoned = False
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] | None = None
        self._requests = 0
        self._begin(math.inf)

    # -- what a load loop calls -------------------------------------------------------------
    async def open(self) -> None:
        """Connect now, so that no request pays for it; raises OSError."""
        if self._transport is None:
            host, port = self.endpoint.address
            context = ssl.create_default_context() if self.endpoint.tls else None
            await self._loop.create_connection(lambda: self, host, port, ssl=context)

    @property
    def progress(self) -> tuple[int, ...]:
        """Other than before if a request began or a token came; what keeps a connection alive
        does not count, nor does a body that is no stream, whose tokens come with its end."""
        it = self._recording
        return self._requests, len(it.deltas), it.completion or 0

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

    def _begin(self, most_deltas: float) -> None:
        self._response, self._events = ResponseParser(), EventParser()
        self._recording, self._most_deltas, self._unread = _Recording(), most_deltas, 0
        self._requests += 1

    async def _attempt(self, request: Request) -> Reply:
        self._begin(_most_deltas(request))
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
        except (BadResponse, ValueError, LookupError, TypeError, AttributeError) as problem:
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
        if len(it.deltas) > self._most_deltas:
            return (
                Fault.LONG,
                f"no end of the answer, of which {request.max_tokens} tokens were asked",
            )
        if it.completion is None and it.last is not None:
            return Fault.NO_USAGE, "the reply has no usage, so its tokens cannot be counted"
        if not it.completion:
            return Fault.EMPTY, "the reply has no token"
        if it.completion < request.min_tokens:
            return Fault.SHORT, f"{it.completion} of {request.min_tokens} tokens ({it.finish})"
        if request.max_tokens is not None and it.completion > request.max_tokens + _OVERSHOOT:
            return Fault.LONG, f"usage says {it.completion} tokens, {request.max_tokens} were asked"
        return None, ""

    def _body_message(self) -> str:
        text = bytes(self._response.body).decode(errors="replace")
        try:
            return _message(foreign_json(text))
        except (ValueError, TypeError, AttributeError):
            return text[:500]

    # -- what the event loop calls ------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not a test of its class: uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done():
            return self.close()  # bytes that nobody asked for: never reuse such a connection
        self._unread += len(data)
        try:
            for piece in self._response.feed(data):
                for payload in self._events.feed(piece):
                    self._recording.event(payload, self.clock)
                    self._unread = 0
            if self._unread > _MOST_UNREAD_BYTES:
                raise BadResponse(f"{self._unread:,} bytes without an end")
        except Exception as problem:  # whatever a broken server sends becomes this one's fault
            self._response.keeps_alive = False
            return self._done.set_exception(problem)
        if self._response.done:
            self._done.set_result(None)
        elif max(len(self._recording.deltas), self._recording.completion or 0) > self._most_deltas:
            self._response.keeps_alive = False
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
