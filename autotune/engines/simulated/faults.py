"""The failures a simulated server can be told to have: `AUTOTUNE_SIM_FAULT`.

The variable holds one or more faults, separated by commas: `name[@phase][:argument]`. Every one
is described in docs/simulator.md; a name that is not here ends the server with a clear message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "AUTOTUNE_SIM_FAULT"


@dataclass(frozen=True)
class Kind:
    """One fault: the phases it can strike in (the first is the default), its argument."""

    phases: tuple[str, ...] = ()
    argument: str | None = None  # the default; None if it takes none
    says: str = ""


KINDS: dict[str, Kind] = {
    "oom": Kind(("load", "kv", "capture", "burst"), says="out of GPU memory"),
    "unsupported": Kind(says="a kernel that this GPU lacks, found after the load"),
    "nccl_hang": Kind(("init", "capture"), says="GPUs 100 % busy, log silent, for ever"),
    "slow_shard": Kind(argument="900", says="one shard takes so many seconds, with no bar update"),
    "rank_dies": Kind(("serve", "load", "capture"), "0", "a rank is killed by signal 9"),
    "rank_exception": Kind(("load", "capture", "serve"), "0", "a rank raises"),
    "orphans": Kind(says="ranks outlive the launcher and ignore SIGTERM"),
    "port_squatter": Kind(says="another process listens on the port before the server does"),
    "no_tokens": Kind(says="/health is 200, answers begin, no token ever comes"),
    "never_answers": Kind(says="requests are accepted and never answered"),
    "garbled": Kind(says="answers are garbage"),
    "fail_requests": Kind(argument="0.1", says="that share of requests gets HTTP 500"),
    "error_in_stream": Kind(argument="0.1", says="that share of streams ends in an error object"),
    "ignored_flag": Kind(argument="", says="that setting is recorded and has no effect"),
    "crash_under_load": Kind(argument="60", says="dies after so many seconds of load"),
    "exit0": Kind(says="exits with status 0 after a second"),
    "exit1": Kind(says="exits with status 1 after a second"),
    "log_flood": Kind(argument="10", says="writes so many MB of log a (real) second"),
    "slow_first_post": Kind(argument="264", says="the first POST takes so many seconds"),
    "ignores_sigterm": Kind(says="SIGTERM has no effect"),
    "memory_stays": Kind(argument="", says="GPU memory stays held; for so many real seconds"),
}


@dataclass(frozen=True)
class Fault:
    """One fault that was asked for."""

    name: str
    phase: str
    argument: str

    @property
    def number(self) -> float:
        """The argument as a number; infinity if it is empty."""
        return float(self.argument) if self.argument else float("inf")


class Faults:
    """All faults of one server, by name."""

    def __init__(self, faults: tuple[Fault, ...] = ()) -> None:
        self._faults = {fault.name: fault for fault in faults}

    def get(self, name: str) -> Fault | None:
        """The fault of that name, if it was asked for."""
        return self._faults.get(name)

    def strikes(self, name: str, phase: str) -> Fault | None:
        """The fault of that name, if it strikes in that phase."""
        fault = self._faults.get(name)
        return fault if fault is not None and fault.phase == phase else None

    def __contains__(self, name: str) -> bool:
        return name in self._faults


def faults_from(env: Mapping[str, str]) -> Faults:
    """The faults asked for in `env`. Raises ValueError with what would be right."""
    words = [word.strip() for word in env.get(VARIABLE, "").split(",") if word.strip()]
    return Faults(tuple(_parse(word) for word in words))


def _parse(word: str) -> Fault:
    head, _, argument = word.partition(":")
    name, _, phase = head.partition("@")
    kind = KINDS.get(name)
    if kind is None:
        raise ValueError(f"{VARIABLE}: unknown fault {name!r}; one of {', '.join(KINDS)}")
    if phase and phase not in kind.phases:
        right = f"one of {', '.join(kind.phases)}" if kind.phases else "no phase"
        raise ValueError(f"{VARIABLE}: {name} takes {right} after the @, not {phase!r}")
    if argument and kind.argument is None:
        raise ValueError(f"{VARIABLE}: {name} takes no argument, but has {argument!r}")
    default_phase = kind.phases[0] if kind.phases else ""
    return Fault(name, phase or default_phase, argument or kind.argument or "")
