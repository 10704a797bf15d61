"""Which Python runs a server: asked for versions and for the engine's own argument parser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from itertools import pairwise, takewhile
from pathlib import Path


def interpreter_of(argv: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """The Python behind a server's command and the arguments after program or module.

    `python -m sglang.launch_server --x` gives (python, --x); for a console script such as
    `vllm serve M`, the Python of its first line. None for anything else (`docker run …`).
    """
    if not argv:
        return None
    program = shutil.which(argv[0])
    if program is None:
        return None
    if os.path.basename(argv[0]).startswith("python"):
        return _after_module(program, argv[1:])
    python = _shebang(Path(program))
    return (python, tuple(argv[1:])) if python else None


def package_run_by(argv: Sequence[str]) -> str | None:
    """`sglang` of `python -m sglang.launch_server`; None for anything else."""
    words = argv[1:] if argv and os.path.basename(argv[0]).startswith("python") else ()
    options = takewhile(lambda pair: pair[0].startswith("-"), pairwise(words))
    return next((value.partition(".")[0] for option, value in options if option == "-m"), None)


def _after_module(python: str, rest: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    for index, part in enumerate(rest):
        if part == "-m" and index + 1 < len(rest):
            return python, tuple(rest[index + 2 :])
        if not part.startswith("-"):
            return python, tuple(rest[index + 1 :])
    return None


def _shebang(script: Path) -> str | None:
    try:
        with script.open("rb") as file:
            start = file.read(4096)
    except OSError:
        return None
    lines = start.decode("utf-8", "replace").splitlines()
    if not lines or not lines[0].startswith("#!"):
        return None
    words = lines[0][2:].split()
    python = words[-1] if words and words[0].endswith("/env") else next(iter(words), "")
    if os.path.basename(python).startswith("python"):
        return shutil.which(python)
    return _polyglot(lines[1:3])


def _polyglot(lines: Sequence[str]) -> str | None:
    """Installers write `'''exec' /long/path/python …` where the path is too long for `#!`."""
    for line in lines:
        words = line.replace('"', " ").split()
        if len(words) > 1 and words[0] == "'''exec'":
            return shutil.which(words[1])
    return None
