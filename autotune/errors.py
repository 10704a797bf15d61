"""The exception tree: what a user did wrong, what a trial died of, what stops a study.

AutotuneError
├── InputError            a mistake in a file or an argument; exit status 2
├── StudyError            stops the whole study
│   ├── MachineNotClean   processes, ports or GPU memory were left behind; exit status 3
│   ├── NoFeasibleTrial   not one trial could be measured; exit status 1
│   ├── NoMachineLeft     Ray or every host was lost; --resume continues; exit status 4
│   └── StorageLost       the study's database or journal failed; --resume continues; exit status 4
├── Interrupted           the user asked to stop; exit status 130
└── TrialError            one trial could not be measured; the study goes on
    ├── TrialFailed       the configuration's fault: becomes an `infeasible` outcome
    └── TrialLost         the host's or autotune's fault: run again
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.records import Failure, Measurement


class AutotuneError(Exception):
    """Base of everything autotune raises on purpose. `exit_status` is the command's."""

    exit_status = 1


class InputError(AutotuneError):
    """A mistake in a file or an argument; printed as `file:line: field: message`."""

    exit_status = 2

    def __init__(
        self,
        message: str,
        *,
        file: Path | str | None = None,
        line: int | None = None,
        field: str | None = None,
    ) -> None:
        place = f"{file}:{line}" if file is not None and line is not None else file
        parts = [str(part) for part in (place, field, message) if part is not None]
        super().__init__(": ".join(parts))
        self.file, self.line, self.field = file, line, field


class StudyError(AutotuneError):
    """Stops the whole study."""


class MachineNotClean(StudyError):
    """Processes, ports or GPU memory were left behind; says which process holds what."""

    exit_status = 3


class NoFeasibleTrial(StudyError):
    """Not one trial could be measured; the message counts the causes."""


class NoMachineLeft(StudyError):
    """Ray's daemon died, or every host was lost: nothing is wrong with the study itself."""

    exit_status = 4


class StorageLost(StudyError):
    """The study's storage failed while the study ran; what was measured is in the run directory."""

    exit_status = 4


class Interrupted(AutotuneError):
    """The user asked to stop; everything was cleaned up before this was raised."""

    exit_status = 130


class TrialError(AutotuneError):
    """One trial could not be measured; the study goes on."""


class TrialFailed(TrialError):
    """The configuration's fault, with kind, phase and root cause.

    `partial` is what was measured before it failed, if anything: a server that dies at the
    first burst of load keeps its single-stream figure.
    """

    def __init__(self, failure: Failure, partial: Measurement | None = None) -> None:
        super().__init__(str(failure))
        self.failure, self.partial = failure, partial


class TrialLost(TrialError):
    """The host's or autotune's fault; the trial is asked again."""
