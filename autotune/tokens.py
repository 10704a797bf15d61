"""How many tokens a text is to one server, and texts of a given number of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx

_TRIES = 6
_AT_ONCE = 8
_WORDS_PER_TOKEN = 0.7  # first guess, for English and code alike
_PADDING = (" so", " and", " then", " too")  # short words that are one token nearly everywhere


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
    context: int | None = None  # the longest prompt plus answer, where the server says so
    _limit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def calibrate(self, text: str, prompt_tokens: int) -> None:
        """Learn from a probe: the server counted `prompt_tokens` for a message of `text`."""
        own = await self._tokenize(text)
        self.exact = own is not None
        if own is not None:
            self.overhead = prompt_tokens - own
        else:
            self.tokens_per_char = prompt_tokens / len(text)

    async def count(self, text: str) -> int:
        """Tokens of `text` as a prompt: exact, or by the calibrated density."""
        if self.exact:
            async with self._limit:
                own = await self._tokenize(text)
            if own is not None:
                return own + self.overhead
        return round(len(text) * self.tokens_per_char)

    async def _tokenize(self, text: str) -> int | None:
        """Ask `/tokenize` (vLLM and SGLang have it); None where there is none."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        try:
            response = await self.http.post("/tokenize", json=body, timeout=60)
            reply = response.json() if response.status_code == 200 else {}
            count = reply.get("count", len(reply.get("tokens") or ()) or None)
            return int(count) if count is not None else None
        except (httpx.TransportError, ValueError, TypeError, AttributeError):
            return None

    async def fit(
        self, writers: Sequence[Callable[[int], str]], targets: Sequence[int], whole: bool = True
    ) -> list[str]:
        """Texts of `targets` tokens; `writers[i](words)` gives text i with so many words.

        `whole` counts the chat template too. A text that cannot be met exactly, because no
        number of words gives it, is the nearest one found.
        """
        extra = 0 if whole else self.overhead
        return list(
            await asyncio.gather(
                *(self._fit(w, t + extra) for w, t in zip(writers, targets, strict=True))
            )
        )

    async def _fit(self, write: Callable[[int], str], target: int) -> str:
        words = max(1, round(target * _WORDS_PER_TOKEN))
        best, best_miss = "", target + 1
        tokens_per_word = 1 / _WORDS_PER_TOKEN
        for _ in range(_TRIES):
            text = write(words)
            count = await self.count(text)
            miss = target - count
            if abs(miss) < best_miss or (abs(miss) == best_miss and miss > 0):
                best, best_miss = text, abs(miss)
            if miss == 0:
                return text
            if 0 < miss <= len(_PADDING):
                padded = text + "".join(_PADDING[:miss])
                if await self.count(padded) == target:
                    return padded
            tokens_per_word = max(0.3, count / max(1, words + 20)) if words > 0 else tokens_per_word
            step = round(miss / tokens_per_word)
            words += step or (1 if miss > 0 else -1)
        return best
