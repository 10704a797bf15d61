"""What a person sees while a study runs: a calm live display, or plain lines without a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.caveats import caveats
from autotune.errors import InputError
from autotune.records import Phase, Progress
from autotune.run import Run, read_run
from autotune.rundir import RunDir
from autotune.search import SearchEnd
from autotune.snapshot import FrontRow, Snapshot

SIMULATION = "SIMULATION: no figure below was measured on real hardware"
_PHASES = (Phase.LOAD, Phase.CAPTURE, Phase.READY, Phase.WARM_UP, Phase.SINGLE, Phase.PEAK)
# Without a terminal: a phase is reported when it changes, but not in quick succession, and
# again when it lasts.
_QUIET_SECONDS = 5.0
_HEARTBEAT_SECONDS = 30.0


class View(Protocol):
    """Something that shows snapshots."""

    def show(self, state: Snapshot) -> None: ...

    def closing_lines(self, end: SearchEnd) -> list[str]: ...


class _Closing:
    """The last lines, the same in every view."""

    def closing_lines(self, end: SearchEnd) -> list[str]:
        # Its own process still lives, and writes nothing any more.
        run = replace(read_run(end.run.path), status={})
        lines = [f"done: {end.reason}", *_front_lines(end.last), *caveats(run)]
        if end.last.simulated:
            lines.insert(0, simulation_line(end.last))
        return [
            *lines,
            f"next: autotune show {end.run.path}",
            f"      autotune report {end.run.path}",
            f"      autotune export {end.run.path} --pick knee > serve.sh",
        ]


class QuietView(_Closing):
    """Shows only the end."""

    def show(self, state: Snapshot) -> None:
        del state


class PlainView(_Closing):
    """A line for each trial that ended, and for each phase that lasts: for logs and pipes."""

    def __init__(self) -> None:
        self._phases: dict[int, str] = {}
        self._launches: int | None = None
        self._spoken = time.monotonic()
        self._labelled = False
        self._noted = 0

    def show(self, state: Snapshot) -> None:
        if state.simulated and not self._labelled:
            self._labelled = True
            print(simulation_line(state), flush=True)
        for progress in state.running:
            self._say_progress(progress)
        self._say_ended(state)
        for note in state.notes[self._noted :]:
            self._say(f"note: {note}")
        self._noted = len(state.notes)

    def _say_progress(self, progress: Progress) -> None:
        silent = time.monotonic() - self._spoken
        changed = self._phases.get(progress.trial) != progress.phase
        if silent > (_QUIET_SECONDS if changed else _HEARTBEAT_SECONDS):
            self._phases[progress.trial] = progress.phase
            self._say(progress_line(progress))

    def _say_ended(self, state: Snapshot) -> None:
        seen = state.launches if self._launches is None else self._launches
        self._launches = state.launches
        if state.launches > seen:
            for line in state.recent[seen - state.launches :]:
                self._say(f"[{_done(state)}] {line}")

    def _say(self, line: str) -> None:
        self._spoken = time.monotonic()
        print(line, flush=True)


class LiveView(_Closing):
    """Redraws one screen: trials under way, the front so far, failures, what is left."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, state: Snapshot) -> None:
        self._live.update(screen(state))


@contextmanager
def live_view(quiet: bool) -> Iterator[View]:
    """The view that fits standard output."""
    if quiet:
        yield QuietView()
    elif not sys.stdout.isatty():
        yield PlainView()
    else:
        with Live(console=Console(), refresh_per_second=4, transient=False) as live:
            yield LiveView(live)


def screen(state: Snapshot) -> Group:
    """The live display."""
    parts: list[Text | Table] = []
    if state.simulated:
        parts.append(Text(simulation_line(state), style="bold yellow"))
    parts.append(Text(summary_line(state), style="bold"))
    parts += [_progress_text(progress) for progress in state.running]
    if state.front:
        parts.append(_front_table(state))
    if state.failures:
        counted = ", ".join(f"{count}x {kind}" for kind, count in sorted(state.failures.items()))
        parts.append(Text(f"failures: {counted}", style="dim"))
    parts += [Text(note, style="yellow") for note in state.notes]
    if state.stopping:
        parts.append(Text(f"stopping: {state.stopping}; cleaning up", style="bold yellow"))
    return Group(*parts)


def simulation_line(state: Snapshot) -> str:
    """That nothing was measured, and which machine is simulated."""
    machines = " and ".join(state.simulated_machines)
    return SIMULATION.replace(":", f" of {machines}:", 1) if machines else SIMULATION


