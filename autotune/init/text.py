"""Pieces of the experiment file's text."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

Scalar = bool | int | float | str | None

_PLAIN = re.compile(r"-?[A-Za-z./~][A-Za-z0-9./_~-]*")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of the file, with where its values come from."""

    name: str
    comment: str
    lines: tuple[str, ...]
    when: tuple[str, ...] = ()

    def text(self) -> str:
        """The parameter as YAML."""
        body = [f"    {line}" for line in self.lines]
        condition = [f"    when: {' and '.join(self.when)}"] if self.when else []
        return "\n".join([f"  {self.name}:", commented(self.comment, 4), *body, *condition])


@dataclass(frozen=True)
class EngineText:
    """What one engine contributes to the file."""

    name: str
    command: tuple[str, ...]
    args: Mapping[str, tuple[Scalar, str]]  # flag -> value, why
    env: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    known_good: tuple[tuple[str, Mapping[str, Scalar]], ...] = ()  # why, values

    def text(self) -> str:
        """The engine's section as YAML."""
        words = ", ".join(spelled(word) for word in self.command)
        command = f"    command: [{words}]  # or another environment's, or docker"
        lines = [f"  {self.name}:", command]
        for key, entries in (("args", self.args), ("env", self.env)):
            if entries:
                rows = [(f"      {n}: {spelled(v, key)}", why) for n, (v, why) in entries.items()]
                lines += [f"    {key}:", *aligned(rows)]
        return "\n".join(lines)


def aligned(rows: list[tuple[str, str]]) -> list[str]:
    """Lines with their comments in one column, or above where a line is long."""
    width = min(max(len(line) for line, _ in rows), 58)
    texts: list[str] = []
    for line, why in rows:
        beside = f"{line:<{width}}  # {why}"
        indent = len(line) - len(line.lstrip())
        texts += [beside] if len(beside) <= 98 else [commented(why, indent), line]
    return texts


def commented(text: str, indent: int) -> str:
    """Text as comment lines of at most 98 characters."""
    prefix = " " * indent + "# "
    return "\n".join(
        textwrap.wrap(text, 98, initial_indent=prefix, subsequent_indent=prefix,
                      break_long_words=False, break_on_hyphens=False)
    )  # fmt: skip


def choices(*values: Scalar) -> str:
    """`choices: [...]` of these values."""
    return f"choices: [{', '.join(spelled(value) for value in values)}]"


def spelled(value: Scalar, where: str = "args") -> str:
    """A value as YAML; variables are always text."""
    if isinstance(value, str) and where == "args":
        plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if plain else json.dumps(value)
    return json.dumps(value)
