"""Text in commands, arguments and variables that is filled in before a launch.

- `{num_steps + 1}` in a parameter's `args` and `env`: an expression over the parameters. Text
  that is nothing but one such template keeps the value's type.
- `{port}`, `{host}`, `{served_name}`, `{trial_dir}`: filled in when the place is known.
- `${NAME}` and `${NAME:-default}`: environment variables; then a leading `~`: the home folder.

A brace that is followed by a double quote or a closing brace is plain text, so that JSON needs
no escaping.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from autotune.errors import InputError
from autotune.expressions import INACTIVE, ExpressionError, Result, evaluate, names
from autotune.records import Value

PLACEHOLDERS = ("port", "host", "served_name", "trial_dir")

_TEMPLATE = re.compile(r"(?<!\$)\{(?!\s*[\"}])([^{}]+)\}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}")


def expressions_in(text: str) -> Iterator[str]:
    """The expressions of a template; placeholders are none."""
    for match in _TEMPLATE.finditer(text):
        if match[1].strip() not in PLACEHOLDERS:
            yield match[1]


def names_in(text: str) -> frozenset[str]:
    """The parameters that a template refers to."""
    return frozenset().union(*(names(expression) for expression in expressions_in(text)))


def fill(text: str, values: Mapping[str, Value]) -> Result:
    """`text` with its expressions evaluated; placeholders stay."""
    whole = _TEMPLATE.fullmatch(text)
    if whole and whole[1].strip() not in PLACEHOLDERS:
        return evaluate(whole[1], values)

    def filled(match: re.Match[str]) -> str:
        if match[1].strip() in PLACEHOLDERS:
            return match[0]
        return as_text(evaluate(match[1], values))

    return _TEMPLATE.sub(filled, text)


def as_text(value: Result) -> str:
    """A value as it stands inside text: JSON's spelling, but for bare text."""
    if value is INACTIVE:
        raise ExpressionError("a parameter that does not apply is used inside text")
    if isinstance(value, float):
        return number_text(value)
    return value if isinstance(value, str) else json.dumps(value)


def number_text(value: float) -> str:
    """A float without the dust of binary arithmetic: 0.1 + 0.2 is 0.3."""
    return format(value, ".10g")


def expand(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """`text` with environment variables and a leading `~` replaced; raises InputError."""

    def variable(match: re.Match[str]) -> str:
        name, default = match[1], match[3]
        value = environment.get(name) or default
        if value is None:
            raise InputError(
                f"${{{name}}} needs the environment variable {name}, which is not set: "
                f"export it, or write ${{{name}:-default}}"
            )
        return value

    replaced = _VARIABLE.sub(variable, text)
    if replaced == "~" or replaced.startswith("~/"):
        home = environment.get("HOME") or str(Path.home())
        return home + replaced[1:]
    return replaced