def summary_line(state: Snapshot) -> str:
    """One line about the whole study."""
    parts = [f"{state.name}: {_done(state)}", f"spent {duration(state.spent_seconds)}"]
    if state.budget_seconds is not None:
        parts[-1] += f" of {duration(state.budget_seconds)}"
    if state.front:
        single = max(row.single_stream_tok_s for row in state.front)
        peak = max(row.peak_tok_s for row in state.front)
        parts.append(f"best {single:.1f} single, {peak:,.0f} peak tok/s")
    return " | ".join(parts)


def _done(state: Snapshot) -> str:
    about = "at least" if state.confirming else "about"
    left = f", {about} {duration(state.eta_seconds)} left" if state.eta_seconds else ""
    return f"{state.trials_done} of {state.trials_planned} trials{left}"


def progress_line(progress: Progress) -> str:
    """`trial 7: load: 61/163 shards (2 min 05 s)`; a phase that just began has no time yet."""
    detail = f": {progress.detail}" if progress.detail else ""
    phase = progress.phase.replace("_", " ")
    lasted = f" ({duration(progress.phase_seconds)})" if progress.phase_seconds >= 1 else ""
    return f"trial {progress.trial}: {phase}{detail}{lasted}"


def duration(seconds: float) -> str:
    """`45 s`, `7 min 30 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _progress_text(progress: Progress) -> Text:
    text = Text(f"  trial {progress.trial:<3} ")
    for phase in _PHASES:
        style = "bold cyan" if phase is progress.phase else "dim"
        text.append(f"{phase.replace('_', ' ')} ", style=style)
    text.append(f" {progress.detail} {duration(progress.phase_seconds)}")
    return text


def _front_table(state: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in ("trial", "single tok/s", "peak tok/s"):
        table.add_column(header, justify="right")
    table.add_column("against the baseline", overflow="ellipsis", no_wrap=True)
    for row in state.front[:8]:
        table.add_row(*_cells(row))
    if state.baseline is not None and state.baseline not in state.front:
        table.add_row(*_cells(state.baseline), style="dim")
    return table


def _cells(row: FrontRow) -> tuple[str, str, str, str]:
    return (
        str(row.number),
        f"{row.single_stream_tok_s:.1f}",
        f"{row.peak_tok_s:,.0f}",
        row.params,
    )


def _front_lines(state: Snapshot) -> list[str]:
    rows = [("front", row) for row in state.front]
    if state.baseline is not None and state.baseline not in state.front:
        rows.append(("", state.baseline))
    return [_front_line(label, row) for label, row in rows]


def _front_line(label: str, row: FrontRow) -> str:
    number, single, peak, params = _cells(row)
    return f"{label:5} trial {number:>3}: {single:>7} single, {peak:>7} peak tok/s  {params}"


def status_text(run: Run) -> str:
    """What `status.json` says, and whether anybody still writes it."""
    if not run.status:
        return f"{run.name}: nothing has been written yet"
    state = Snapshot.model_validate(run.status)
    if run.finished:
        state = state.model_copy(update={"eta_seconds": None})
    lines = [summary_line(state)]
    if run.live:
        lines += [progress_line(progress) for progress in state.running]
    else:
        reason = run.summary.get("reason", "its process is gone; --resume continues")
        lines.append(f"{'finished' if run.finished else 'not running'}: {reason}")
    notes = [f"note: {note}" for note in state.notes]
    return "\n".join([*lines, *notes, *_front_lines(state), *caveats(run)])


def print_log(path: Path, trial: int | None, follow: bool) -> None:
    """Print a trial's server log; with `follow`, until the trial has an outcome."""
    run, place = read_run(path), RunDir(path)
    numbers = sorted({*run.unfinished, *(outcome.number for outcome in run.outcomes)})
    if not numbers:
        raise InputError("has no trial yet", file=path)
    number = numbers[-1] if trial is None else trial
    if number not in numbers:
        run.outcome(number)  # says which there are
    log = place.trial(number) / "server.log"
    if not log.exists():
        raise InputError(f"trial {number} has no server.log", file=path)
    with log.open(encoding="utf-8", errors="replace") as file:
        while True:
            sys.stdout.write(file.read())
            sys.stdout.flush()
            if not follow or place.outcome_json(number).exists():
                return
            time.sleep(0.5)
