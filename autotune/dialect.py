"""Which of the wished request fields a server takes, found by asking it once.

Documented fallbacks, each with a warning: without `ignore_eos` answers may end early and their
own lengths count; without `stream_options` (or where it brings no `usage`) requests are sent
without streaming, which gives tokens per second but no time to first token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.clock import Clock
from autotune.load import watched
from autotune.prompts import Message
from autotune.stream import Connection, Endpoint, Fault, Reply, Request


@dataclass(frozen=True)
class Dialect:
    """The request fields that this server takes."""

    ignore_eos: bool = True
    streaming: bool = True
    usage_in_chunks: bool = True

    def fields(self, max_tokens: int, *, usage_in_chunks: bool = False) -> dict[str, Any]:
        """All fields of a greedy request but its model and prompt."""
        fields: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 0}
        if self.ignore_eos:
            fields["ignore_eos"] = True
        if self.streaming:
            options = {"include_usage": True}
            if usage_in_chunks and self.usage_in_chunks:
                options["continuous_usage_stats"] = True
            fields |= {"stream": True, "stream_options": options}
        return fields

    def warnings(self) -> tuple[str, ...]:
        """What the missing fields mean for the figures."""
        said = []
        if not self.ignore_eos:
            said.append("ignore_eos refused: answers end where the model ends them")
        if not self.streaming:
            said.append("no usage in streams: measured without streaming, so without TTFT and TPOT")
        return tuple(said)


def encode(model: str, messages: Sequence[Message], chat: bool, fields: dict[str, Any]) -> bytes:
    """The JSON of one request; a raw completion gets the messages' text, one after another."""
    if chat:
        prompt: dict[str, Any] = {"messages": list(messages)}
    else:
        prompt = {"prompt": "\n\n".join(message["content"] for message in messages)}
    return json.dumps({"model": model, **prompt, **fields}).encode()


PROBE_TOKENS = 4


async def find_dialect(
    endpoint: Endpoint, model: str, messages: Sequence[Message], chat: bool, clock: Clock
) -> tuple[Dialect, Reply]:
    """The fullest dialect that the server takes, and the reply that proved it.

    If it takes none, the reply is the last one's fault. Raises LoadStalled.
    """
    connection = Connection(endpoint, clock)
    dialect, reply = Dialect(), None
    async with watched([connection]):
        for dialect in _fallbacks():
            reply = await connection.send(probe_request(dialect, model, messages, chat))
            if reply.ok or not _may_be_a_refusal(reply):
                break
    assert reply is not None
    return dialect, reply


def probe_request(dialect: Dialect, model: str, messages: Sequence[Message], chat: bool) -> Request:
    """A request of a few tokens, to learn what the server takes and how it counts."""
    fields = dialect.fields(PROBE_TOKENS, usage_in_chunks=True)
    body = encode(model, messages, chat, fields)
    return Request(-1, body, max_tokens=PROBE_TOKENS, stream=dialect.streaming)


def _fallbacks() -> Iterator[Dialect]:
    full = Dialect()
    yield full
    yield replace(full, usage_in_chunks=False)
    yield replace(full, ignore_eos=False)
    yield replace(full, usage_in_chunks=False, ignore_eos=False)
    silent = replace(full, usage_in_chunks=False, streaming=False)
    yield silent
    yield replace(silent, ignore_eos=False)


def _may_be_a_refusal(reply: Reply) -> bool:
    if reply.fault is Fault.HTTP:
        return reply.status in (400, 422, 501)
    return reply.fault in (Fault.NO_USAGE, Fault.IN_STREAM, Fault.EMPTY)
