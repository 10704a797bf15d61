"""Where prompts come from: the shipped corpus, or the user's JSONL file."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from autotune.errors import InputError
from autotune.foreign_json import foreign_json

KINDS: Mapping[str, str] = {
    "prose": "Continue the text above in the same voice. Write at least a thousand words, in full "
    "paragraphs, and do not summarise what is already there.",
    "code": "Explain the code above function by function, then write a thorough set of tests for "
    "it and point out every case that it does not handle.",
    "questions": "Answer each of the questions above in detail, one after another, with examples, "
    "and repeat the question before each answer.",
    "chat": "Continue the conversation above for many more turns. Keep both voices, and let each "
    "turn be several sentences long.",
}
"""Kind of shipped text -> what the prompt asks for; all of them lead to long answers."""

Message = dict[str, str]
Conversation = tuple[Message, ...]

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
_ROLES |= {"system": "system", "developer": "system", "tool": "tool", "chatgpt": "assistant"}


@cache
def passages(kind: str) -> tuple[str, ...]:
    """The shipped passages of one kind."""
    text = (files("autotune") / "corpus" / f"{kind}.txt").read_text(encoding="utf-8")
    return tuple(passage.strip() for passage in text.split("\n%%\n"))


def known_kinds(kinds: Sequence[str] | None) -> tuple[str, ...]:
    """The kinds asked for, or all; raises InputError for one that is not shipped."""
    for kind in kinds or ():
        if kind not in KINDS:
            raise InputError(
                f"{kind!r} is not shipped: choose from {', '.join(KINDS)}", field="workload.kinds"
            )
    return tuple(kinds or KINDS)


def read_prompts(path: Path) -> tuple[Conversation, ...]:
    """The conversations of a JSONL file: OpenAI messages, ShareGPT or a plain prompt per line.

    Each ends with a message to be answered: trailing answers are cut off. Raises InputError
    with file and line for whatever cannot be used.
    """
    try:
        text = prompt_bytes(path).decode("utf-8-sig")  # editors of Windows write a mark in front
    except UnicodeDecodeError as problem:
        raise InputError(f"cannot be read: {problem}", file=path) from problem
    # A line ends at a newline alone: splitlines() also splits at U+2028, which JSON allows in text.
    conversations = tuple(
        _conversation(line, path, number)
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
    )
    if not conversations:
        raise InputError("holds no prompt: write one JSON object a line", file=path)
    return conversations


def prompt_bytes(path: Path) -> bytes:
    """A prompt file as it is; raises InputError for whatever cannot be read.

    What is no regular file is refused: a named pipe would be waited for, and is empty when read
    again.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError("is no regular file", file=path)
        return path.read_bytes()
    except OSError as problem:
        reason = problem.strerror or problem
        raise InputError(f"cannot be read: {reason}", file=path) from problem


def _conversation(line: str, path: Path, number: int) -> Conversation:
    try:
        row = foreign_json(line)
    except ValueError as problem:
        raise InputError(f"not JSON: {problem}", file=path, line=number) from problem
    try:
        messages = list(_messages(row))
    except (KeyError, TypeError, AttributeError, ValueError) as problem:
        raise InputError(
            'expected {"messages": [{"role", "content"}, …]}, {"conversations": [{"from", '
            f'"value"}}, …]}} or {{"prompt": "…"}}: {problem}',
            file=path,
            line=number,
        ) from problem
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not any(message["role"] == "user" for message in messages):
        raise InputError("the prompt is empty: nothing to answer", file=path, line=number)
    return tuple(messages)


def _messages(row: Any) -> Iterator[Message]:
    """The messages of one line; raises KeyError, TypeError or ValueError for another shape."""
    if isinstance(row, str):
        row = {"prompt": row}
    if "messages" in row:
        for message in row["messages"]:
            yield from _message(message["role"], message["content"])
    elif "conversations" in row:
        for turn in row["conversations"]:
            yield from _message(_ROLES[turn["from"]], turn["value"])
    elif isinstance(row.get("prompt"), str):
        yield from _message("user", row["prompt"])
    else:
        raise ValueError(f"it has {', '.join(map(str, row)) or 'nothing'}")


def _message(role: str, content: Any) -> Iterator[Message]:
    if isinstance(content, list):  # parts; only their text is used
        content = "\n".join(part["text"] for part in content if part.get("type") == "text")
    if not isinstance(content, str):
        raise TypeError(f"the content of {role!r} is not text")
    if content.strip():
        yield {"role": str(role), "content": content}
