"""From the launch that was measured to the one that serves: the same flags, another place.

What autotune added to measure (its mark, its temporary folder, its port and name) goes; what
made the figures stays. Host, port and secrets become variables, written as each format does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from autotune.caveats import forbidden_members
from autotune.engines.launch import MARK, flag_of
from autotune.experiment import Startup
from autotune.masking import MASK, is_secret_name
from autotune.records import Outcome
from autotune.run import Run

PORT = 8000
HOST = "127.0.0.1"  # a server without a key is for this machine, unless somebody says otherwise
EVERY_INTERFACE = "0.0.0.0"  # inside a container, whose ports are published by hand

_TRIALS_OWN = frozenset({MARK, "TMPDIR", "CUDA_VISIBLE_DEVICES"})
_MEASURING = frozenset(
    {
        "TORCHINDUCTOR_CACHE_DIR",  # shared by the trials, which have no lasting folder
        "VLLM_SERVER_DEV_MODE",  # opens the endpoint that empties the prefix cache
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION",  # a probe in production should generate
        "decode-log-interval",  # finer log lines, read while measuring
        "random-seed",
        "seed",
    }
)
"""Variables and flags that autotune adds; they stay if the experiment itself asks for them."""

_MODEL_FLAGS = ("--model-path", "--model")
_PLACES = {"port": "\0PORT\0", "host": "\0HOST\0"}
_PLACE_FLAGS = {"--port": "port", "--host": "host", "--served-model-name": "served_name"}
_VARIABLE = re.compile(r"\0(\w+)\0")
_FOLDER = "/tmp/autotune-export"

Group = tuple[str, ...]
"""One flag with its values, or one word that belongs to no flag."""


@dataclass(frozen=True)
class ServeCommand:
    """A launch for production, in which host, port and secrets are variables.

    A variable stands in a word as its name between two NULs, which no real word has; `written`
    turns it into what a format needs. `secrets` are the variables that the user has to supply,
    `gpus` how many GPUs it needs, `folder` a directory that must exist, `start_limit_seconds` how
    long the experiment allows a start to take, `warnings` what the user has to know.
    """

    groups: tuple[Group, ...]
    env: Mapping[str, str]
    secrets: tuple[str, ...]
    model: str
    gpus: int
    folder: str | None
    start_limit_seconds: float
    warnings: tuple[str, ...]

    @property
    def argv(self) -> tuple[str, ...]:
        return tuple(word for group in self.groups for word in group)


def serve_command(run: Run, outcome: Outcome) -> ServeCommand:
    """The launch of this trial without what only measuring needed."""
    model = model_of(outcome.command) or run.name
    section = run.experiment.get("engines", {}).get(outcome.engine, {})
    inside = re.compile(rf"[^\s:=,]*/trials/{outcome.number:04d}(?=/|\b)")
    added = {name for name in _MEASURING if f"'{name}'" not in repr(run.experiment)}
    secrets: dict[str, None] = {}
    groups = tuple(
        tuple(inside.sub(_FOLDER, word) for word in _without_secret(group, secrets))
        for group in _placed(outcome.command, section, model)
        if _flag(group).lstrip("-") not in added
    )
    env = {
        name: _secret_variable(name, secrets) if _is_secret(name, value) else value
        for name, value in outcome.env.items()
        if name not in _TRIALS_OWN | added and not inside.search(value)
    }
    visible = outcome.env.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return ServeCommand(
        groups=groups,
        env=env,
        secrets=tuple(secrets),
        model=model,
        gpus=sum(1 for gpu in visible if gpu.strip()),
        folder=_FOLDER if any(_FOLDER in word for group in groups for word in group) else None,
        start_limit_seconds=_start_limit_hours(run) * 3600,
        warnings=tuple(_warnings(run, outcome, secrets)),
    )


def _start_limit_hours(run: Run) -> float:
    """As the experiment reads it ('2' is a number); the default where it is none it would take."""
    section = run.experiment.get("startup")
    if not isinstance(section, Mapping) or "limit_hours" not in section:
        return Startup().limit_hours
    try:
        return Startup.model_validate({"limit_hours": section["limit_hours"]}).limit_hours
    except ValidationError:
        return Startup().limit_hours


def grouped(argv: Iterable[str]) -> list[Group]:
    """The words of a command, each flag together with its values."""
    groups: list[Group] = []
    for word in argv:
        if groups and not _is_flag(word) and _is_flag(groups[-1][0]) and "=" not in groups[-1][0]:
            groups[-1] = (*groups[-1], word)
        else:
            groups.append((word,))
    return groups


def flag_and_values(group: Group) -> tuple[str, tuple[str, ...]]:
    """`("--tp", ("8",))` for `--tp 8` as for `--tp=8`; `("", words)` if there is no flag."""
    if not _is_flag(group[0]):
        return "", group
    flag, equals, value = group[0].partition("=")
    return flag, ((value, *group[1:]) if equals else group[1:])


def model_of(argv: Iterable[str]) -> str | None:
    """The model that a command serves: from its flag, or the word after `serve`."""
    words = tuple(argv)
    for group in grouped(words):
        flag, values = flag_and_values(group)
        if flag in _MODEL_FLAGS and values:
            return values[0]
    after = words[words.index("serve") + 1 :] if "serve" in words else ()
    return after[0] if after and not _is_flag(after[0]) else None


def in_image(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command as it is called in the engine's own image, where no virtual environment is."""
    name = argv[0].rsplit("/", 1)[-1] if argv[0].startswith("/") else argv[0]
    return ("python3" if re.fullmatch(r"python(3(\.\d+)?)?", name) else name, *argv[1:])


