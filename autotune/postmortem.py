"""Why a server died: from its log and exit status to a failure with kind, phase and cause.

The status alone decides nothing. SGLang kills itself with SIGKILL after any exception, vLLM
ends with status 0 after the death of a worker; the first causal line of the log decides.
"""

from __future__ import annotations

import asyncio
import re

from autotune.engines.base import Engine
from autotune.engines.failures import HOSTS_FAULT
from autotune.engines.logs import Cause, first_cause, pieces
from autotune.errors import TrialFailed, TrialLost
from autotune.leash import Leash
from autotune.masking import mask_text, secrets_of
from autotune.records import Failure, FailureKind, Launch, Phase

_SERVING = frozenset(
    (
        Phase.TURN,
        Phase.ANSWER_CHECK,
        Phase.WARM_UP,
        Phase.SINGLE,
        Phase.PEAK,
        Phase.STOP,
        Phase.DRAINED,
    )
)
_REFUSAL = re.compile(
    r"^(?:\w+\.)*(?:ValueError|TypeError|AssertionError|NotImplementedError|ValidationError)\b"
)
_FLUSH_SECONDS = 0.2
_TREE_SECONDS = 2.0


async def death(
    leash: Leash, engine: Engine, phase: Phase, served_from: int = 0
) -> TrialFailed | TrialLost:
    """The error of a server that ended by itself during `phase`.

    Args:
        served_from: bytes of the log written before it served; a cause after them wins.
    """
    await asyncio.sleep(_FLUSH_SECONDS)  # what its processes are still printing
    found = _examine(leash, engine, phase, served_from)
    if found is None:
        await asyncio.wait({leash.gone}, timeout=_TREE_SECONDS)
        found = _examine(leash, engine, phase, served_from)
    return found or _unexplained(leash, phase)


def _examine(
    leash: Leash, engine: Engine, phase: Phase, served_from: int
) -> TrialFailed | TrialLost | None:
    log = leash.log_path.read_bytes()
    for data in (log[served_from:], log) if served_from else (log,):
        lines = list(pieces(data.decode("utf-8", "replace")))
        lost = next((line for line in lines if HOSTS_FAULT.search(line)), None)
        if lost is not None and phase not in _SERVING:
            return TrialLost(f"not the configuration's fault: {lost.strip()[:300]}")
        cause = first_cause(lines, engine.failure_of)
        if cause is not None:
            failure = failure_of(cause, lines, engine, phase, leash.launch)
            return TrialFailed(failure)
    return None


def evidence(text: str, engine: Engine) -> bool:
    """Whether this piece of log states a cause of death."""
    return first_cause(list(pieces(text)), engine.failure_of) is not None


def failure_of(
    cause: Cause, lines: list[str], engine: Engine, phase: Phase, launch: Launch | None = None
) -> Failure:
    """The failure that a causal line states; its phase is the last that the log began by then,
    unless the server served already."""
    if phase not in _SERVING:
        begun = (engine.phase_of(line) for line in reversed(lines[: cause.index + 1]))
        phase = next((found for found in begun if found is not None), Phase.LAUNCH)
    kind = cause.kind
    if kind is FailureKind.CRASHED and phase is Phase.LAUNCH and _REFUSAL.match(cause.line):
        kind = FailureKind.BAD_FLAGS  # nothing was loaded yet: the arguments were refused
    hint = engine.hint_of(cause.line)
    secrets = secrets_of(launch.argv, launch.env) if launch is not None else ()
    text = cause.line if hint is None else f"{cause.line} ({hint})"
    return Failure(
        kind=kind,
        phase=phase,
        cause=mask_text(text, secrets),
        excerpt=tuple(mask_text(line, secrets) for line in cause.excerpt),
    )


def _unexplained(leash: Leash, phase: Phase) -> TrialFailed | TrialLost:
    status = leash.exit.result() if leash.exit.done() else None
    if status is None:
        return TrialLost("the reaper of the server was killed, and the server with it")
    lines = list(pieces(leash.log_path.read_text(errors="replace")))
    last = lines[-1].strip()[:200] if lines else "nothing"
    secrets = secrets_of(leash.launch.argv, leash.launch.env)
    cause = f"ended by itself with {_said(status)}; its log states no cause and ends with: {last}"
    return TrialFailed(
        Failure(
            kind=FailureKind.CRASHED,
            phase=phase,
            cause=mask_text(cause, secrets),
            excerpt=tuple(mask_text(line[:400], secrets) for line in lines[-8:]),
        )
    )


def _said(status: int) -> str:
    if status == -9:
        return "SIGKILL (the kernel's out-of-memory killer, somebody's kill, or the engine itself)"
    return f"signal {-status}" if status < 0 else f"status {status}"
