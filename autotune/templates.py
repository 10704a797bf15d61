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

from pydantic import JsonValue

from autotune.errors import InputError
from autotune.expressions import INACTIVE, ExpressionError, Inactive, Result, evaluate, names
from autotune.foreign_json import foreign_json
from autotune.records import Value

Arg = bool | int | float | str | list[int | float | str] | None
"""An argument: `True` is a bare flag, `None` and `False` leave it out, a list repeats values."""

PLACEHOLDERS = ("port", "host", "served_name", "trial_dir")

_TEMPLATE = re.compile(r"(?<!\$)\{(?!\s*[\"}])([^{}]+)\}")
_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")
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
    """`text` with its expressions evaluated; placeholders stay. INACTIVE if one has no value."""
    whole = _TEMPLATE.fullmatch(text)
    if whole and whole[1].strip() not in PLACEHOLDERS:
        return evaluate(whole[1], values)
    results = {expression: evaluate(expression, values) for expression in expressions_in(text)}
    if any(isinstance(result, Inactive) for result in results.values()):
        return INACTIVE
    return _TEMPLATE.sub(lambda m: as_text(results[m[1]]) if m[1] in results else m[0], text)


def fill_argument(template: Arg, values: Mapping[str, Value]) -> Arg:
    """An argument with its templates filled in; None if a parameter in it does not apply.

    In JSON, text that is nothing but a template becomes a value of its own type.
    """
    if isinstance(template, list):
        items = [tidy(fill_value(item, values)) for item in template]
        return [item for item in items if item is not None]
    document = _json_object(template)
    if document is not None:
        return json.dumps(_filled_json(document, values))
    return tidy(fill_value(template, values))


def fill_value(template: Value, values: Mapping[str, Value]) -> Value:
    """A single value with its templates filled in; None if a parameter does not apply."""
    result = fill(template, values) if isinstance(template, str) else template
    if isinstance(result, list):
        raise ExpressionError(f"`{template}` gives a list, which is no argument")
    return None if isinstance(result, Inactive) else result


def tidy(value: Value) -> Value:
    """A float without the dust of binary steps: 0.8500000001 is 0.85."""
    return float(number_text(value)) if isinstance(value, float) else value


def canonical_text(value: Arg) -> str:
    """One spelling of an argument: 8, 8.0 and "8" are alike, JSON has one order of keys."""
    if isinstance(value, list):
        return json.dumps([canonical_text(item) for item in value])
    if isinstance(value, bool) or value is None:
        return f"({value})"  # the bare flag; no text reads like it
    document = _json_object(value)
    if document is not None:
        return json.dumps(document, sort_keys=True)
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        return value
    return number_text(float(value))


def _filled_json(document: JsonValue, values: Mapping[str, Value]) -> JsonValue:
    if isinstance(document, dict):
        return {key: _filled_json(item, values) for key, item in document.items()}
    if isinstance(document, list):
        return [_filled_json(item, values) for item in document]
    return tidy(fill_value(document, values))


def _json_object(text: object) -> dict[str, JsonValue] | None:
    if not (isinstance(text, str) and text.startswith("{")):
        return None
    try:
        document = foreign_json(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def as_text(value: Result) -> str:
    """A value as it stands inside text: JSON's spelling, but for bare text."""
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
