"""What the fields of an experiment file promise each other: names, conditions, flags, entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from autotune import conditions
from autotune.effects import deciding, expressions_of, templates_apply
from autotune.experiment_errors import Problem, nearest, problems_error
from autotune.experiment_flags import nothing_is_given_twice
from autotune.expressions import ExpressionError, evaluate, is_parameter_name, names
from autotune.records import FIGURES, OBJECTIVES, Value
from autotune.templates import PLACEHOLDERS, expressions_in
from autotune.yaml_lines import Where

if TYPE_CHECKING:
    from autotune.experiment import Experiment


def checked(experiment: Experiment) -> Experiment:
    """The experiment itself; raises every problem found, the basic ones first."""
    for rules in _STAGES:
        problems = [problem for rule in rules for problem in rule(experiment)]
        if problems:
            raise problems_error(problems)
    return experiment


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
        listed = {conditions.spelled(value) for value in conditions.representatives(parameter)}
        effects = {} if parameter.prior is None else parameter.prior.single | parameter.prior.peak
        for text in sorted(effects.keys() - listed):
            yield ("parameters", name, "prior"), f"{text} is no value; {nearest(text, listed)}"


def _expressions_have_values(experiment: Experiment) -> Iterator[Problem]:
    parameters, order = experiment.parameters, conditions.in_order(experiment.parameters)
    for where, text in _all_expressions(experiment):
        owner = str(where[1]) if where[0] == "parameters" else None
        wanted, texts = deciding(parameters, [*names(text), *([owner] if owner else [])])
        for values in conditions.combinations(parameters, wanted, texts):
            active = conditions.active(parameters, order, values)
            if owner and where[2] != "when" and not _looked_at(experiment, where, active):
                continue
            problem = _no_value(text, active)
            if problem:
                yield where, problem
                break


def _looked_at(experiment: Experiment, where: Where, active: Mapping[str, Value]) -> bool:
    """Whether the expression at `where`, not a condition, is evaluated in this configuration."""
    name = str(where[1])
    if name not in active or where[2] == "args_when":
        return name in active
    return templates_apply(experiment.parameters[name], active)


def _no_value(text: str, active: Mapping[str, Value]) -> str | None:
    try:
        if isinstance(evaluate(text, active), list):
            return f"`{text}` gives a list: take one of its values"
    except ExpressionError as error:
        values = {n: v for n, v in active.items() if n in names(text)}
        shown = ", ".join(f"{n} = {conditions.spelled(v)}" for n, v in values.items())
        return f"{error} (with {shown})"
    return None


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


Rule = Callable[["Experiment"], Iterator[Problem]]

_STAGES: tuple[tuple[Rule, ...], ...] = (
    (_parameter_names, _engine_parameter, _placeholders_exist, _figures_exist),
    (_names_exist,),
    (_no_cycles, _everything_reaches_the_launch, _priors_fit, _expressions_have_values),
    (nothing_is_given_twice, _known_good_fits),
)
"""Later stages rely on what earlier ones checked."""
