"""Which parameters apply, what values they may have, and which combinations are forbidden."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from autotune.expressions import holds, literals, names
from autotune.records import Value
from autotune.templates import number_text, tidy

if TYPE_CHECKING:
    from autotune.experiment import Experiment, FloatRange, Forbid, IntRange, Parameter

Parameters = Mapping[str, "Parameter"]

MOST_COMBINATIONS = 20_000
"""Questions about combinations are answered by trying them, up to this many."""

MOST_LISTED = 64
"""A range with more values than this is represented by a few of them."""


def depends_on(parameter: Parameter) -> frozenset[str]:
    """Parameters that decide whether this one applies."""
    return names(parameter.when) if parameter.when else frozenset()


def in_order(parameters: Parameters) -> tuple[str, ...]:
    """All names, each after those that its `when` refers to; the file's order otherwise.

    Parameters that wait for each other are left out: see `cycle`.
    """
    ordered: dict[str, None] = {}
    waiting = list(parameters)
    while ready := [n for n in waiting if depends_on(parameters[n]) <= ordered.keys()]:
        ordered[ready[0]] = None
        waiting.remove(ready[0])
    return tuple(ordered)


def cycle(parameters: Parameters) -> tuple[str, ...]:
    """Parameters whose conditions refer to each other in a circle; empty if none do."""
    stuck = set(parameters) - set(in_order(parameters))
    path: list[str] = []
    name = min(stuck, default=None)
    while name is not None and name not in path:
        path.append(name)
        name = min(depends_on(parameters[name]) & stuck)
    return (*path[path.index(name) :], name) if name else ()


def applies(parameter: Parameter, active: Mapping[str, Value]) -> bool:
    """Whether a parameter exists, given the active ones that its `when` refers to."""
    return parameter.when is None or holds(parameter.when, active)


def active(
    parameters: Parameters, order: Sequence[str], params: Mapping[str, Value]
) -> dict[str, Value]:
    """The part of `params` that applies, in the file's order."""
    kept: dict[str, Value] = {}
    for name in order:
        if name in params and applies(parameters[name], kept):
            kept[name] = tidy(params[name])
    return {name: kept[name] for name in parameters if name in kept}


def completed(
    parameters: Parameters, order: Sequence[str], params: Mapping[str, Value]
) -> dict[str, Value]:
    """`params` with each missing parameter that applies at its default."""
    chosen: dict[str, Value] = {}
    for name in order:
        if applies(parameters[name], chosen):
            chosen[name] = params[name] if name in params else default(parameters[name])
    return {name: chosen[name] for name in parameters if name in chosen}


def default(parameter: Parameter) -> Value:
    """The prior's default if one is given, else the first choice, else the smallest value."""
    if parameter.prior is not None and "default" in parameter.prior.model_fields_set:
        return parameter.prior.default
    if parameter.choices is not None:
        return parameter.choices[0]
    return _range(parameter).low


def forbidden(forbid: Iterable[Forbid], active_params: Mapping[str, Value]) -> str | None:
    """Why this combination is never launched, or None."""
    return next((rule.because for rule in forbid if holds(rule.if_, active_params)), None)


def contains(parameter: Parameter, value: Value) -> bool:
    """Whether `value` is one that the parameter may have."""
    if parameter.choices is not None:
        return any(same(value, choice) for choice in parameter.choices)
    span = _range(parameter)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if parameter.int_ and not isinstance(value, int):
        return False
    if not span.low <= value <= span.high:
        return False
    steps = (value - span.low) / span.step if span.step else 0.0
    return math.isclose(steps, round(steps), abs_tol=1e-6)


def same(left: Value, right: Value) -> bool:
    """Equality that keeps true and 1 apart, and text and numbers."""
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def domain(parameter: Parameter) -> str:
    """The values that a parameter may have, in words."""
    if parameter.choices is not None:
        return "one of " + ", ".join(spelled(choice) for choice in parameter.choices)
    span = _range(parameter)
    kind = "a whole number" if parameter.int_ else "a number"
    step = f" in steps of {spelled(span.step)}" if span.step not in (None, 1) else ""
    return f"{kind} from {spelled(span.low)} to {spelled(span.high)}{step}"


