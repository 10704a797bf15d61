"""Asks the engine's own argument parser before ten minutes of loading are spent."""

from __future__ import annotations

import asyncio
import contextlib

from autotune.engines.base import Engine
from autotune.engines.launch import server_environment
from autotune.engines.logs import first_cause, message_of, pieces
from autotune.masking import mask_text, secrets_of
from autotune.records import Failure, FailureKind, Launch, Phase


async def preflight(
    engine: Engine, launch: Launch, *, limit_seconds: float = 180
) -> Failure | None:
    """Why the engine refuses these arguments, or None if it does not or could not be asked.

    A preflight that fails itself (no such interpreter, another version of the engine, a time
    out) never rejects anything.
    """
    command = engine.preflight(launch)
    if command is None:
        return None
    found = await _run(command, server_environment(launch), limit_seconds)
    if found is None:
        return None
    status, output = found
    if status not in engine.preflight_rejects:
        return None
    return _refusal(engine, launch, output)


async def _run(
    command: tuple[str, ...], environment: dict[str, str], limit_seconds: float
) -> tuple[int, str] | None:
    environment = environment | {"TMPDIR": "/tmp"}  # the trial's own is made at its launch
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError:
        return None
    try:
        output, _ = await asyncio.wait_for(process.communicate(), limit_seconds)
    except TimeoutError:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return process.returncode or 0, output.decode("utf-8", "replace")


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
