"""What a parameter's value adds to a launch: arguments and environment variables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from autotune.conditions import Parameters
from autotune.expressions import holds, names
from autotune.records import Value
from autotune.templates import Arg, as_text, expressions_in, fill_argument, fill_value, tidy
from autotune.yaml_lines import Where

if TYPE_CHECKING:
    from autotune.experiment import Parameter


def arguments(
    parameter: Parameter, value: Value, active: Mapping[str, Value]
) -> Iterator[tuple[str, Arg]]:
    """The arguments that a parameter gives at this value."""
    if parameter.flag and value is not None and value is not False:
        yield parameter.flag, tidy(value)
    if parameter.flag_when_false and value is False:
        yield parameter.flag_when_false, True
    if parameter.args and templates_apply(parameter, active):
        for flag, template in parameter.args.items():
            filled = fill_argument(template, active)
            if filled is not None:
                yield flag, filled


def variables(
    parameter: Parameter, value: Value, active: Mapping[str, Value]
) -> Iterator[tuple[str, str]]:
    """The environment variables that a parameter sets at this value."""
    if isinstance(parameter.env, str) and value is not None:
        yield parameter.env, str(int(value)) if isinstance(value, bool) else as_text(value)
    if isinstance(parameter.env, dict) and templates_apply(parameter, active):
        for variable, template in parameter.env.items():
            filled = fill_value(template, active)
            if filled is not None:
                yield variable, as_text(filled)


def templates_apply(parameter: Parameter, active: Mapping[str, Value]) -> bool:
    """Whether `args` and the templates of `env` are given."""
    return parameter.args_when is None or holds(parameter.args_when, active)


def deciding(parameters: Parameters, roots: Iterable[str]) -> tuple[frozenset[str], list[str]]:
    """Parameters that decide whether `roots` apply and what they give, and the expressions."""
    found: set[str] = set()
    texts: list[str] = []
    pending = [name for name in roots if name in parameters]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            used = [text for _, text in expressions_of(parameters[name])]
            texts += used
            pending += [other for text in used for other in names(text)]
    return frozenset(found), texts


def expressions_of(parameter: Parameter) -> Iterator[tuple[Where, str]]:
    """Every expression of a parameter, with its place within it."""
    if parameter.when is not None:
        yield ("when",), parameter.when
    if parameter.args_when is not None:
        yield ("args_when",), parameter.args_when
    for flag, value in parameter.args.items():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, str):
                yield from ((("args", flag), text) for text in expressions_in(part))
    if isinstance(parameter.env, dict):
        for variable, template in parameter.env.items():
            yield from ((("env", variable), text) for text in expressions_in(template))
