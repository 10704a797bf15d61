"""One answer on its way to a client: bodies of requests, chunks of streams."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import zlib
from enum import Enum
from typing import Any

from autotune.engines.simulated.http import Connection
from autotune.engines.simulated.requests import Sequence
from autotune.engines.simulated.simulation import Simulation
from autotune.engines.simulated.text import Answer, blocks_of, prompt_of

_ids = itertools.count(1)


class BadRequest(Exception):
    """The request is refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Style(Enum):
    """Which endpoint's format."""

    COMPLETION = "text_completion"
    CHAT = "chat.completion"
    GENERATE = "generate"


def sequence_for(sim: Simulation, body: dict[str, Any]) -> tuple[Sequence, Answer]:
    """The scheduler's view of a request, and the words it will get. Raises BadRequest."""
    _check_model(sim, body)
    prompt, prompt_tokens = prompt_of(body)
    context = sim.settings.context or sim.model.context
    asked = body.get("max_completion_tokens") or body.get("max_tokens")
    limit = int(asked) if asked is not None else max(1, min(2048, context - prompt_tokens))
    if limit < 1:
        raise BadRequest(400, f"max_tokens must be at least 1, got {limit}.")
    if prompt_tokens + limit > context:
        raise BadRequest(
            400,
            f"max_tokens={limit} cannot be greater than max_model_len={context} minus the "
            f"prompt's {prompt_tokens} tokens",
        )
    text_hash = zlib.crc32(prompt.encode())
    answer = Answer(prompt, text_hash, "garbled" in sim.faults)
    sequence = Sequence(
        prompt_tokens=prompt_tokens,
        max_tokens=limit,
        sink=_nowhere,
        text_hash=text_hash,
        blocks=blocks_of(prompt) if sim.settings.prefix_cache else (),
    )
    if not body.get("ignore_eos"):
        natural = max(answer.natural_tokens(prompt_tokens, text_hash), body.get("min_tokens") or 0)
        if natural <= limit:
            sequence.max_tokens, sequence.finish_reason = natural, "stop"
    return sequence, answer


def _nowhere(sequence: Sequence, tokens: int, done: bool) -> None:
    """The sink before a generation is attached."""


def _check_model(sim: Simulation, body: dict[str, Any]) -> None:
    model = body.get("model")
    if sim.args.engine == "vllm" and model not in (None, sim.args.served_name):
        raise BadRequest(404, f"The model `{model}` does not exist.")


