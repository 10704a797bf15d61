"""In what two runs differ besides their configurations: engines, machine, fixed flags, workload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.experiment import SHIPPED
from autotune.prompt_file import Prompts, prompts_of
from autotune.run import Run
from autotune.rundir import RunDir
from autotune.verdict import engine_versions


def run_differences(a: Run, b: Run) -> Iterator[str]:
    """One line for each setting that is one thing in A and another in B."""
    versions = (engine_versions(a), engine_versions(b))
    for engine in sorted({*versions[0], *versions[1]}):
        one, two = (version.get(engine, "not used") for version in versions)
        if one != two:
            yield f"{engine}: {one} in A, {two} in B"
    yield from _differing(_settings(a), _settings(b), "machine")
    yield from _fixed_differences(a, b)
    yield from _workload_differences(a, b)


def _settings(run: Run) -> Mapping[str, Any]:
    settings = run.machine.get("settings")
    return settings if isinstance(settings, Mapping) else {}


def _fixed_differences(a: Run, b: Run) -> Iterator[str]:
    """What the experiment files say of every launch, and no trial's parameters show."""
    fixed, other = _fixed(a), _fixed(b)
    for engine in (name for name in fixed if name in other):
        yield from _differing(fixed[engine], other[engine], engine)


def _fixed(run: Run) -> Mapping[str, Mapping[str, Any]]:
    """By engine, what its section fixes; whatever of it can be read."""
    engines = run.experiment.get("engines")
    sections = engines.items() if isinstance(engines, Mapping) else ()
    return {
        name: {part: section.get(part) or {} for part in ("command", "args", "env")}
        for name, section in sections
        if isinstance(section, Mapping)
    }


def _workload_differences(a: Run, b: Run) -> Iterator[str]:
    """Prompts differ if they hold something else, whatever the two files are called."""
    (workload, prompts), (other, other_prompts) = _workload(a), _workload(b)
    yield from _differing(workload, other, "workload")
    if not prompts.are(other_prompts):
        yield f"workload prompts: {prompts} in A, {other_prompts} in B"


def _workload(run: Run) -> tuple[Mapping[str, Any], Prompts]:
    workload = dict(run.experiment.get("workload") or {})
    written = str(workload.pop("prompts", SHIPPED))
    return workload, prompts_of(RunDir(run.path), written)


def _differing(a: Any, b: Any, place: str) -> Iterator[str]:
    """Leaves in which two JSON documents differ."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for name in [*a, *(name for name in b if name not in a)]:
            yield from _differing(a.get(name), b.get(name), f"{place} {name}")
    elif a != b:
        yield f"{place}: {a} in A, {b} in B"
