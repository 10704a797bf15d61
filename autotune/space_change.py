"""Whether a study can go on with an edited experiment file, and what of it still applies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autotune import conditions
from autotune.conditions import Parameters
from autotune.effects import deciding
from autotune.experiment import EngineSection, Experiment, Parameter
from autotune.masking import is_secret_flag, mask_argv, mask_text
from autotune.records import Value

_SAME_FIGURES = ("gpus_per_trial", "workload", "constraints")
_STUDY_ONLY = ("name", "listen", "measure", "budget", "startup", "confirm", "stop")
_SPACE_ONLY = ("known_good", "forbid")
_OBJECTIVE = "measure.single_objective"
_TARGETS = ("flag", "flag_when_false", "env", "args", "args_when", "when")


@dataclass(frozen=True)
class SpaceChange:
    """The differences between two experiments, one line each.

    `compatible` ones leave old trials comparable with new ones: more values, other limits of the
    study. `incompatible` ones do not.
    """

    new: Experiment
    compatible: tuple[str, ...] = ()
    incompatible: tuple[str, ...] = ()

    def old_params_still_valid(self, params: Mapping[str, Value]) -> bool:
        """Whether an old trial's parameters are a configuration of the new file."""
        return conditions.invalid(self.new, params) is None


def space_changes(old: Experiment, new: Experiment, *, same_prompts: bool = False) -> SpaceChange:
    """What changed from `old` to `new`; `same_prompts`: both name prompts that hold the same."""
    compatible: list[str] = []
    if same_prompts:
        now = new.workload.prompts
        compatible += _difference("workload.prompts", old.workload.prompts, now)
        old = old.with_prompts(now)
    incompatible: list[str] = []
    for name in _STUDY_ONLY + _SPACE_ONLY:
        compatible += _difference(name, getattr(old, name), getattr(new, name))
    incompatible += [line for line in compatible if line.startswith(_OBJECTIVE)]
    compatible = [line for line in compatible if line not in incompatible]
    for name in _SAME_FIGURES:
        incompatible += _difference(name, getattr(old, name), getattr(new, name))
    incompatible += _engine_differences(old, new)
    for widens, line in _parameter_differences(old.parameters, new.parameters):
        (compatible if widens else incompatible).append(line)
    return SpaceChange(new, tuple(compatible), tuple(incompatible))


def _difference(name: str, old: object, new: object) -> Iterator[str]:
    """One line a changed key, down to the keys of mappings and models."""
    key = name.rsplit(".", 1)[-1]
    secret = is_secret_flag(f"--{key}" if ".args." in name else key)
    if old == new or secret or _masked(old) == _masked(new):
        return  # a stored file has its secrets masked, and another key gives the same figures
    before, after = _keys(old), _keys(new)
    if before is None or after is None:
        yield f"{name}: was {_shown(old)}, is {_shown(new)}"
        return
    for key in before | after:
        place = f"{name}.{key}"
        if key not in after:
            yield f"{place}: was {_shown(before[key])}, is gone"
        elif key not in before:
            yield f"{place}: is new, {_shown(after[key])}"
        else:
            yield from _difference(place, before[key], after[key])


def _masked(value: object) -> object:
    if isinstance(value, str):
        return mask_text(value)
    command = isinstance(value, tuple) and all(isinstance(word, str) for word in value)
    return mask_argv(value) if command else value  # type: ignore[arg-type]  # a tuple of text


def _keys(value: object) -> dict[str, object] | None:
    if isinstance(value, Mapping):
        return dict(value)
    fields = getattr(type(value), "model_fields", None)
    if fields is None:
        return None
    return {name: getattr(value, name) for name in fields}


def _shown(value: object) -> str:
    value = _masked(value)
    if isinstance(value, EngineSection):
        return " ".join(mask_argv(value.command))
    if value is None or isinstance(value, bool | int | float | str):
        return conditions.spelled(value)
    if isinstance(value, list | tuple):
        text = ", ".join(_shown(item) for item in value)
        return f"[{text}]" if len(text) <= 200 else f"{len(value)} entries"
    return str(value)


def _engine_differences(old: Experiment, new: Experiment) -> Iterator[str]:
    for name, section in old.engines.items():
        if name in new.engines:
            yield from _difference(f"engines.{name}", section, new.engines[name])
        else:
            yield f"engines.{name}: is gone"
    # A new engine comes with a new choice of `engine`: old trials keep their meaning.


def _parameter_differences(old: Parameters, new: Parameters) -> Iterator[tuple[bool, str]]:
    """(whether old trials stay comparable, the difference)."""
    for name in sorted(old.keys() - new.keys()):
        yield False, f"parameters.{name}: is gone"
    for name in sorted(new.keys() - old.keys()):
        yield not _could_apply(name, old, new), f"parameters.{name}: is new"
    for name in sorted(old.keys() & new.keys()):
        place = f"parameters.{name}"
        for target in _TARGETS:
            before, after = getattr(old[name], target), getattr(new[name], target)
            yield from ((False, line) for line in _difference(f"{place}.{target}", before, after))
        yield from ((True, line) for line in _difference(place, old[name].prior, new[name].prior))
        yield from _domain_difference(place, old[name], new[name])


def _could_apply(name: str, old: Parameters, new: Parameters) -> bool:
    """Whether a new parameter applies to any configuration of the old space."""
    wanted, texts = deciding(new, [name])
    order = conditions.in_order(new)
    known = conditions.combinations(old, wanted & old.keys(), texts)
    return any(name in conditions.completed(new, order, values) for values in known)


def _domain_difference(place: str, old: Parameter, new: Parameter) -> Iterator[tuple[bool, str]]:
    before, after = conditions.domain(old), conditions.domain(new)
    if before != after:
        yield _within(old, new), f"{place}: was {before}, is {after}"


def _within(old: Parameter, new: Parameter) -> bool:
    """Whether every old value is still allowed, and numbers stay numbers and choices choices."""
    if (old.choices is None) != (new.choices is None) or bool(old.int_) != bool(new.int_):
        return False
    countless = new.float_ is not None and new.float_.step is None
    if conditions.count(old) is None and not countless:
        return False
    return all(conditions.contains(new, value) for value in conditions.representatives(old))
