"""The reference of the experiment file, written from its models: `docs/experiment.md`.

python -m autotune.experiment_reference > docs/experiment.md
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from autotune import expressions, templates
from autotune.conditions import spelled
from autotune.experiment import Experiment
from autotune.records import FIGURES, OBJECTIVES

_INTRODUCTION = """\
# The experiment file

One YAML file says what is launched, what is varied and how it is measured. `autotune init` writes
one for a model and host, `search_spaces/` holds more, `autotune check FILE` finds mistakes without
starting anything: each is one line with file, line, field and what would be right.

This page is written from the models that read the file.

YAML as it is read here: a key given twice is an error; unquoted `yes`, `no`, `on` and `off` are
errors (write `true` or `"yes"`); `1e-3` is a number; `12:30` is text; tags and merge keys are not
supported.
"""

_DEFAULTS = """\
## Missing values

A `known_good` entry need not name every parameter. One that applies and is missing gets its
`prior` default, else its first choice, else its smallest value: list the value that you would
start from first. A file without `known_good` has one entry: every default.
"""


def render() -> str:
    """The reference as Markdown."""
    sections = "\n".join(_section(model) for model in _models(Experiment))
    language = f"## Expressions\n\n{inspect.cleandoc(expressions.__doc__ or '')}\n"
    filled = f"## Text that is filled in\n\n{inspect.cleandoc(templates.__doc__ or '')}\n"
    parts = (_INTRODUCTION, sections, _DEFAULTS, language, filled, _figures())
    return "\n".join(parts).rstrip() + "\n"


def _figures() -> str:
    rows = "\n".join(f"- `{name}`: {meaning}" for name, meaning in FIGURES.items())
    objectives = " and ".join(f"`{name}`" for name in OBJECTIVES)
    return f"## Figures\n\n`constraints` may limit {objectives}, and:\n\n{rows}\n"


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The model and those inside it, each once, in reading order."""
    seen: dict[type[BaseModel], None] = {}
    pending = [model]
    while pending:
        current = pending.pop(0)
        if current not in seen:
            seen[current] = None
            fields = current.model_fields.values()
            pending += [inner for field in fields for inner in _inner(field.annotation)]
    return iter(seen)


def _inner(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _inner(argument)


def _section(model: type[BaseModel]) -> str:
    rows = [_row(field.alias or name, field) for name, field in model.model_fields.items()]
    table = "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows])
    return f"## {model.__name__}\n\n{inspect.cleandoc(model.__doc__ or '')}\n\n{table}\n"


def _row(name: str, field: FieldInfo) -> str:
    cells = (f"`{name}`", _kind(field.annotation), _default(field), field.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: FieldInfo) -> str:
    default = field.default
    if default is PydanticUndefined:
        return "required"
    if isinstance(default, BaseModel):
        return "see there"
    if isinstance(default, dict | tuple):
        return "none"
    return f"`{spelled(default)}`"


def _kind(annotation: Any) -> str:
    """A type in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{argument}`" for argument in arguments)
    if origin in (typing.Union, types.UnionType):
        if {bool, int, float, str} <= set(arguments):
            return "value or list of values" if len(arguments) > 5 else "value"
        return " or ".join(dict.fromkeys(_kind(a) for a in arguments if a is not type(None)))
    if origin is dict:
        return f"mapping of {_kind(arguments[0])} to {_kind(arguments[1])}"
    if origin in (tuple, list):
        return f"list of {_kind(arguments[0])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    names = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    return names.get(annotation, "value")


if __name__ == "__main__":
    print(render(), end="")
