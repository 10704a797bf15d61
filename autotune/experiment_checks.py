"""What a single field of the experiment file may hold."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING

from autotune.conditions import same, spelled
from autotune.experiment_errors import wrong
from autotune.expressions import ExpressionError, names
from autotune.templates import as_text

if TYPE_CHECKING:
    from autotune.experiment import FloatRange, IntRange, Parameter, Workload
    from autotune.records import Value

RESERVED_ENV = {
    "AUTOTUNE_MARK": "autotune marks its processes with it",
    "CUDA_VISIBLE_DEVICES": "autotune sets it to the trial's GPUs",
    "CUDA_DEVICE_ORDER": "autotune sets it, so that GPU numbers agree with nvidia-smi",
}
_LARGEST_INT = 2**63 - 1
_FLAG = re.compile(r"-{0,2}[A-Za-z0-9][A-Za-z0-9._:-]*")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def scalar(value: object) -> Value:
    """A parameter's value."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) <= _LARGEST_INT:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str):
        return _clean(value)
    raise wrong("must be text, a finite number, true, false or null")


def text(value: object) -> str:
    """Text; a number is taken as it is written."""
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return as_text(value)
    raise wrong('must be text; for true, false or an empty value write "1", "0" or ""')


def command(value: object) -> object:
    """A command is a list of words, never one string for a shell."""
    if isinstance(value, str):
        words = ", ".join(value.split()[:4])
        raise wrong(f"must be a list of words, such as [{words}]: nothing goes through a shell")
    if isinstance(value, list | tuple) and (not value or not str(value[0]).strip()):
        raise wrong("is empty: name the program, such as [vllm, serve, MODEL]")
    return value


def flag_name(value: object) -> str:
    """An argument's name without its two dashes; one dash (-tp) is kept."""
    if isinstance(value, str) and _FLAG.fullmatch(value):
        return value.removeprefix("--")
    raise wrong("must be an argument's name, such as mem-fraction-static")


def arguments(value: object) -> object:
    """A mapping of arguments, none given twice with and without dashes."""
    seen: set[str] = set()
    for name in value if isinstance(value, dict) else ():
        if flag_name(name) in seen:
            raise wrong(f"{name} is given twice: keep one")
        seen.add(flag_name(name))
    return value


def env_name(value: object) -> str:
    """A variable's name, unless autotune sets it."""
    if not (isinstance(value, str) and _ENV.fullmatch(value)):
        raise wrong("must be a variable's name: letters, digits and underscores")
    if value in RESERVED_ENV:
        raise wrong(f"{value} cannot be set: {RESERVED_ENV[value]}")
    return value


def env_target(value: object) -> object:
    """One name, or a mapping of names to templates."""
    return value if isinstance(value, dict) else env_name(value)


def argument(value: object) -> object:
    """An argument's value; a mapping becomes JSON text."""
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, list) and any(v is None or isinstance(v, bool | dict) for v in value):
        raise wrong("a list may only hold text and numbers")
    return [scalar(v) for v in value] if isinstance(value, list) else scalar(value)


def expression(value: object) -> str:
    """Text in the language of `expressions`."""
    if not isinstance(value, str):
        raise wrong("must be an expression, such as num_steps > 0")
    try:
        names(value)
    except ExpressionError as error:
        raise wrong(str(error)) from None
    return value


def prior(value: object) -> object:
    """A plain value is the expected best one."""
    return value if isinstance(value, dict) or hasattr(value, "default") else {"default": value}


def choices(value: object) -> object:
    """At least one choice, and none twice: true and 1 are too alike for the study's storage."""
    if not isinstance(value, list | tuple):
        raise wrong("must be a list, such as [64, 128]")
    if not value:
        raise wrong("is empty: give at least one value")
    for i, item in enumerate(value):
        if item in value[:i] or any(same(item, other) for other in value[:i]):
            raise wrong(f"holds {_named(item)} twice (true counts as 1, false as 0)")
    return value


def int_range(span: IntRange) -> IntRange:
    """Bounds in order; logarithms of positive numbers only."""
    _range(span.low, span.high)
    if span.log and (span.low < 1 or span.step != 1):
        raise wrong("log needs low >= 1 and no step")
    return span


def float_range(span: FloatRange) -> FloatRange:
    """Bounds in order, a step that fits, logarithms of positive numbers only."""
    _range(span.low, span.high)
    if span.log and (span.low <= 0 or span.step is not None):
        raise wrong("log needs low > 0 and no step")
    width = span.high - span.low
    if span.step is not None and span.step > width * (1 + 1e-9) > 0:
        raise wrong(f"step {spelled(span.step)} is larger than the range")
    return span


def _range(low: float, high: float) -> None:
    if low > high:
        raise wrong(f"low {spelled(low)} is above high {spelled(high)}: exchange them")


def parameter(checked: Parameter) -> Parameter:
    """One domain; targets that fit it."""
    domains = [d for d in (checked.choices, checked.int_, checked.float_) if d is not None]
    if len(domains) != 1:
        raise wrong("needs exactly one of choices, int and float")
    templated = bool(checked.args) or isinstance(checked.env, dict)
    if checked.args_when and not templated:
        raise wrong("args_when has no effect without args or a mapping of env")
    if checked.flag_when_false and not any(c is False for c in checked.choices or ()):
        raise wrong("flag_when_false needs false among the choices")
    if checked.flag and checked.flag == checked.flag_when_false:
        raise wrong("flag and flag_when_false must be two arguments, such as x and no-x")
    return checked


def workload(checked: Workload) -> Workload:
    """A shared prefix leaves room for a head of each request's own."""
    if checked.shared_prefix_tokens >= checked.input_tokens:
        raise wrong(
            f"shared_prefix_tokens must be below input_tokens ({checked.input_tokens}), "
            f"not {checked.shared_prefix_tokens}"
        )
    return checked


def _clean(value: str) -> str:
    if "\0" in value:
        raise wrong("may not hold a NUL character")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise wrong("may not hold half of a character (a surrogate)")
    return value


def _named(item: object) -> str:
    printable = item is None or isinstance(item, bool | int | float | str)
    return spelled(item) if printable else "a value"  # type: ignore[arg-type]
