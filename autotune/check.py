"""`autotune check` and `autotune doctor`: what can be said before anything is launched."""

from __future__ import annotations

import asyncio
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune import masking
from autotune.engines.base import Engine, Place
from autotune.engines.launch import build_launch
from autotune.engines.preflight import Answer, ask
from autotune.engines.registry import engine_named
from autotune.experiment import Experiment, estimated_hours, load_experiment
from autotune.launchable import idle_gpus, refuse_unlaunchable, refuse_unset_variables
from autotune.prompt_file import NoPromptFile, with_readable_prompts
from autotune.records import Launch, Value
from autotune.space import Space
from autotune.templates import expand

# The port of a printed command; a trial gets a free one of its own.
_SHOWN_PORT = 30000


def check_lines(path: Path) -> Iterator[str]:
    """What an experiment file says, in a few lines.

    Raises:
        InputError: it or its prompts have a mistake, or it asks for what no launch could have.
            On this host only `search` needs engines and prompts, so that missing ones are worth
            a note here.
    """
    experiment = load_experiment(path)
    refuse_unlaunchable(experiment, path)
    space = Space(experiment)
    missing = _missing_prompts(experiment, path)
    size = space.size()
    count = "infinitely many" if size is None else f"{size:,}"
    yield f"{path}: valid; {len(experiment.parameters)} parameters, {count} configurations"
    budget = experiment.budget
    yield (
        f"budget: {budget.trials} trials, about {estimated_hours(experiment):.1f} h "
        "if no trial runs beside another"
    )
    for name, section in experiment.engines.items():
        program = expand(section.command[0])
        if shutil.which(program) is None:
            yield f"note: engines.{name}.command: {program} is not on this host"
    if missing is not None:
        yield f"note: {missing}"
    yield from (f"warning: {text}" for text in idle_gpus(experiment))
    for index, params in enumerate(space.known_good[:1]):
        launch, _ = _launch(experiment, space, params, index)
        yield f"baseline: {shlex.join(masking.mask_argv(launch.argv))}"
        asked = masking.mask_env(dict(space.settings(params).env))
        if asked:
            yield "  with " + " ".join(f"{name}={value}" for name, value in asked.items())


def _missing_prompts(experiment: Experiment, path: Path) -> NoPromptFile | None:
    try:
        with_readable_prompts(experiment, path)
    except NoPromptFile as missing:
        return missing
    return None


def preflight_lines(path: Path) -> Iterator[str]:
    """What each engine's own parser says about each known-good configuration.

    An engine that could not be asked is one line, however many configurations it has.
    """
    experiment = load_experiment(path)
    space = Space(experiment)
    said = set()
    for index, params in enumerate(space.known_good):
        launch, engine = _launch(experiment, space, params, index)
        line = _said_by(engine, asyncio.run(ask(engine, launch)), f"known_good[{index}]")
        if line not in said:
            said.add(line)
            yield line


def _said_by(engine: Engine, answer: Answer, what: str) -> str:
    if answer.unasked is not None:
        return f"{engine.name} could not be asked: {answer.unasked}"
    return f"{what}: refused: {answer.refused.cause}" if answer.refused else f"{what}: not refused"


def _launch(
    experiment: Experiment, space: Space, params: dict[str, Value], index: int
) -> tuple[Launch, Engine]:
    settings = space.settings(params)
    engine = engine_named(settings.engine)
    gpus = tuple(range(experiment.gpus_per_trial))
    place = Place(experiment.listen, _SHOWN_PORT, experiment.name, Path("/tmp"), gpus)
    return build_launch(settings, engine, place, index), engine


def doctor_report(path: Path | None) -> tuple[dict[str, Any], str, bool]:
    """The host's findings as a document and as text, and whether nothing serious was found."""
    from autotune.doctor import examine, findings_text

    findings = examine(*(_launched(path) if path is not None else ({}, {})))
    document = {"findings": [finding.model_dump(mode="json") for finding in findings]}
    healthy = not any(finding.level == "error" for finding in findings)
    return document, findings_text(findings), healthy


def _launched(path: Path) -> tuple[dict[str, tuple[str, ...]], dict[str, dict[str, str]]]:
    """By engine: its command, and the variables it gets."""
    engines = load_experiment(path).engines
    refuse_unset_variables(path)
    return (
        {str(n): tuple(map(expand, section.command)) for n, section in engines.items()},
        {str(n): {k: expand(v) for k, v in s.env.items()} for n, s in engines.items()},
    )