def spelled(value: Value) -> str:
    """A value as it is written in the file."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return number_text(value) if isinstance(value, float) else str(value)


def combinations(
    parameters: Parameters, wanted: frozenset[str], texts: Sequence[str]
) -> Iterator[dict[str, Value]]:
    """Assignments of the wanted parameters, each combination of representative values."""
    listed = sorted(wanted)
    domains = [representatives(parameters[name], texts) for name in listed]
    combinations = itertools.islice(itertools.product(*domains), MOST_COMBINATIONS)
    return (dict(zip(listed, values, strict=True)) for values in combinations)


def highest(parameter: Parameter) -> float:
    """The largest value of a range that its steps reach."""
    span = _range(parameter)
    if span.step is None:
        return span.high
    steps = math.floor((span.high - span.low) / span.step + 1e-9)
    return round(span.low + steps * span.step, 10)


def configurations(parameters: Parameters) -> int | None:
    """How many configurations there are, `forbid` left aside; None if they cannot be counted.

    Parameters that conditions refer to are tried in every combination; the others multiply. If
    that is too much, the result is an upper bound.
    """
    order = in_order(parameters)
    counts = {name: count(parameter) for name, parameter in parameters.items()}
    sizes = {name: number for name, number in counts.items() if number is not None}
    if len(sizes) < len(counts):
        return None
    deciding = sorted(frozenset().union(*map(depends_on, parameters.values())))
    domains = [representatives(parameters[name]) for name in deciding]
    listed = [len(domain) for domain in domains] == [sizes[name] for name in deciding]
    if not listed or math.prod(sizes[name] for name in deciding) > MOST_COMBINATIONS:
        return math.prod(sizes.values())
    branches: dict[tuple[tuple[str, Value], ...], int] = {}
    for values in itertools.product(*domains):
        chosen = active(parameters, order, dict(zip(deciding, values, strict=True)))
        free = [n for n, p in parameters.items() if n not in deciding and applies(p, chosen)]
        branches[tuple(chosen.items())] = math.prod(sizes[name] for name in free)
    return sum(branches.values())


def count(parameter: Parameter) -> int | None:
    """How many values a parameter has; None if they cannot be counted."""
    if parameter.choices is not None:
        return len(parameter.choices)
    span = _range(parameter)
    if span.step is None:
        return None if span.low < span.high else 1
    return math.floor((span.high - span.low) / span.step + 1e-9) + 1


def representatives(parameter: Parameter, expressions: Iterable[str] = ()) -> list[Value]:
    """All values of a short domain; of a long one the ends, and both sides of each literal."""
    if parameter.choices is not None:
        return list(parameter.choices)
    span = _range(parameter)
    number = count(parameter)
    if number is not None and number <= MOST_LISTED and span.step is not None:
        return [tidy(span.low + i * span.step) for i in range(number)]
    edges = {span.low, span.high}
    for literal in (value for text in expressions for value in literals(text)):
        edges |= {literal - 1, literal, literal + 1}
    return [value for value in sorted(edges) if contains(parameter, value)]


def _range(parameter: Parameter) -> IntRange | FloatRange:
    span = parameter.int_ or parameter.float_
    assert span is not None, "a parameter has choices, an int or a float: its model checks that"
    return span


def invalid(experiment: Experiment, params: Mapping[str, Value]) -> str | None:
    """Why `params` is no configuration of the experiment, or None."""
    parameters = experiment.parameters
    for name, value in params.items():
        if name not in parameters:
            return f"{name} is no parameter"
        if not contains(parameters[name], value):
            return f"{name} must be {domain(parameters[name])}, not {spelled(value)}"
    whole = completed(parameters, in_order(parameters), params)
    if missing := sorted(whole.keys() - params.keys()):
        return f"{', '.join(missing)} has no value"
    if superfluous := sorted(params.keys() - whole.keys()):
        return f"{', '.join(superfluous)} does not apply"
    return forbidden(experiment.forbid, whole)
