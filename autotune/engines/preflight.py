"""Asks the engine's own argument parser before ten minutes of loading are spent."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from dataclasses import dataclass

from autotune.engines.base import Engine
from autotune.engines.launch import server_environment
from autotune.engines.logs import first_cause, message_of, pieces
from autotune.masking import mask_text, secrets_of
from autotune.records import Failure, FailureKind, Launch, Phase

_NEEDS_LAUNCH = "only a launch can tell"
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")


@dataclass(frozen=True)
class Answer:
    """What the engine's parser says: `refused` is why not, `unasked` why it said nothing."""

    refused: Failure | None = None
    unasked: str | None = None


async def preflight(
    engine: Engine, launch: Launch, *, limit_seconds: float = 180
) -> Failure | None:
    """Why the engine refuses these arguments, or None if it does not or could not be asked.

    A preflight that fails itself (no such interpreter, another version of the engine, a time
    out) never rejects anything.
    """
    return (await ask(engine, launch, limit_seconds=limit_seconds)).refused


async def ask(engine: Engine, launch: Launch, *, limit_seconds: float = 180) -> Answer:
    """The same, with the reason if the engine could not be asked."""
    command = engine.preflight(launch)
    if command is None:
        program = launch.argv[0]
        missing = shutil.which(program) is None
        return Answer(unasked=f"{program} is not on this host" if missing else _NEEDS_LAUNCH)
    found = await _run(command, server_environment(launch), limit_seconds)
    if isinstance(found, str):
        return Answer(unasked=found)
    status, output = found
    if status in engine.preflight_rejects:
        return Answer(refused=_refusal(engine, launch, output))
    return Answer() if status == 0 else Answer(unasked=_why_unasked(command, launch, found))


async def _run(
    command: tuple[str, ...], environment: dict[str, str], limit_seconds: float
) -> tuple[int, str] | str:
    """Exit status and output, or why there are none."""
    environment = environment | {"TMPDIR": "/tmp"}  # the trial's own is made at its launch
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        return f"{command[0]} cannot be started: {error.strerror}"
    try:
        output, _ = await asyncio.wait_for(process.communicate(), limit_seconds)
    except TimeoutError:
        return f"no answer within {limit_seconds:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return process.returncode or 0, output.decode("utf-8", "replace")


def _why_unasked(command: tuple[str, ...], launch: Launch, found: tuple[int, str]) -> str:
    """What a preflight that failed itself said last."""
    status, output = found
    lines = list(pieces(output))
    if not lines:
        return f"its parser ended with status {status} and said nothing"
    missing = _NO_MODULE.search(lines[-1])
    if missing:
        return f"{command[0]} cannot import {missing[1]}"
    return mask_text(message_of(lines[-1]), secrets_of(launch.argv, launch.env))


def _refusal(engine: Engine, launch: Launch, output: str) -> Failure:
    lines = list(pieces(output))
    cause = first_cause(lines, engine.failure_of)
    text = cause.line if cause is not None else message_of(lines[-1]) if lines else "refused"
    hint = engine.hint_of(text)
    secrets = secrets_of(launch.argv, launch.env)
    return Failure(
        kind=FailureKind.BAD_FLAGS if cause is None else _kind(cause.kind),
        phase=Phase.PREPARE,
        cause=mask_text(text if hint is None else f"{text} ({hint})", secrets),
        excerpt=tuple(mask_text(line, secrets) for line in lines[-6:]),
    )


def _kind(kind: FailureKind) -> FailureKind:
    """Nothing was launched: what is not for want of support is for the sake of the flags."""
    return kind if kind is FailureKind.UNSUPPORTED else FailureKind.BAD_FLAGS