class Generation:
    """Turns a sequence's tokens into one engine's answer."""

    def __init__(
        self,
        sim: Simulation,
        connection: Connection,
        body: dict[str, Any],
        style: Style,
        sequence: Sequence,
        answer: Answer,
    ) -> None:
        self.sim, self.connection, self.body, self.style = sim, connection, body, style
        self.sequence, self._answer = sequence, answer
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.breaks = False  # a fault: ends in an error object
        self._sent = 0
        self._stream = bool(body.get("stream"))
        options = body.get("stream_options") or {}
        self._usage_at_end = bool(options.get("include_usage"))
        self._usage_always = bool(options.get("continuous_usage_stats"))
        self._head = self._chunk_head() if self._stream else ""
        sequence.sink = self.take

    def _chunk_head(self) -> str:
        prefix = "chatcmpl" if self.style is Style.CHAT else "cmpl"
        kind = "chat.completion.chunk" if self.style is Style.CHAT else "text_completion"
        model = json.dumps(self.sim.args.served_name)
        return (
            f'{{"id":"{prefix}-{next(_ids):032x}","object":"{kind}","created":{int(time.time())},'
            f'"model":{model},'
        )

    def begin(self) -> None:
        """Open the stream; a chat begins with the role, which is no token."""
        if not self._stream:
            return
        self.connection.begin_stream()
        if self.style is Style.CHAT:
            self._choice('"delta":{"role":"assistant","content":""}', None, "")

    def take(self, sequence: Sequence, tokens: int, done: bool) -> None:
        """New tokens from the scheduler."""
        if self.finished.done() or self.connection.closed:
            return
        start, self._sent = self._sent, self._sent + tokens
        if self.breaks and self._sent > sequence.max_tokens // 2:
            self.fail("The engine core died while the answer was being made.")
        elif self._stream:
            self._send_chunk(self._answer.words(start, self._sent), done)
        elif done:
            self._send_whole()
        if done and not self.finished.done():
            self.finished.set_result(None)

    def abort(self) -> None:
        """The client is gone, or everything is to end."""
        self.sequence.aborted = True
        if not self.finished.done():
            self.finished.set_result(None)

    def fail(self, message: str) -> None:
        """End with an error: inside the stream, or as a status."""
        error = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
        if self.finished.done():
            return
        if self._stream:
            self.connection.event(json.dumps({"error": error}))
            self.connection.event("[DONE]")
            self.connection.end_stream()
        else:
            self.connection.send_json(500, {"error": error})
        self.sequence.aborted = True
        self.finished.set_result(None)

    # -- formats ------------------------------
    def _send_chunk(self, words: str, done: bool) -> None:
        self.sim.clock.sent_event()
        reason = self.sequence.finish_reason if done else None
        usage = f',"usage":{self._usage()}' if self._usage_always else ""
        if self.style is Style.CHAT:
            self._choice(f'"delta":{{"content":"{words}"}}', reason, usage)
        elif self.style is Style.COMPLETION:
            self._choice(f'"text":"{words}"', reason, usage)
        else:
            text = self._answer.words(0, self._sent)
            self.connection.event(f'{{"text":"{text}","meta_info":{self._meta(reason)}}}')
        if done:
            self._end_stream()

    def _choice(self, content: str, reason: str | None, usage: str) -> None:
        finish = f'"{reason}"' if reason else "null"
        self.connection.event(
            f'{self._head}"choices":[{{"index":0,{content},"logprobs":null,'
            f'"finish_reason":{finish}}}]{usage},"sim_time":{self.sim.clock.now:.6f}}}'
        )

    def _end_stream(self) -> None:
        if self._usage_at_end:
            self.connection.event(
                f'{self._head}"choices":[],"usage":{self._usage()},'
                f'"sim_time":{self.sim.clock.now:.6f}}}'
            )
        self.connection.event("[DONE]")
        self.connection.end_stream()

    def _send_whole(self) -> None:
        words, now = self._answer.words(0, self._sent), self.sim.clock.now
        self.sim.clock.sent_event()
        reason = self.sequence.finish_reason
        if self.style is Style.GENERATE:
            text = f'{{"text":"{words}","meta_info":{self._meta(reason)},"sim_time":{now:.6f}}}'
        else:
            content = f'"text":"{words}"'
            if self.style is Style.CHAT:
                content = f'"message":{{"role":"assistant","content":"{words.strip()}"}}'
            text = (
                f'{{"id":"cmpl-{next(_ids):032x}","object":"{self.style.value}",'
                f'"created":{int(time.time())},"model":{json.dumps(self.sim.args.served_name)},'
                f'"choices":[{{"index":0,{content},"logprobs":null,"finish_reason":"{reason}"}}],'
                f'"usage":{self._usage()},"sim_time":{now:.6f},"simulated":true}}'
            )
        self.connection.send(200, text.encode())

    def _usage(self) -> str:
        prompt, cached = self.sequence.prompt_tokens, self.sequence.cached_tokens
        return (
            f'{{"prompt_tokens":{prompt},"completion_tokens":{self._sent},'
            f'"total_tokens":{prompt + self._sent},'
            f'"prompt_tokens_details":{{"cached_tokens":{cached}}}}}'
        )

    def _meta(self, reason: str | None) -> str:
        sequence = self.sequence
        meta: dict[str, Any] = {
            "id": f"{next(_ids):032x}",
            "finish_reason": {"type": reason, "length": sequence.max_tokens} if reason else None,
            "prompt_tokens": sequence.prompt_tokens,
            "completion_tokens": self._sent,
            "cached_tokens": sequence.cached_tokens,
            "e2e_latency": self.sim.clock.now - sequence.arrived,
        }
        if sequence.cycles:
            length = (self._sent - 1) / sequence.cycles
            meta |= {
                "spec_verify_ct": sequence.cycles,
                "spec_accept_length": length,
                "spec_accept_rate": (length - 1) / max(1, self.sim.settings.spec_steps),
            }
        return json.dumps(meta)
