"""From settings to the command and environment of one server, and to a script of it.

What a server runs in is built from three layers, the later winning: what the adapter sets, the
experiment's own `env`, and what belongs to the trial alone (its mark, its GPUs, its TMPDIR).
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from autotune.engines.base import ArgValue, Engine, Place
from autotune.errors import InputError
from autotune.flags import may_mean
from autotune.masking import is_secret_flag, is_secret_name, mask_text
from autotune.records import Launch

MARK = "AUTOTUNE_MARK"
LOG_NAME = "server.log"

_OWNED = (MARK, "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
# Ray sets these in its workers; a server that inherits them does not run as it would by hand.
_FROM_RAY = re.compile(r"^(RAY_|PYTHONBREAKPOINT$)")


class Settings(Protocol):
    """What `space.Space.settings` returns."""

    @property
    def engine(self) -> str: ...
    @property
    def command(self) -> tuple[str, ...]: ...
    @property
    def args(self) -> Mapping[str, ArgValue]: ...
    @property
    def env(self) -> Mapping[str, str]: ...


def build_launch(settings: Settings, engine: Engine, place: Place, trial: int) -> Launch:
    """The launch of one trial's server.

    Args:
        settings: command, arguments and environment as the experiment's file gives them.
        place: where it runs; `trial_dir` becomes absolute.

    Raises:
        InputError: the file sets a variable that belongs to autotune.
    """
    trial_dir = place.trial_dir.absolute()
    place = replace(place, trial_dir=trial_dir)
    _refuse_owned(settings.env)
    args = engine.complete(settings.args, place)
    argv = [
        _filled(part, place) for part in (*engine.command(tuple(settings.command)), *rendered(args))
    ]
    mark = f"{trial:04d}-{uuid.uuid4().hex[:16]}"
    env = {**engine.environment(place), **settings.env, **_own_variables(place, mark)}
    return Launch(
        trial=trial,
        engine=engine.name,
        argv=tuple(argv),
        env={name: _filled(value, place) for name, value in env.items()},
        host=place.host,
        port=place.port,
        served_name=place.served_name,
        trial_dir=trial_dir,
        mark=mark,
        gpus=place.gpus,
        cores=place.cores,
    )


def _refuse_owned(env: Mapping[str, str]) -> None:
    for name in _OWNED:
        if name in env:
            raise InputError(
                f"env.{name} is set by autotune for every trial; remove it, and choose GPUs "
                "with CUDA_VISIBLE_DEVICES in front of the autotune command"
            )


def _own_variables(place: Place, mark: str) -> dict[str, str]:
    own = {MARK: mark, "TMPDIR": _temporary_folder(mark), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if place.gpus:
        own["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in place.gpus)
    return own


def _temporary_folder(mark: str) -> str:
    """A folder of the trial's own with a short path: engines put sockets with long names into
    it, and the path of a socket ends at 107 bytes."""
    base = tempfile.gettempdir()
    return f"{base if len(base) <= 32 else '/tmp'}/autotune-{mark}"


def _filled(text: str, place: Place) -> str:
    """`text` with the four placeholders filled in; other braces (JSON) stay as they are."""
    for name in ("port", "host", "served_name", "trial_dir"):
        text = text.replace("{" + name + "}", str(getattr(place, name)))
    return text


def rendered(args: Mapping[str, ArgValue]) -> Iterator[str]:
    """Arguments as words, in the order given."""
    for name, value in args.items():
        flag = flag_of(name)
        if value is None or value is False:
            continue
        if value is True:
            yield flag
        elif isinstance(value, list):
            yield from (flag, *(str(item) for item in value))
        elif isinstance(value, str) and value.startswith("-"):
            yield f"{flag}={value}"  # argparse would take it for the next flag
        else:
            yield from (flag, str(value))


def flag_of(name: str) -> str:
    """The flag of an argument's name: `tp-size` is `--tp-size`, `O` is `-O`, `-x.y` stays."""
    if name.startswith("-"):
        return name
    return f"-{name}" if len(name) == 1 else f"--{name}"


def server_environment(launch: Launch, host: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The whole environment of the server: the host's, without Ray's own, plus the launch's."""
    kept = {name: value for name, value in host.items() if not _FROM_RAY.match(name)}
    return {**kept, "PYTHONUNBUFFERED": "1", **launch.env}


def api_key_of(launch: Launch) -> str | None:
    """The key that the server asks of its clients, None if it asks for none."""
    words = [word for part in launch.argv for word in part.split("=", 1)]
    for flag, value in pairwise(words):
        if may_mean(flag, "--api-key"):
            return value
    return launch.env.get("VLLM_API_KEY") if launch.engine == "vllm" else None


def write_launch_script(launch: Launch, path: Path) -> None:
    """Write a script that starts the same server by hand.

    Secrets are not written: the script asks for the variable that must hold each of them.
    """
    lines = [
        "#!/usr/bin/env bash",
        f"# Starts the server of trial {launch.trial} as autotune did.",
        "set -euo pipefail",
        f"cd {shlex.quote(os.getcwd())}",
        *(_export_line(name, value) for name, value in sorted(launch.env.items())),
        'mkdir -p "$TMPDIR"',
        " \\\n  ".join([f"exec {_pinning(launch)}".rstrip(), *_script_words(launch.argv)]),
    ]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o700)


def _pinning(launch: Launch) -> str:
    return f"taskset --cpu-list {','.join(map(str, launch.cores))}" if launch.cores else ""


def _export_line(name: str, value: str) -> str:
    if is_secret_name(name) and value:
        return f': "${{{name}:?set it to your own}}"; export {name}'
    return f"export {name}={shlex.quote(mask_text(value))}"


def _script_words(argv: tuple[str, ...]) -> Iterator[str]:
    """Quoted words, a flag and its first value on one line; secrets as variables to be set."""
    line, variable = "", ""
    for part in argv:
        if part.startswith("-"):
            if line:
                yield line
            flag, equals, _ = part.partition("=")
            variable = _variable_of(flag) if is_secret_flag(flag) else ""
            line = shlex.quote(part) if not (variable and equals) else f"{flag}={variable}"
            continue
        word = variable or shlex.quote(mask_text(part))
        line = f"{line} {word}" if line else word
    if line:
        yield line


def _variable_of(flag: str) -> str:
    name = re.sub(r"\W+", "_", flag.strip("-")).upper()
    return f'"${{{name}:?set it to your own}}"'
