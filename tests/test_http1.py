"""Bytes from a server, split anywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.http1 import BadResponse, EventParser, ResponseParser

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
EVENTS = (
    b'data: {"a": 1}\n\n: a comment\n\nevent: ping\ndata: {"b":\ndata:  2}\n\n'
    b'data: {"c": "\xc3\xa4"}\r\n\r\ndata:{"d": 4}\n\ndata: [DONE]\n\n'
)
PAYLOADS = [b'{"a": 1}', b'{"b":\n 2}', b'{"c": "\xc3\xa4"}', b'{"d": 4}', b"[DONE]"]


def chunked(body: bytes, sizes: list[int]) -> bytes:
    framed, at = b"", 0
    for size in sizes:
        piece = body[at : at + size]
        if piece:
            framed += b"%X;note=1\r\n%s\r\n" % (len(piece), piece)
        at += size
    rest = body[at:]
    framed += (b"%x\r\n%s\r\n" % (len(rest), rest)) if rest else b""
    return framed + b"0\r\n\r\n"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(marks)]


@given(
    sizes=st.lists(st.integers(1, 40), max_size=12),
    places=st.lists(st.integers(0, 400), max_size=30),
)
def test_events_survive_any_chunking_and_any_split_of_the_bytes(
    sizes: list[int], places: list[int]
) -> None:
    response, events, payloads = ResponseParser(), EventParser(), []
    for piece in cut(STREAM_HEAD + chunked(EVENTS, sizes), places):
        for part in response.feed(piece):
            payloads += events.feed(part)
    assert payloads == PAYLOADS
    assert response.done and response.keeps_alive and response.is_stream


def test_every_byte_on_its_own_is_read_too() -> None:
    response, events, payloads = ResponseParser(), EventParser(), []
    for byte in STREAM_HEAD + chunked(EVENTS, [17]):
        for part in response.feed(bytes([byte])):
            payloads += events.feed(part)
    assert payloads == PAYLOADS and response.done


def test_a_body_with_a_length_is_kept_whole() -> None:
    response = ResponseParser()
    response.feed(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 5\r\n\r\nhel")
    assert not response.done
    response.feed(b"lo")
    assert response.done and bytes(response.body) == b"hello" and response.status == 400


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    response = ResponseParser()
    response.feed(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{}")
    assert response.ends_by_close and not response.keeps_alive and not response.done


def test_an_interim_response_is_skipped() -> None:
    response = ResponseParser()
    response.feed(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n"
    )
    assert response.status == 204 and response.done


def test_trailers_after_the_last_chunk_are_read_over() -> None:
    response = ResponseParser()
    response.feed(STREAM_HEAD + b"3\r\nabc\r\n0\r\nX-Note: 1\r\n\r\n")
    assert response.done


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/2 200\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"]
)
def test_what_is_not_http_is_said_to_be_so(data: bytes) -> None:
    with pytest.raises(BadResponse, match="expected"):
        ResponseParser().feed(data)


@pytest.mark.parametrize(
    "data",
    [
        STREAM_HEAD + b"zz\r\nabc\r\n",
        STREAM_HEAD + b"-6\r\n",  # the parser would go back to it, again and again
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nabc",
    ],
)
def test_a_length_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(BadResponse, match="number of bytes"):
        ResponseParser().feed(data)
