"""How many tokens a text is to one server, and texts of a given number of tokens."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import httpx

from autotune.foreign_json import foreign_json

_TRIES = 10
_AT_ONCE = 8
_TOLERANCE_SHARE = 400  # 2 of 1024 tokens: the head's number varies by as much
_LEAST_DENSITY = 0.02  # tokens per character
_FIXED_TOKENS = 40  # of a prompt's head and instruction
_FEWEST_TO_LEARN_FROM = 50
# Short words that are one token nearly everywhere.
_PADDING = (
    " so",
    " and",
    " then",
    " too",
    " as",
    " well",
    " in",
    " the",
    " end",
    " of",
    " it",
    " all",
)


class Writer(Protocol):
    """Something that can write a text of any number of words."""

    kind: str

    def text(self, words: int) -> str:
        """The text with so many words."""
        ...


@dataclass
class TokenCounter:
    """Counts prompt tokens as the server does, template included.

    `overhead` is what the chat template adds to a text, `tokens_per_char` the density used
    where the server has no `/tokenize`.
    """

    http: httpx.AsyncClient
    model: str
    exact: bool = False
    overhead: int = 0
    tokens_per_char: float = 0.25
    tokens_per_word: float = 1.4
    fingerprint: str | None = None  # equal fingerprints: the same tokenizer
    context: int | None = None  # the longest prompt plus answer, where the server says so
    _short: tuple[int, int] = (0, 0)  # characters and tokens of the first probe
    _learned: dict[str, tuple[int, float]] = field(default_factory=dict)
    _limit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def calibrate(self, text: str, prompt_tokens: int) -> None:
        """Learn from a probe: the server counted `prompt_tokens` for a message of `text`.

        Without `/tokenize`, `calibrate_density` with a longer text must follow.
        """
        reply = await self._tokenize(text)
        self.exact = reply is not None
        if reply is not None:
            count, self.fingerprint = reply
            self.overhead = prompt_tokens - count
            self.tokens_per_word = count / len(text.split(" "))
        else:
            self._short = (len(text), prompt_tokens)

    def calibrate_density(self, text: str, prompt_tokens: int) -> None:
        """A second, longer probe: tells the template's tokens from the text's."""
        characters, tokens = self._short
        density = (prompt_tokens - tokens) / max(1, len(text) - characters)
        if density < _LEAST_DENSITY:
            return  # a server that does not really count: keep what is usual
        self.tokens_per_char = density
        self.overhead = max(0, round(tokens - characters * self.tokens_per_char))
        self.tokens_per_word = self.tokens_per_char * len(text) / len(text.split(" "))

    async def count(self, text: str) -> int:
        """Tokens of `text` as a prompt: exact, or by the calibrated density."""
        if self.exact:
            async with self._limit:
                reply = await self._tokenize(text)
            if reply is not None:
                return reply[0] + self.overhead
        return self.overhead + round(len(text) * self.tokens_per_char)

    async def _tokenize(self, text: str) -> tuple[int, str] | None:
        """Ask `/tokenize` (vLLM and SGLang have it): count and digest; None if there is none."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        try:
            response = await self.http.post("/tokenize", json=body, timeout=60)
            reply = foreign_json(response.content) if response.status_code == 200 else {}
            tokens = reply.get("tokens")
            if not tokens:
                return None
            digest = hashlib.sha256(repr(tokens).encode()).hexdigest()
            return int(reply.get("count", len(tokens))), digest
        except (httpx.HTTPError, ValueError, TypeError, AttributeError):
            return None

    async def fit(
        self,
        writers: Sequence[Writer],
        targets: Sequence[int],
        *,
        whole: bool = True,
        note: Callable[[str], None] | None = None,
    ) -> list[str]:
        """Texts of `targets` tokens; `writers[i].text(words)` gives text i with so many words.

        `whole` counts the chat template too. A text that cannot be met exactly, because no
        number of words gives it, is the nearest one found. `note` is told of progress.
        """
        extra = 0 if whole else self.overhead
        texts: dict[int, str] = {}

        async def one(index: int) -> None:
            texts[index] = await self._fit(writers[index], targets[index] + extra)
            if note is not None:
                note(f"writing prompts {len(texts)}/{len(writers)}")

        # The first of each kind teaches how dense its words are; the others then fit at once.
        kinds = [writer.kind for writer in writers]
        firsts = {kinds.index(kind) for kind in kinds}
        await asyncio.gather(*(one(index) for index in firsts))
        await asyncio.gather(*(one(index) for index in range(len(writers)) if index not in firsts))
        return [texts[index] for index in range(len(writers))]

    async def _fit(self, writer: Writer, target: int) -> str:
        """Interpolate between a number of words that is too small and one that is too large."""
        fixed, density = self._learned.get(writer.kind, (self.overhead, self.tokens_per_word))
        words = max(1, round((target - fixed) / density))
        low: tuple[int, int] | None = None  # words, tokens
        high: tuple[int, int] | None = None
        best, best_miss = "", target + 1
        for _ in range(_TRIES):
            text = writer.text(words)
            count = await self.count(text)
            self._learn(writer.kind, words, count)
            if abs(target - count) < best_miss:
                best, best_miss = text, abs(target - count)
            if abs(target - count) <= target // _TOLERANCE_SHARE:
                return text
            if count < target:
                low = (words, count)
                if (padded := await self._padded(text, count, target)) is not None:
                    return padded
            else:
                high = (words, count)
            if low and high and high[0] - low[0] <= 1:
                break
            words = self._next_words(target, low, high)
        return best

    def _learn(self, kind: str, words: int, count: int) -> None:
        """Tokens per word of a kind, beside the tokens that every prompt has."""
        if words > _FEWEST_TO_LEARN_FROM:
            fixed = self.overhead + _FIXED_TOKENS
            self._learned[kind] = (fixed, max(0.5, (count - fixed) / words))

    async def _padded(self, text: str, count: int, target: int) -> str | None:
        """`text` with a few short words more, if that gives exactly `target` tokens."""
        if target - count > len(_PADDING):
            return None
        padded = text + "".join(_PADDING[: target - count])
        return padded if await self.count(padded) == target else None

    def _next_words(
        self, target: int, low: tuple[int, int] | None, high: tuple[int, int] | None
    ) -> int:
        """Between two counts the linear guess; beyond one of them a step in proportion."""
        if low and high:
            share = (target - low[1]) / (high[1] - low[1])
            guess = low[0] + math.floor(share * (high[0] - low[0]))
            return min(max(guess, low[0] + 1), high[0] - 1)
        if low:
            return low[0] + math.ceil((target - low[1]) / self.tokens_per_word)
        assert high is not None
        return high[0] - math.ceil((high[1] - target) / self.tokens_per_word)