def written(word: str, variable: Callable[[str], str]) -> str:
    """`word` with each variable (HOST, PORT, a secret's name) written as `variable(NAME)`."""
    return _VARIABLE.sub(lambda match: variable(match[1]), word)


def has_variable(word: str) -> bool:
    return _VARIABLE.search(word) is not None


def _is_flag(word: str) -> bool:
    return re.match(r"--?[A-Za-z]", word) is not None


def _flag(group: Group) -> str:
    return flag_and_values(group)[0]


def _placed(argv: tuple[str, ...], section: Mapping[str, Any], model: str) -> list[Group]:
    """The command with production's host, port and served name where the trial's stood."""
    fields = _PLACES | {"served_name": model}
    words = [
        _filled(template, fields) if _places_in(template) and _matches(template, word) else word
        for word, template in _with_template(argv, section.get("command"))
    ]
    args = section.get("args") or {}
    templates = {
        flag_of(str(name)): str(value) for name, value in args.items() if _places_in(str(value))
    }
    templates |= {flag: f"{{{place}}}" for flag, place in _PLACE_FLAGS.items()}
    groups = []
    for group in grouped(words):
        flag, values = flag_and_values(group)
        if flag in templates:
            values = (_filled(templates[flag], fields), *values[1:])
            group = (flag, *values) if "=" not in group[0] else (f"{flag}={values[0]}",)
        groups.append(group)
    return groups


def _with_template(argv: tuple[str, ...], command: Any) -> Iterator[tuple[str, str]]:
    templates = [str(word) for word in command] if isinstance(command, list) else []
    for index, word in enumerate(argv):
        yield word, templates[index] if index < len(templates) else ""


def _places_in(template: str) -> bool:
    return any(f"{{{name}}}" in template for name in ("port", "host", "served_name"))


def _matches(template: str, word: str) -> bool:
    parts = re.split(r"\{\w+\}", template)
    return re.fullmatch(".+".join(map(re.escape, parts)), word) is not None


def _filled(template: str, fields: Mapping[str, str]) -> str:
    for name, value in fields.items():
        template = template.replace(f"{{{name}}}", value)
    return template


def _is_secret(name: str, value: str) -> bool:
    return MASK in value or (bool(value) and is_secret_name(name))


def _without_secret(group: Group, secrets: dict[str, None]) -> Group:
    flag, values = flag_and_values(group)
    if not any(_is_secret(flag, value) for value in values):
        return group
    variable = _secret_variable(flag or "SECRET", secrets)
    return (flag, variable) if flag else (variable,)


def _secret_variable(name: str, secrets: dict[str, None]) -> str:
    variable = re.sub(r"\W+", "_", name.strip("-")).upper()
    secrets[variable] = None
    return f"\0{variable}\0"


def _warnings(run: Run, outcome: Outcome, secrets: Iterable[str]) -> Iterator[str]:
    if run.point(outcome.number) is None:
        yield _without_figures(outcome)
    if (because := forbidden_members(run).get(outcome.number)) is not None:
        yield f"the experiment forbids it by now: {because}"
    for name in secrets:
        yield f"{name} is a secret and was not written: supply it yourself"
    if outcome.simulated:
        yield "measured on a simulated server: the figures are those of no machine"
    for override in outcome.overrides:
        yield (f"{override.setting}: asked {override.asked}, the server ran {override.effective}")
    yield from (text for text in outcome.warnings if not _is_override(text, outcome))


def _without_figures(outcome: Outcome) -> str:
    if outcome.failure is None:
        return "this trial has no complete measurement, or failed when launched again"
    return f"trial {outcome.number} failed: {outcome.failure}"


def _is_override(text: str, outcome: Outcome) -> bool:
    return any(text.startswith(f"{override.setting}: asked ") for override in outcome.overrides)
