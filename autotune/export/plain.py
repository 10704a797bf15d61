"""The launch as a shell script and as JSON."""

from __future__ import annotations

import json
import re
import shlex

from autotune.export.command import HOST, PORT, ServeCommand, has_variable, written
from autotune.export.header import Header
from autotune.records import Outcome


def shell(command: ServeCommand, outcome: Outcome, header: Header) -> str:
    """A bash script that starts the server in the foreground; HOST and PORT can be set."""
    lines = [
        "#!/usr/bin/env bash",
        *comments(header),
        "set -euo pipefail",
        "",
        f'HOST="${{HOST:-{HOST}}}"  # 0.0.0.0 serves other machines too',
        f'PORT="${{PORT:-{PORT}}}"',
        *(f'export {name}="${{{name}:?a secret: set it yourself}}"' for name in command.secrets),
        *(
            f"export {name}={shell_word(value)}"
            for name, value in command.env.items()
            if name not in command.secrets
        ),
    ]
    if command.folder:
        lines.append(f"mkdir -p {command.folder}")
    groups = [" ".join(shell_word(word) for word in group) for group in command.groups]
    return "\n".join([*lines, "", "exec " + " \\\n  ".join(_program_first(groups))]) + "\n"


def comments(header: Header) -> list[str]:
    return [f"# {line}" for line in header.lines]


def shell_word(word: str) -> str:
    """A word quoted for a POSIX shell, in which nothing but its variables expands."""
    if not has_variable(word):
        return shlex.quote(word)
    escaped = re.sub(r'([\\"$`])', r"\\\1", word)
    return '"' + written(escaped, in_braces) + '"'


def in_braces(name: str) -> str:
    return f"${{{name}}}"


def _program_first(groups: list[str]) -> list[str]:
    """The words before the first flag, and Python's `-m module`, on the first line."""
    count = next((n for n, group in enumerate(groups) if group.startswith("--")), len(groups))
    return [" ".join(groups[: max(count, 1)]), *groups[max(count, 1) :]]


def as_json(command: ServeCommand, outcome: Outcome, header: Header) -> str:
    """One JSON document; `${NAME}` in it stands for HOST, PORT or one of `secrets`."""
    document = {
        "name": header.name,
        "trial": outcome.number,
        "engine": outcome.engine,
        "engine_version": outcome.engine_version,
        "model": command.model,
        "gpus": command.gpus,
        "command": [written(word, in_braces) for word in command.argv],
        "env": {name: written(value, in_braces) for name, value in command.env.items()},
        "secrets": list(command.secrets),
        "params": outcome.params,
        "values": dict(header.values),
        "spread": dict(header.spread),
        "measured_at": outcome.finished_at,
        "machine": outcome.machine,
        "warnings": list(command.warnings),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
