"""The streaming client against real sockets: what it counts, and what it calls a failure."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count, islice, takewhile
from typing import Any

import pytest

from autotune.calibrate import mock_request, running_mock
from autotune.clock import WallClock
from autotune.errors import TrialLost
from autotune.load import LoadStalled, Run, closed_loop, open_loop
from autotune.load_processes import _merged, closed_loop_in_processes
from autotune.mock import Truth
from autotune.stream import Connection, Endpoint, Fault, Reply, Request
from tests.odd_server import (
    END,
    STREAM_HEAD,
    Answer,
    Body,
    Writer,
    chunk,
    delta,
    good_answer,
    send_json,
    serving,
    usage,
)
from tests.patience import PATIENCE_SECONDS


def request(index: int = 0, tokens: int = 4, **fields: Any) -> Request:
    body = {"model": "m", "max_tokens": tokens, "stream": True, **fields}
    return Request(index, json.dumps(body).encode(), min_tokens=tokens)


async def ask(answer: Answer, sent: Request | None = None) -> Reply:
    async with serving(answer) as url:
        connection = Connection(Endpoint(url), WallClock())
        try:
            return await connection.send(sent or request())
        finally:
            connection.close()


async def finite(url: str, requests: int, concurrency: int, tokens: int = 4) -> Run:
    return await closed_loop(
        Endpoint(url),
        lambda index: request(index, tokens),
        concurrency,
        clock=WallClock(),
        more=lambda reply: True,
        indices=islice(count(), requests),
    )


def streaming(*parts: bytes) -> Answer:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        writer.write(STREAM_HEAD + b"".join(parts))

    return answer


async def test_tokens_are_the_servers_usage_and_not_the_chunks() -> None:
    reply = await ask(streaming(delta("a b c d e"), delta(" f"), usage(40), END))
    assert reply.ok and reply.completion_tokens == 40 and len(reply.deltas) == 2
    assert reply.text == "a b c d e f"


async def test_the_first_token_is_the_first_delta_with_text() -> None:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        writer.write(STREAM_HEAD + delta("") + delta("", role="assistant"))
        await asyncio.sleep(0.2)
        writer.write(delta("now", finish_reason="length") + usage(4) + END)

    reply = await ask(answer)
    assert reply.ttft_seconds is not None and reply.ttft_seconds > 0.19


async def test_reasoning_and_tool_calls_are_tokens_too() -> None:
    thought = chunk({"choices": [{"delta": {"reasoning_content": "hm"}}]})
    call = chunk({"choices": [{"delta": {"tool_calls": [{"function": {"name": "f"}}]}}]})
    reply = await ask(streaming(thought, call, usage(4), END))
    assert reply.ok and len(reply.deltas) == 2


async def test_cached_tokens_and_tokens_of_the_first_delta_are_read() -> None:
    first = chunk({"choices": [{"delta": {"content": "x"}}], "usage": {"completion_tokens": 3}})
    reply = await ask(streaming(first, delta("y"), usage(4, prompt=100, cached=64), END))
    assert (reply.first_tokens, reply.cached_tokens, reply.prompt_tokens) == (3, 64, 100)


async def test_an_error_object_inside_a_200_is_a_failure_with_its_text() -> None:
    error = chunk({"error": {"message": "the engine is dead", "code": 500}})
    reply = await ask(streaming(delta("x"), error, END))
    assert reply.fault is Fault.IN_STREAM and reply.error == "the engine is dead"


async def test_a_short_answer_is_a_failure() -> None:
    reply = await ask(streaming(delta("x"), usage(3), END))
    assert reply.fault is Fault.SHORT and "3 of 4" in reply.error


LONG_LINE = b"100000\r\n" + b"x" * 2**20 + b"\r\n"


@pytest.mark.parametrize(
    ("head", "again", "fault", "said"),
    [
        (STREAM_HEAD, lambda _: delta("again ") * 100, Fault.LONG, "no end"),
        (STREAM_HEAD, lambda sent: usage(sent), Fault.LONG, "usage says"),
        (STREAM_HEAD, lambda _: LONG_LINE, Fault.PROTOCOL, "bytes without an end"),
        (b"HTTP/1.1 200 OK\r\n\r\n", lambda _: b"<p>" * 2**16, Fault.PROTOCOL, "without an end"),
    ],
)
async def test_an_answer_without_end_is_not_waited_for(
    head: bytes, again: Callable[[int], bytes], fault: Fault, said: str
) -> None:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        writer.write(head)
        for sent in takewhile(lambda _: not writer.is_closing(), count()):
            writer.write(again(sent))
            await writer.drain()

    reply = await asyncio.wait_for(ask(answer, replace(request(0), max_tokens=4)), PATIENCE_SECONDS)
    assert reply.fault is fault and said in reply.error


async def test_a_token_s_text_may_come_in_letters() -> None:
    letters = [delta("x")] * (16 * 40)
    asked = replace(request(0, 40), max_tokens=40)
    assert (await ask(streaming(*letters, usage(40), END), asked)).ok


async def test_more_tokens_than_were_asked_are_no_count_of_the_answer() -> None:
    asked = replace(request(0), max_tokens=4)
    assert (await ask(streaming(delta("x"), usage(4 + 32), END), asked)).ok
    reply = await ask(streaming(delta("x"), usage(40), END), asked)
    assert reply.fault is Fault.LONG and "40 tokens, 4 were asked" in reply.error


async def test_an_answer_without_usage_is_a_failure() -> None:
    reply = await ask(streaming(delta("x"), delta("y"), END))
    assert reply.fault is Fault.NO_USAGE


@pytest.mark.parametrize("tokens", ["40", 40.5, -1, True, [40]])
async def test_a_usage_that_counts_nothing_is_a_failure(tokens: Any) -> None:
    reply = await ask(streaming(delta("x"), usage(tokens), END))
    assert reply.fault is Fault.PROTOCOL
    assert f"{tokens!r} is no number of tokens" in reply.error


async def test_an_answer_without_a_token_is_a_failure() -> None:
    assert (await ask(streaming(usage(0), END))).fault is Fault.EMPTY


@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "503 Unavailable"])
async def test_an_http_error_is_a_failure_with_the_servers_words(status: str) -> None:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        send_json(writer, {"error": {"message": "max_tokens is too large"}}, status)

    reply = await ask(answer)
    assert reply.fault is Fault.HTTP and reply.status == int(status[:3])
    assert "max_tokens is too large" in reply.error


async def test_a_connection_cut_in_the_middle_is_a_failure() -> None:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        writer.write(STREAM_HEAD + delta("x"))
        writer.transport.abort()

    assert (await ask(answer)).fault is Fault.RESET


async def test_nobody_listening_is_a_failure_and_no_exception() -> None:
    connection = Connection(Endpoint("http://127.0.0.1:9"), WallClock())
    assert (await connection.send(request())).fault is Fault.RESET


@pytest.mark.parametrize(
    "garbage", [b"SSH-2.0\r\n\r\n", STREAM_HEAD + b"6\r\ndata: \r\n", b"\0" * 9]
)
async def test_what_is_no_openai_reply_is_a_failure(garbage: bytes) -> None:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        writer.write(garbage + delta("{") if b"data" in garbage else garbage)
        writer.close()

    assert (await ask(answer)).fault in (Fault.PROTOCOL, Fault.RESET)


async def test_an_event_nested_without_end_is_no_openai_reply() -> None:
    reply = await ask(streaming(delta("x"), chunk("[" * 100_000), usage(4), END))
    assert reply.fault is Fault.PROTOCOL and "nested too deeply" in reply.error


async def test_a_reply_without_streaming_has_its_usage_but_no_first_token_time() -> None:
    reply = await ask(good_answer, request(stream=False))
    assert reply.ok and reply.completion_tokens == 4 and reply.ttft_seconds is None


async def test_a_connection_that_the_server_closed_while_idle_is_opened_again() -> None:
    answered = 0

    async def answer(path: str, body: Body, writer: Writer) -> None:
        nonlocal answered
        answered += 1
        await good_answer(path, body, writer)
        writer.close()  # although the head promised to keep it

    async with serving(answer) as url:
        run = await finite(url, 6, 1)
    assert len(run.ok) == 6 and answered == 6


async def test_concurrency_is_kept_and_never_exceeded() -> None:
    active, most = 0, 0

    async def answer(path: str, body: Body, writer: Writer) -> None:
        nonlocal active, most
        active += 1
        most = max(most, active)
        await asyncio.sleep(0.01)
        active -= 1
        await good_answer(path, body, writer)

    async with serving(answer) as url:
        run = await finite(url, 64, 16)
    assert most == 16 and len(run.ok) == 64
    assert sorted(reply.index for reply in run.replies) == list(range(64))


async def test_more_connections_than_open_files_are_allowed_at_first() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with running_mock(Truth(tpot_seconds=0.001)) as url:
        resource.setrlimit(resource.RLIMIT_NOFILE, (80, hard))
        try:
            run = await closed_loop(
                Endpoint(url),
                ten_tokens,
                120,
                clock=WallClock(),
                more=lambda reply: True,
                indices=islice(count(), 120),
            )
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(run.ok) == 120, run.faults()


async def test_faults_are_counted_with_their_text() -> None:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        if body["max_tokens"] == 5:
            send_json(writer, {"error": "too long"}, "400 Bad Request")
        else:
            await good_answer(path, body, writer)

    async with serving(answer) as url:
        run = await closed_loop(
            Endpoint(url),
            lambda index: request(index, 5 if index % 4 == 3 else 4),
            2,
            clock=WallClock(),
            more=lambda reply: True,
            indices=islice(count(), 16),
        )
    assert len(run.failed) == 4 and len(run.ok) == 12
    assert run.faults() == "4 x http: HTTP 400: too long"


async def test_a_server_that_refuses_everything_is_not_hammered() -> None:
    asked = 0

    async def answer(path: str, body: Body, writer: Writer) -> None:
        nonlocal asked
        asked += 1
        send_json(writer, {"error": "no"}, "500 Internal Server Error")

    async with serving(answer) as url:
        run = await closed_loop(
            Endpoint(url), request, 4, clock=WallClock(), more=lambda reply: True
        )
    assert asked <= 12 and not run.ok


async def test_when_a_load_stops_requests_without_a_token_are_given_up() -> None:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        if body["max_tokens"] == 5:
            await asyncio.sleep(3600)
        await good_answer(path, body, writer)

    async with serving(answer) as url:
        run = await asyncio.wait_for(
            closed_loop(
                Endpoint(url),
                lambda index: request(index, 5 if index == 1 else 4),
                2,
                clock=WallClock(),
                more=lambda reply: reply.index < 4,
            ),
            PATIENCE_SECONDS,
        )
    assert [reply.index for reply in run.replies] == [0, 2, 3, 4] and not run.failed


async def keep_connections_alive(writer: Writer) -> None:
    writer.write(STREAM_HEAD + delta(""))
    while not writer.is_closing():
        await asyncio.sleep(0.01)
        writer.write(b"8\r\n: ping\n\n\r\n")
        await writer.drain()


async def write_a_page(writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n")
    while not writer.is_closing():
        await asyncio.sleep(0.01)
        writer.write(b"<p>")
        await writer.drain()


@pytest.mark.parametrize(
    "sends", [lambda _: asyncio.sleep(3600), keep_connections_alive, write_a_page]
)
async def test_a_load_on_which_nothing_comes_is_given_up(
    monkeypatch: pytest.MonkeyPatch, sends: Callable[[Writer], Awaitable[None]]
) -> None:
    """What a gateway sends to keep a connection alive is no token, nor is a page that goes on."""

    async def answer(path: str, body: Body, writer: Writer) -> None:
        await sends(writer)

    monkeypatch.setattr("autotune.load.SILENCE_LIMIT_SECONDS", 0.3)
    async with serving(answer) as url:
        with pytest.raises(LoadStalled, match="no token"):
            await asyncio.wait_for(finite(url, 4, 2), PATIENCE_SECONDS)


async def test_an_open_loop_sends_at_its_own_rate_whatever_the_server_does() -> None:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        await asyncio.sleep(0.3)  # slower than the requests come
        await good_answer(path, body, writer)

    async with serving(answer) as url:
        run = await open_loop(Endpoint(url), request, 100.0, 60, clock=WallClock(), seed=3)
    assert len(run.ok) == 60
    assert run.concurrency > 10  # they overlap: nobody waited for an answer


async def test_the_mock_does_what_it_says() -> None:
    truth = Truth(ttft_seconds=0.05, tpot_seconds=0.005, tokens_per_chunk=4)
    with running_mock(truth) as url:
        run = await closed_loop(
            Endpoint(url),
            lambda index: mock_request(index, 64),
            4,
            clock=WallClock(),
            more=lambda reply: True,
            indices=islice(count(), 8),
        )
    assert len(run.ok) == 8 and run.tokens == 8 * 64
    for reply in run.ok:
        assert len(reply.deltas) == 16
        assert reply.ttft_seconds is not None and reply.ttft_seconds >= 0.049
        assert reply.e2e_seconds >= truth.request_seconds(64) - 0.002


@pytest.mark.parametrize("processes", [2, 3])
async def test_several_client_processes_are_one_load(processes: int) -> None:
    truth = Truth(ttft_seconds=0.02, tpot_seconds=0.002, tokens_per_chunk=4)
    seen: list[int] = []

    def more(reply: Reply) -> bool:
        seen.append(reply.index)
        return len(seen) < 30

    with running_mock(truth) as url:
        run = await closed_loop_in_processes(
            Endpoint(url), ten_tokens, 7, processes, more=more, first_index=100
        )
    indices = sorted(reply.index for reply in run.replies)
    assert len(indices) >= 30 and len(set(indices)) == len(indices) and indices[0] == 100
    assert run.concurrency == 7 and not run.failed
    assert run.client_cpu_seconds > 0


def test_a_load_of_several_processes_is_full_while_all_of_them_are() -> None:
    runs = [Run((), 4, 10.0, 30.0, 0.5), Run((), 3, 12.0, 29.0, 0.25)]
    assert _merged(runs, 7) == Run((), 7, 12.0, 29.0, 0.75)


async def test_a_dead_client_process_loses_the_trial_and_leaves_none_behind() -> None:
    with running_mock(Truth()) as url, pytest.raises(TrialLost, match="client process"):
        await closed_loop_in_processes(Endpoint(url), suicidal, 4, 2, more=lambda reply: True)


def ten_tokens(index: int) -> Request:
    return mock_request(index, 10)


def suicidal(index: int) -> Request:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
