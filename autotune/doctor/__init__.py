"""What is wrong with a host, and why it matters to serving speed, before a night is spent on it.

Every judgement is a pure function of readings, so that each can be tried on a recorded host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.doctor.finding import Finding, Level
from autotune.doctor.gpus import gpus, links, peers, power, strangers
from autotune.doctor.host import disk, engines, leftovers, limits, memory
from autotune.machine import open_machine
from autotune.readings import Readings, read_host

__all__ = ["Finding", "examine", "findings_text", "judge"]

_JUDGES = (gpus, peers, links, power, strangers, leftovers, engines, memory, disk, limits)


def examine(
    commands: Mapping[str, Sequence[str]], environments: Mapping[str, Mapping[str, str]]
) -> list[Finding]:
    """The findings on this host, worst first; by engine, what runs it and the variables it gets."""
    return judge(read_host(open_machine(), commands, environments))


def judge(readings: Readings) -> list[Finding]:
    """The findings on a host, worst first."""
    found = [finding for judge_of in _JUDGES for finding in judge_of(readings)]
    order: tuple[Level, ...] = ("error", "warning", "note", "ok")
    return sorted(found, key=lambda finding: order.index(finding.level))


def findings_text(findings: Sequence[Finding]) -> str:
    """The findings as a person reads them: what, why it matters, what to do."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:8}{finding.title}")
        lines += [
            f"        {text}" for text in (finding.why, finding.fix and f"→ {finding.fix}") if text
        ]
    return "\n".join(lines) or "nothing to say"
