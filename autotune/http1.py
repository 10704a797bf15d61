"""Incremental parsers for an HTTP/1.1 response and for server-sent events.

Both take bytes in pieces of any size and hold back what is not complete yet.
"""

from __future__ import annotations

_HEAD_LIMIT_BYTES = 1 << 16


class BadResponse(Exception):
    """The bytes are not an HTTP/1.1 response."""


class ResponseParser:
    """One response. A stream of events is handed out piece by piece, any other body is kept."""

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()  # of a response that is not a stream of events
        self.is_stream = False
        self.done = False
        self.keeps_alive = False
        self._buffer = b""
        self._left: int | None = None  # bytes of a body with a Content-Length
        self._chunked = False

    @property
    def heard(self) -> bool:
        """Whether anything at all has come."""
        return bool(self.status or self._buffer)

    @property
    def ends_by_close(self) -> bool:
        """Whether the end of the connection is the regular end of the body."""
        return bool(self.status) and not self._chunked and self._left is None

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes; returns the pieces of an event stream's body that are complete."""
        self._buffer = self._buffer + data if self._buffer else data
        while not self.status:
            if not self._take_head():
                return []
        pieces = self._take_chunks() if self._chunked else self._take_plain()
        if self.is_stream:
            return pieces
        for piece in pieces:
            self.body += piece
        return []

    def _take_head(self) -> bool:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            if len(head) > _HEAD_LIMIT_BYTES or not b"HTTP/".startswith(head[:5]):
                raise BadResponse(f"expected an HTTP response, got {head[:40]!r}")
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, status = first.partition(" ")
        if not version.startswith("HTTP/1.") or not status[:3].isdigit():
            raise BadResponse(f"expected an HTTP/1.1 status line, got {first[:40]!r}")
        self._buffer = rest
        if status[0] != "1":  # 100 Continue and its like come before the response proper
            self._read_fields(version, int(status[:3]), lines)
        return True

    def _read_fields(self, version: str, status: int, lines: list[str]) -> None:
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        self.status = status
        self.is_stream = status == 200 and "text/event-stream" in fields.get("content-type", "")
        self._chunked = "chunked" in fields.get("transfer-encoding", "").lower()
        if not self._chunked and "content-length" in fields:
            self._left = _number(fields["content-length"].encode(), 10)
        closes = "close" in fields.get("connection", "").lower() or version == "HTTP/1.0"
        self.keeps_alive = not closes and not self.ends_by_close

    def _take_plain(self) -> list[bytes]:
        taken = self._buffer if self._left is None else self._buffer[: self._left]
        self._buffer = self._buffer[len(taken) :]
        if self._left is not None:
            self._left -= len(taken)
            self.done = self._left == 0
        return [taken] if taken else []

    def _take_chunks(self) -> list[bytes]:
        buffer, at, pieces = self._buffer, 0, []
        while (line_end := buffer.find(b"\r\n", at)) >= 0:
            size = _number(buffer[at:line_end].partition(b";")[0], 16)
            if size == 0:
                # Trailers end with an empty line; without any, the next two bytes are that line.
                end = buffer.find(b"\r\n\r\n", line_end)
                if end >= 0:
                    self.done, at = True, end + 4
                break
            end = line_end + 2 + size
            if len(buffer) < end + 2:
                break
            pieces.append(buffer[line_end + 2 : end])
            at = end + 2
        self._buffer = buffer[at:]
        return pieces


def _number(digits: bytes, base: int) -> int:
    """A length on the wire; `int` alone takes -6, after which the parser would go backwards."""
    try:
        if (number := int(digits, base)) >= 0:
            return number
    except ValueError:
        pass
    raise BadResponse(f"expected a number of bytes, got {digits[:40]!r}")


class EventParser:
    """Server-sent events: CRLF or LF, comments, several events a piece, data over many lines."""

    def __init__(self) -> None:
        self._partial = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The payloads of the `data` events that became complete."""
        if (
            not self._partial
            and not self._data
            and piece.startswith(b"data: ")
            and piece.find(b"\n") == len(piece) - 2
            and piece.endswith(b"\n\n")
        ):
            return [piece[6:-2]]  # one whole event: what servers nearly always send
        *lines, self._partial = (self._partial + piece).split(b"\n")
        return [payload for line in lines if (payload := self._line(line)) is not None]

    def _line(self, line: bytes) -> bytes | None:
        line = line.removesuffix(b"\r")
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            payload, self._data = b"\n".join(self._data), []
            return payload
        return None
