"""What the fields of an experiment file promise each other: names, conditions, flags, entries."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from autotune import conditions
from autotune.experiment_errors import Problem, nearest, problems_error
from autotune.expressions import ExpressionError, evaluate, is_parameter_name, names
from autotune.records import FIGURES, OBJECTIVES, Value
from autotune.templates import PLACEHOLDERS, expressions_in
from autotune.yaml_lines import Where

if TYPE_CHECKING:
    from autotune.experiment import Experiment, Parameter

MOST_COMBINATIONS = 20_000
"""Questions about combinations are answered by trying them, up to this many."""


def checked(experiment: Experiment) -> Experiment:
    """The experiment itself; raises every problem found, the basic ones first."""
    for rules in _STAGES:
        problems = [problem for rule in rules for problem in rule(experiment)]
        if problems:
            raise problems_error(problems)
    return experiment


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


def _all_expressions(experiment: Experiment) -> Iterator[tuple[Where, str]]:
    for name, parameter in experiment.parameters.items():
        for where, text in expressions_of(parameter):
            yield ("parameters", name, *where), text
    for index, rule in enumerate(experiment.forbid):
        yield ("forbid", index, "if"), rule.if_


def _parameter_names(experiment: Experiment) -> Iterator[Problem]:
    for name in experiment.parameters:
        if not is_parameter_name(name) or name in PLACEHOLDERS:
            yield (
                ("parameters", name),
                "is no name for a parameter: use letters, digits and underscores, "
                f"and no word of the language ({', '.join(PLACEHOLDERS)}, and, or, not, in, ...)",
            )


def _engine_parameter(experiment: Experiment) -> Iterator[Problem]:
    parameter = experiment.parameters.get("engine")
    engines = set(experiment.engines)
    if parameter is None:
        if len(engines) > 1:
            listed = ", ".join(experiment.engines)
            yield ("engines",), f"several engines need `engine: {{choices: [{listed}]}}`"
        return
    where: Where = ("parameters", "engine")
    if parameter.choices is None or parameter.when is not None:
        yield where, "chooses the engine: it needs choices and no `when`"
        return
    for index, choice in enumerate(parameter.choices):
        if choice not in engines:
            given = nearest(str(choice), engines)
            yield (*where, "choices", index), f"{choice} is not among the engines; {given}"
    for name in engines - set(parameter.choices):
        yield (*where, "choices"), f"leaves out engines.{name}: add it, or remove that section"


def _names_exist(experiment: Experiment) -> Iterator[Problem]:
    for where, text in _all_expressions(experiment):
        try:
            unknown = names(text) - experiment.parameters.keys()
        except ExpressionError as error:
            yield where, str(error)
            continue
        for name in sorted(unknown):
            quoted = f"; text needs quotes: '{name}'" if where[-1] in ("when", "if") else ""
            yield (
                where,
                f"{name} is no parameter; {nearest(name, experiment.parameters)}{quoted}",
            )


def _no_cycles(experiment: Experiment) -> Iterator[Problem]:
    circle = conditions.cycle(experiment.parameters)
    if circle:
        path = " -> ".join(circle)
        yield ("parameters", circle[0], "when"), f"conditions wait for each other: {path}"


def _everything_reaches_the_launch(experiment: Experiment) -> Iterator[Problem]:
    used: set[str] = set()
    for where, text in _all_expressions(experiment):
        used |= names(text) - {str(where[1])}
    for name, parameter in experiment.parameters.items():
        targets = (parameter.flag, parameter.flag_when_false, parameter.env, parameter.args)
        if name != "engine" and name not in used and not any(targets):
            yield ("parameters", name), "changes nothing: give it a flag, env or args"


def _placeholders_exist(experiment: Experiment) -> Iterator[Problem]:
    for name, section in experiment.engines.items():
        fields: dict[Where, object] = {("args", flag): v for flag, v in section.args.items()}
        fields |= {("env", variable): v for variable, v in section.env.items()}
        fields |= {("command", i): word for i, word in enumerate(section.command)}
        for where, value in fields.items():
            for text in expressions_in(value) if isinstance(value, str) else ():
                if text.strip().isidentifier():
                    yield (
                        ("engines", name, *where),
                        f"{{{text}}} is not filled in here; "
                        f"{nearest(text.strip(), PLACEHOLDERS)} (parameters have `args` of "
                        "their own)",
                    )


def _figures_exist(experiment: Experiment) -> Iterator[Problem]:
    figures = {*FIGURES, *OBJECTIVES}
    for name in experiment.constraints:
        if name not in figures:
            yield ("constraints", name), f"is no measured figure; {nearest(name, figures)}"


def _priors_fit(experiment: Experiment) -> Iterator[Problem]:
    for name, parameter in experiment.parameters.items():
        default = conditions.default(parameter)
        if not conditions.contains(parameter, default):
            allowed = conditions.domain(parameter)
            spelled = conditions.spelled(default)
            yield ("parameters", name, "prior"), f"must be {allowed}, not {spelled}"


def _expressions_have_values(experiment: Experiment) -> Iterator[Problem]:
    for where, text in _all_expressions(experiment):
        for values in _combinations(experiment, names(text), [text]):
            if not _guarded(experiment, where, values):
                continue
            try:
                evaluate(text, values)
            except ExpressionError as error:
                shown = ", ".join(f"{k} = {conditions.spelled(v)}" for k, v in values.items())
                yield where, f"{error} (with {shown})"
                break


def _guarded(experiment: Experiment, where: Where, values: Mapping[str, Value]) -> bool:
    """Whether the expression at `where` is evaluated at all with these values."""
    if where[0] != "parameters" or where[2] not in ("args", "env"):
        return True
    guard = experiment.parameters[str(where[1])].args_when
    known = guard is not None and names(guard) <= values.keys()
    return not known or conditions.holds(str(guard), values)


def _combinations(
    experiment: Experiment, wanted: frozenset[str], texts: list[str]
) -> Iterator[dict[str, Value]]:
    """Assignments of the wanted parameters, each combination of representative values."""
    listed = sorted(wanted)
    domains = [conditions.representatives(experiment.parameters[name], texts) for name in listed]
    combinations = itertools.islice(itertools.product(*domains), MOST_COMBINATIONS)
    return (dict(zip(listed, values, strict=True)) for values in combinations)


Writer = tuple[Where, str | None, str]
"""What sets a flag or variable: its place, the parameter or None for an engine, which engine."""


def _writers(experiment: Experiment) -> dict[tuple[str, str], list[Writer]]:
    """(flag or variable, its name) -> everything that sets it."""
    writers: dict[tuple[str, str], list[Writer]] = {}

    def add(kind: str, name: str, where: Where, parameter: str | None, engine: str = "") -> None:
        writers.setdefault((kind, name), []).append((where, parameter, engine))

    for engine, section in experiment.engines.items():
        for flag in section.args:
            add("flag", flag, ("engines", engine, "args", flag), None, engine)
        for variable in section.env:
            add("variable", variable, ("engines", engine, "env", variable), None, engine)
    for name, parameter in experiment.parameters.items():
        where: Where = ("parameters", name)
        for flag in {parameter.flag, parameter.flag_when_false} - {None}:
            key = "flag" if flag == parameter.flag else "flag_when_false"
            add("flag", str(flag), (*where, key), name)
        for flag in parameter.args:
            add("flag", flag, (*where, "args", flag), name)
        variables = [parameter.env] if isinstance(parameter.env, str) else parameter.env or ()
        for variable in variables:
            add("variable", variable, (*where, "env"), name)
    return writers


def _nothing_is_given_twice(experiment: Experiment) -> Iterator[Problem]:
    for (kind, name), writers in _writers(experiment).items():
        for first, second in itertools.combinations(writers, 2):
            if _can_meet(experiment, first, second):
                place = ".".join(str(part) for part in first[0])
                yield second[0], f"the {kind} {name} is given twice, also by {place}: keep one"
                break


def _can_meet(experiment: Experiment, first: Writer, second: Writer) -> bool:
    """Whether both can write in one launch."""
    if first[1] is None and second[1] is None:
        return first[2] == second[2]
    if first[1] == second[1]:
        return True
    wanted, texts = _decisive(experiment, {first[1], second[1], "engine"})
    order = conditions.in_order(experiment.parameters)
    for values in _combinations(experiment, wanted, texts):
        active = conditions.active(experiment.parameters, order, values)
        engine = active.get("engine", next(iter(experiment.engines)))
        if all(_writes(experiment, writer, active, engine) for writer in (first, second)):
            return True
    return False


def _writes(
    experiment: Experiment, writer: Writer, active: Mapping[str, Value], engine: Value
) -> bool:
    where, name, own_engine = writer
    if name is None:
        return engine == own_engine
    if name not in active:
        return False
    guard = experiment.parameters[name].args_when
    templated = "args" in where or isinstance(experiment.parameters[name].env, dict)
    return not (guard and templated) or conditions.holds(guard, active)


def _decisive(experiment: Experiment, roots: set[str | None]) -> tuple[frozenset[str], list[str]]:
    """The parameters that decide whether `roots` apply and write, and their expressions."""
    found: set[str] = set()
    texts: list[str] = []
    pending = [name for name in roots if name in experiment.parameters]
    while pending:
        name = str(pending.pop())
        if name in found:
            continue
        found.add(name)
        parameter = experiment.parameters[name]
        for text in filter(None, (parameter.when, parameter.args_when)):
            texts.append(text)
            pending += names(text)
    return frozenset(found), texts


def _known_good_fits(experiment: Experiment) -> Iterator[Problem]:
    order = conditions.in_order(experiment.parameters)
    for index, entry in enumerate(experiment.known_good):
        problems = list(_entry_problems(experiment, entry, ("known_good", index)))
        yield from problems
        if not problems:
            yield from _entry_applies(experiment, entry, order, ("known_good", index))
    if not experiment.known_good:
        yield from _entry_applies(experiment, {}, order, ("parameters",))


def _entry_problems(
    experiment: Experiment, entry: Mapping[str, Value], where: Where
) -> Iterator[Problem]:
    for name, value in entry.items():
        parameter = experiment.parameters.get(name)
        if parameter is None:
            yield (*where, name), f"is no parameter; {nearest(name, experiment.parameters)}"
        elif not conditions.contains(parameter, value):
            allowed, spelled = conditions.domain(parameter), conditions.spelled(value)
            yield (*where, name), f"must be {allowed}, not {spelled}"


def _entry_applies(
    experiment: Experiment, entry: Mapping[str, Value], order: tuple[str, ...], where: Where
) -> Iterator[Problem]:
    whole = conditions.completed(experiment.parameters, order, entry)
    for name in entry.keys() - whole.keys():
        condition = experiment.parameters[name].when
        yield (*where, name), f"does not apply here (only when {condition}): remove it"
    reason = conditions.forbidden(experiment.forbid, whole)
    if reason is not None:
        filled = [f"{n} = {conditions.spelled(v)}" for n, v in whole.items() if n not in entry]
        defaults = f" (with the defaults {', '.join(filled)})" if filled else ""
        yield where, f"is forbidden: {reason}{defaults}"


def combinations_of(experiment: Experiment) -> int | None:
    """How many configurations there are, `forbid` left aside; None if they cannot be counted.

    Parameters that conditions refer to are tried in every combination; the others multiply. If
    that is too much, the result is an upper bound.
    """
    parameters, order = experiment.parameters, conditions.in_order(experiment.parameters)
    counts = {name: conditions.count(parameter) for name, parameter in parameters.items()}
    if any(number is None for number in counts.values()):
        return None
    deciding = sorted(frozenset().union(*map(conditions.depends_on, parameters.values())))
    domains = [conditions.representatives(parameters[name]) for name in deciding]
    sizes = [counts[name] or 1 for name in deciding]
    if math.prod(sizes) > MOST_COMBINATIONS or [len(d) for d in domains] != sizes:
        return math.prod(number or 1 for number in counts.values())
    seen: dict[tuple[tuple[str, Value], ...], int] = {}
    for values in itertools.product(*domains):
        chosen = dict(zip(deciding, values, strict=True))
        rest = {name: parameter for name, parameter in parameters.items() if name not in chosen}
        active = conditions.active(parameters, order, chosen)
        applying = [counts[n] or 1 for n, p in rest.items() if conditions.applies(p, active)]
        seen[tuple(active.items())] = math.prod(applying)
    return sum(seen.values())


Rule = Callable[["Experiment"], Iterator[Problem]]

_STAGES: tuple[tuple[Rule, ...], ...] = (
    (_parameter_names, _engine_parameter, _placeholders_exist, _figures_exist),
    (_names_exist,),
    (_no_cycles, _everything_reaches_the_launch, _priors_fit, _expressions_have_values),
    (_nothing_is_given_twice, _known_good_fits),
)
"""Later stages rely on what earlier ones checked."""
