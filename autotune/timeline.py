"""The phases of one trial with their times: `timeline.json`, and what is shown live."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from autotune.clock import Clock, WallClock
from autotune.records import Phase, Progress


def _ignore(_: Progress) -> None:
    """The default listener."""


class Timeline:
    """Which phase a trial is in, since when, and how long each phase took.

    Times are the server's (`clock`), so a simulated trial shows the hours it stands for. The
    file is rewritten at every change of phase, so that a killed trial still tells where it was.
    """

    def __init__(
        self,
        trial: int,
        *,
        clock: Clock | None = None,
        path: Path | None = None,
        listener: Callable[[Progress], None] = _ignore,
    ) -> None:
        self.trial = trial
        self.clock: Clock = clock or WallClock()
        self._path = path
        self._listener = listener
        self._phases: list[tuple[Phase, float, float | None]] = []

    @property
    def phase(self) -> Phase:
        """The phase the trial is in."""
        return self._phases[-1][0] if self._phases else Phase.PREPARE

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds spent in each phase so far, in order; the running phase counts until now."""
        totals: dict[str, float] = {}
        now = self.clock.now()
        for phase, start, end in self._phases:
            totals[phase] = totals.get(phase, 0.0) + (now if end is None else end) - start
        return {phase: round(total, 3) for phase, total in totals.items()}

    def enter(self, phase: Phase, detail: str = "") -> None:
        """End the running phase, begin this one. Entering the running phase changes nothing."""
        if self._phases and self.phase is phase:
            return
        self._close_running()
        self._phases.append((phase, self.clock.now(), None))
        self._write()
        self.note(detail)

    def note(self, detail: str, fraction: float | None = None) -> None:
        """Say what the running phase is doing: `fraction` of it is done (0-1), if known."""
        phase, start, _ = self._phases[-1] if self._phases else (Phase.PREPARE, 0.0, None)
        now = self.clock.now()
        self._listener(
            Progress(
                trial=self.trial,
                phase=phase,
                detail=detail,
                fraction=fraction,
                phase_seconds=now - start,
                total_seconds=now - self._phases[0][1] if self._phases else 0.0,
            )
        )

    def finish(self) -> dict[str, float]:
        """End the running phase; returns the seconds of each."""
        self._close_running()
        self._write()
        return self.seconds

    def _close_running(self) -> None:
        if self._phases and self._phases[-1][2] is None:
            phase, start, _ = self._phases[-1]
            self._phases[-1] = (phase, start, self.clock.now())

    def _write(self) -> None:
        if self._path is None:
            return
        zero = self._phases[0][1]
        rows = [
            {"phase": phase, "start_s": round(start - zero, 3)}
            | ({} if end is None else {"seconds": round(end - start, 3)})
            for phase, start, end in self._phases
        ]
        self._path.write_text(json.dumps(rows, indent=1) + "\n")
