"""What the server says: plausible words, the same for the same prompt.

A token is about four characters of a prompt, or a word of the dummy models' prompts; a generated
token is one word with its space. The fixed greedy questions that tools ask get right answers, so
that an answer check sees a sane model.
"""

from __future__ import annotations

import random
import re
import zlib
from typing import Any

POOL_TOKENS = 16_384
_SUBJECTS = [
    "The engineer",
    "A careful reader",
    "The river",
    "Our team",
    "The committee",
    "An old captain",
    "The network",
    "A small village",
    "The scientist",
    "Every visitor",
    "The garden",
    "A quiet student",
    "The machine",
    "The market",
]
_VERBS = [
    "explains",
    "carries",
    "remembers",
    "measures",
    "follows",
    "describes",
    "builds",
    "supports",
    "changes",
    "compares",
    "protects",
    "improves",
    "observes",
    "connects",
    "reveals",
    "considers",
    "prepares",
    "gathers",
]
_ADJECTIVES = [
    "long",
    "bright",
    "careful",
    "modern",
    "ancient",
    "simple",
    "useful",
    "distant",
    "curious",
    "steady",
    "narrow",
    "open",
    "warm",
    "remarkable",
    "common",
    "gentle",
    "complex",
    "silent",
    "shared",
    "practical",
]
_NOUNS = [
    "path",
    "story",
    "method",
    "bridge",
    "signal",
    "harbour",
    "letter",
    "question",
    "answer",
    "season",
    "forest",
    "window",
    "result",
    "lesson",
    "problem",
    "journey",
    "pattern",
    "record",
    "balance",
    "language",
    "system",
    "morning",
    "valley",
    "experiment",
]
_TAILS = [
    "because the evidence points that way",
    "while the others wait outside",
    "before the winter begins",
    "with more patience than before",
    "in order to keep the cost low",
    "although nobody asked for it",
    "so that everyone can follow",
    "when the first results arrive",
    "without losing the main idea",
]
_ANSWERS = (
    (re.compile(r"capital of france", re.I), "The capital of France is Paris."),
    (re.compile(r"capital of japan", re.I), "The capital of Japan is Tokyo."),
    (re.compile(r"capital of germany", re.I), "The capital of Germany is Berlin."),
    (re.compile(r"capital of italy", re.I), "The capital of Italy is Rome."),
    (
        re.compile(r"seven days of the week", re.I),
        "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday",
    ),
    (re.compile(r"planet is the largest", re.I), "Jupiter"),
    (re.compile(r"first eight prime", re.I), "2, 3, 5, 7, 11, 13, 17, 19"),
    (
        re.compile(r"lighthouse at night", re.I),
        "The beam of the lighthouse sweeps across the dark sea and shows the ships where the rocks "
        "begin. Between two turns of the light there is nothing but wind and the sound of waves.",
    ),
    (re.compile(r"colou?r.*sky|sky.*colou?r", re.I), "The sky is blue on a clear day."),
)
_SUM = re.compile(r"(\d+)\s*(\+|plus|-|minus|\*|x|times)\s*(\d+)", re.I)


def _pool() -> list[str]:
    random_ = random.Random(2024)
    words: list[str] = []
    while len(words) < POOL_TOKENS:
        pick = random_.choice
        sentence = (
            f"{pick(_SUBJECTS)} {pick(_VERBS)} the {pick(_ADJECTIVES)} {pick(_NOUNS)} "
            f"and {pick(_VERBS)} a {pick(_ADJECTIVES)} {pick(_NOUNS)} {pick(_TAILS)}."
        )
        words += [f" {word}" for word in sentence.split()]
    return words[:POOL_TOKENS]


_WORDS = _pool()
_GARBAGE = [" \\u0e01\\u0e01", " !!", "!!!!", " 0 0", " \\u2588", " the the", "@@", " !"]


_DUMMY_WORD = re.compile(r"\bw\d+\b\s*")


def count_tokens(text: str) -> int:
    """Tokens of a prompt; words of dummy_models.py are one each, as its tokenizer has it."""
    rest, words = _DUMMY_WORD.subn("", text)
    return max(1, words + (len(rest) + 3) // 4)


def blocks_of(text: str, block_tokens: int = 64) -> tuple[int, ...]:
    """Chained hashes of the prompt's whole blocks: equal heads give equal first hashes."""
    size, state, hashes = block_tokens * 4, 0, []
    data = text.encode()
    for start in range(0, len(data) - size + 1, size):
        state = zlib.crc32(data[start : start + size], state)
        hashes.append(state << 20 | start >> 8)
    return tuple(hashes)


def prompt_of(body: dict[str, Any]) -> tuple[str, int]:
    """The prompt's text and its tokens, of a completion, chat or generate request."""
    if "messages" in body:
        parts = [_content(message) for message in body["messages"]]
        text = "\n".join(parts)
        return text, count_tokens(text) + 3 + 4 * len(parts)
    prompt = body.get("prompt", body.get("text", body.get("input_ids", "")))
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return " ".join(map(str, prompt)), len(prompt)
    if isinstance(prompt, list):
        prompt = prompt[0] if prompt else ""
    return str(prompt), count_tokens(str(prompt))


def _content(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return str(content)


class Answer:
    """The words of one answer."""

    def __init__(self, prompt: str, text_hash: int, garbled: bool = False) -> None:
        self._words = _GARBAGE * 40 if garbled else _WORDS
        self._start = text_hash % len(self._words)
        known = None if garbled else _known_answer(prompt)
        self._head = [] if known is None else [f" {word}" for word in known.split()]
        self.known = known is not None

    def natural_tokens(self, prompt_tokens: int, text_hash: int) -> int:
        """Where the model would end by itself."""
        if self.known:
            return len(self._head)
        spread = text_hash % 97
        return 40 + spread if prompt_tokens < 64 else 400 + 9 * spread

    def words(self, start: int, end: int) -> str:
        """Tokens `start` to `end`, ready to stand in JSON."""
        head = self._head[start:end]
        rest = end - max(start, len(self._head))
        if rest <= 0:
            return "".join(head)
        first = (self._start + max(0, start - len(self._head))) % len(self._words)
        tail = self._words[first : first + rest]
        while len(tail) < rest:
            tail += self._words[: rest - len(tail)]
        return "".join(head) + "".join(tail)


def _known_answer(prompt: str) -> str | None:
    if len(prompt) > 600:
        return None
    for pattern, answer in _ANSWERS:
        if pattern.search(prompt):
            return answer
    if match := _SUM.search(prompt):
        left, sign, right = int(match[1]), match[2].lower(), int(match[3])
        value = (
            left + right if sign in "+plus" else left - right if sign in "-minus" else left * right
        )
        return f"The answer is {value}."
    return None
