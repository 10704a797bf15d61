"""Argument parsing that fails the way the engines do: one line of their own, exit status 2."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from autotune.engines.simulated.settings import Settings


class UsageError(Exception):
    """The command line is refused; `text` is what the engine prints, status 2."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class ResolveError(Exception):
    """The arguments contradict each other; `line` ends the engine's traceback, status 1."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.line = line


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of leaving the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.format_usage()}{self.prog}: error: {message}\n")

    def format_usage(self) -> str:
        return f"usage: {self.prog} [-h] ...\n"


@dataclass(frozen=True)
class Arguments:
    """A command line that was accepted, and what it comes down to."""

    engine: str
    model_path: str
    served_name: str
    host: str
    port: int
    settings: Settings
    resolved: Mapping[str, Any]  # setting -> effective value, under the engine's own names
    asked: Mapping[str, Any]  # what was written on the command line
    warnings: Sequence[str] = field(default_factory=tuple)  # lines of argument resolution
    metrics: bool = True
    log_interval: int = 40


def add(parser: argparse.ArgumentParser, table: str, kind: Any) -> None:
    """Add the whitespace-separated flags of `table` (aliases joined by `=`) with type `kind`."""
    for word in table.split():
        names = [f"--{name}" for name in word.split("=")]
        if kind is bool:
            parser.add_argument(*names, action="store_true")
        else:
            parser.add_argument(*names, type=kind, default=None)


def size(text: str) -> int:
    """A number that may end in k, m or g (64k = 65536 in SGLang's way of writing)."""
    scale = {"k": 1024, "m": 1024**2, "g": 1024**3}.get(text[-1:].lower())
    return int(float(text[:-1]) * scale) if scale else int(text)
