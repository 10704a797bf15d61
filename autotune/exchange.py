"""What is sent to a server and what comes back: plain data of the load client."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit


class Fault(StrEnum):
    """Why a request does not count."""

    HTTP = "http"  # a status other than 200
    IN_STREAM = "error_in_stream"  # an error object inside a 200
    SHORT = "short"  # fewer tokens than asked although end-of-text was to be ignored
    LONG = "long"  # many more tokens than asked: the server's count is of something else
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
    max_tokens: int | None = None  # many more than this is no count of this answer
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
