"""The launch as the config file that SGLang and vLLM read with `--config`."""

from __future__ import annotations

import shlex
from typing import Any

import yaml

from autotune.errors import InputError
from autotune.export.command import HOST, PORT, ServeCommand, flag_and_values, written
from autotune.export.header import Header
from autotune.export.plain import comments, shell_word
from autotune.records import Outcome

_STARTERS = {"sglang": "python -m sglang.launch_server", "vllm": "vllm serve"}


def config_file(command: ServeCommand, outcome: Outcome, header: Header) -> str:
    """A YAML file of the server's flags; a comment says how to start the server with it.

    Variables of the environment and secrets are not in it: the comment has them.
    Both engines read long flags without their dashes, `true` as a bare flag, lists as values.
    """
    if outcome.engine not in _STARTERS:
        raise InputError(
            f"no config file is known for {outcome.engine}; --format shell has the command",
            field="--format",
        )
    settings: dict[str, Any] = {}
    rest: list[str] = []
    for group in command.groups:
        flag, values = flag_and_values(group)
        secret = any(f"\0{name}\0" in value for value in values for name in command.secrets)
        if flag.startswith("--") and not secret:
            settings[flag[2:]] = _value(values)
        elif flag not in ("", "-m"):
            rest += [shell_word(word) for word in group]
    if outcome.engine == "vllm":
        settings = {"model": command.model, **settings}
    text = yaml.safe_dump(settings, sort_keys=False, width=1000)
    return "\n".join([*comments(header), *_how_to_start(command, outcome, rest), text])


def _how_to_start(command: ServeCommand, outcome: Outcome, rest: list[str]) -> list[str]:
    env = [
        f"{name}={shlex.quote(value)}"
        for name, value in command.env.items()
        if name not in command.secrets
    ]
    words = [*env, _STARTERS[outcome.engine], "--config", "THIS_FILE.yaml", *rest]
    return ["#", "# Start it with:", f"#   {' '.join(words)}"]


def _value(values: tuple[str, ...]) -> Any:
    fixed = {"HOST": HOST, "PORT": str(PORT)}
    plain = [_typed(written(value, fixed.__getitem__)) for value in values]
    if not plain:
        return True
    return plain[0] if len(plain) == 1 else plain


def _typed(value: str) -> str | int | float:
    """A number where writing it as one gives back the same text: `8`, not `1e-3` or `007`."""
    for kind in (int, float):
        try:
            number = kind(value)
        except ValueError:
            continue
        if str(number) == value:
            return number
    return value
