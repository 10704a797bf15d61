"""The prompts of one measurement, each with a head of its own and a length in tokens.

Every request begins with a number that was never sent before, so that no prefix cache can
answer for the model. Prompt bodies depend on the workload's seed alone: all trials of a study
read the same text. Lengths come from the server's own tokenizer where it offers `/tokenize`;
otherwise a few probes calibrate tokens per character.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autotune.dialect import Dialect, encode
from autotune.experiment import SHIPPED, Workload
from autotune.prompts import KINDS, Conversation, known_kinds, passages, read_prompts
from autotune.stream import Request
from autotune.tokens import TokenCounter

POOL = 32
"""Distinct prompt bodies; requests take them in turn, each time under a new head."""

_NONCE = "100000000"  # replaced in each request by another number of as many digits


@dataclass(frozen=True)
class Body:
    """One prompt, encoded but for its head, and the answer's length."""

    kind: str
    messages: Conversation
    output_tokens: int


@dataclass(frozen=True)
class PromptSet:
    """The requests of one measurement: `request(index)` for every index from 0 on."""

    model: str
    chat: bool
    dialect: Dialect
    bodies: tuple[Body, ...]
    seed: int
    nonce_seed: int
    prefix_tokens: int = 0  # leading tokens that all prompts share on purpose
    exact: bool = False  # lengths were checked with the server's tokenizer

    def request(self, index: int, *, usage_in_chunks: bool = False) -> Request:
        """Request `index`: body `index % POOL` under a head that no other request has."""
        body = self.bodies[index % len(self.bodies)]
        nonce = random.Random(f"{self.nonce_seed}-{index}").randrange(10**8, 10**9)
        fields = self.dialect.fields(body.output_tokens, usage_in_chunks=usage_in_chunks)
        encoded = encode(self.model, body.messages, self.chat, fields)
        return Request(
            index=index,
            body=encoded.replace(_NONCE.encode(), b"%d" % nonce, 1),
            min_tokens=body.output_tokens if self.dialect.ignore_eos else 0,
            max_tokens=body.output_tokens,
            stream=self.dialect.streaming,
        )

    @property
    def output_tokens(self) -> float:
        """Mean length of an answer."""
        return sum(body.output_tokens for body in self.bodies) / len(self.bodies)


def request_path(workload: Workload) -> str:
    """Where requests of this workload go."""
    return "/v1/chat/completions" if workload.chat else "/v1/completions"


async def build_prompts(
    workload: Workload,
    model: str,
    dialect: Dialect,
    counter: TokenCounter,
    *,
    nonce_seed: int,
    note: Callable[[str], None] | None = None,
) -> PromptSet:
    """The prompt set of a workload for one server.

    Raises InputError for a broken prompt file or an unknown kind.
    """
    if workload.prompts == SHIPPED:
        bodies = await _shipped(workload, counter, note)
    else:
        bodies = _own(workload, Path(workload.prompts))
    return PromptSet(
        model=model,
        chat=workload.chat,
        dialect=dialect,
        bodies=tuple(bodies),
        seed=workload.seed,
        nonce_seed=nonce_seed,
        prefix_tokens=workload.shared_prefix_tokens,
        exact=counter.exact and workload.prompts == SHIPPED,
    )


def _own(workload: Workload, path: Path) -> list[Body]:
    conversations = list(read_prompts(path))
    random.Random(workload.seed).shuffle(conversations)
    outputs = _lengths(workload, workload.output_tokens, len(conversations), "output")
    return [
        Body("own", _headed(conversation), output)
        for conversation, output in zip(conversations, outputs, strict=True)
    ]


def _headed(conversation: Conversation) -> Conversation:
    first, *rest = conversation
    return ({**first, "content": f"{_NONCE}: {first['content']}"}, *rest)


_fitted: dict[tuple[str, str, int], list[Body]] = {}
"""Bodies by workload and tokenizer: the trials of a study tokenise them once a process."""


async def _shipped(
    workload: Workload, counter: TokenCounter, note: Callable[[str], None] | None
) -> list[Body]:
    key = (workload.model_dump_json(), counter.fingerprint or "", counter.overhead)
    if key not in _fitted:
        bodies = await _write_bodies(workload, counter, note)
        if not counter.exact:
            return bodies
        _fitted[key] = bodies
    return _fitted[key]


async def _write_bodies(
    workload: Workload, counter: TokenCounter, note: Callable[[str], None] | None
) -> list[Body]:
    kinds = known_kinds(workload.kinds)
    inputs = _lengths(workload, workload.input_tokens, POOL, "input")
    outputs = _lengths(workload, workload.output_tokens, POOL, "output")
    prefix = await _shared_prefix(workload, counter)
    writers = [
        _Writer(prefix, kinds[index % len(kinds)], random.Random(f"{workload.seed}-{index}"))
        for index in range(POOL)
    ]
    texts = await counter.fit(writers, inputs, note=note)
    return [
        Body(writer.kind, ({"role": "user", "content": text},), output)
        for writer, text, output in zip(writers, texts, outputs, strict=True)
    ]


async def _shared_prefix(workload: Workload, counter: TokenCounter) -> str:
    if not workload.shared_prefix_tokens:
        return ""
    writer = _PrefixWriter(random.Random(f"{workload.seed}-prefix"))
    [text] = await counter.fit([writer], [workload.shared_prefix_tokens], whole=False)
    return text + "\n\n"


def _lengths(workload: Workload, mean: int, count: int, purpose: str) -> list[int]:
    """Lengths spread evenly over mean * (1 +- spread), shuffled; all alike without a spread."""
    steps = [2 * (index + 0.5) / count - 1 for index in range(count)]
    random.Random(f"{workload.seed}-{purpose}").shuffle(steps)
    return [max(2, round(mean * (1 + workload.length_spread * step))) for step in steps]


class _Writer:
    """Writes one prompt of any number of words: head, material, and what is asked for."""

    def __init__(self, prefix: str, kind: str, chance: random.Random) -> None:
        self.kind = kind
        self._prefix = prefix
        self._words = _words(kind, chance)

    def text(self, words: int) -> str:
        """The prompt with so many words of material; -1 and less shorten the instruction."""
        head = f"{self._prefix}{_NONCE}:\n"
        if words > 0:
            return f"{head}{' '.join(self._words(words))}\n\n{KINDS[self.kind]}"
        instruction = KINDS[self.kind].split(" ")
        return head + " ".join(instruction[: max(1, len(instruction) + words)])


class _PrefixWriter:
    """Writes what all prompts begin with."""

    kind = "prefix"

    def __init__(self, chance: random.Random) -> None:
        self._words = _words("prose", chance)

    def text(self, words: int) -> str:
        """So many words of prose."""
        return " ".join(self._words(words))


def _words(kind: str, chance: random.Random) -> Callable[[int], list[str]]:
    """A function from a number of words to the first so many words of an endless text."""
    words: list[str] = []

    def first(count: int) -> list[str]:
        while len(words) < count:
            order = list(passages(kind))
            chance.shuffle(order)
            for passage in order:
                # Split at spaces only: the line breaks of code and dialogue stay inside words.
                words.extend(f"{passage}\n\n".split(" "))
        return words[: max(0, count)]

    return first
