"""Log lines in SGLang's and vLLM's own formats, stamped with virtual time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from autotune.engines.simulated.timekeeper import Timekeeper


class Log:
    """Writes lines to a file descriptor at once, as an unbuffered log does."""

    def __init__(self, clock: Timekeeper, fd: int = 2) -> None:
        self._clock, self._fd = clock, fd
        self._epoch = time.time() - clock.now
        self._stamped, self._stamp = (-1, ""), ""

    def raw(self, text: str) -> None:
        """Write text as it is: bars, tracebacks, usage messages."""
        data = text.encode()
        while data:
            data = data[os.write(self._fd, data) :]

    def stamp(self, style: str) -> str:
        """The virtual time of day in `style` (strftime)."""
        second = int(self._epoch + self._clock.now)
        if (second, style) != self._stamped:
            self._stamped = (second, style)
            self._stamp = time.strftime(style, time.localtime(second))
        return self._stamp


class SGLangLog(Log):
    """`[2026-11-29 12:01:53 TP0] message`; no rank with one GPU or for the main process."""

    def __init__(self, clock: Timekeeper, tp: int) -> None:
        super().__init__(clock, fd=2)
        self.tp = tp

    def main(self, message: str) -> None:
        """A line of the main process."""
        self.raw(f"[{self.stamp('%Y-%m-%d %H:%M:%S')}] {message}\n")

    def rank(self, message: str, rank: int = 0) -> None:
        """A line of one rank."""
        suffix = f" TP{rank}" if self.tp > 1 else ""
        self.raw(f"[{self.stamp('%Y-%m-%d %H:%M:%S')}{suffix}] {message}\n")

    def ranks(self, message: str) -> None:
        """The same line from every rank."""
        for rank in range(self.tp):
            self.rank(message, rank)

    def http(self, message: str) -> None:
        """A line of uvicorn."""
        self.main(f"INFO:     {message}")


class VLLMLog(Log):
    """`(APIServer pid=3748) INFO 11-29 12:36:36 [entry.py:136] message` on standard output."""

    def __init__(self, clock: Timekeeper, tp: int, pid: int) -> None:
        super().__init__(clock, fd=1)
        self.tp, self.pid = tp, pid
        self.core_pid = 0
        self.worker_pids: list[int] = []

    def main(self, message: str, place: str = "api_utils.py:286", level: str = "INFO") -> None:
        """A line of the API server."""
        self._line(f"APIServer pid={self.pid}", level, place, message)

    def core(self, message: str, place: str = "core.py:133", level: str = "INFO") -> None:
        """A line of EngineCore."""
        self._line(f"EngineCore pid={self.core_pid}", level, place, message)

    def rank(
        self, message: str, rank: int = 0, place: str = "gpu_worker.py:1", level: str = "INFO"
    ) -> None:
        """A line of a worker."""
        name = f"Worker_TP{rank}" if self.tp > 1 else "Worker"
        self._line(f"{name} pid={self.worker_pids[rank]}", level, place, message)

    def http(self, message: str) -> None:
        """A line of uvicorn."""
        self.raw(f"INFO:     {message}\n")

    def _line(self, who: str, level: str, place: str, message: str) -> None:
        self.raw(f"({who}) {level} {self.stamp('%m-%d %H:%M:%S')} [{place}] {message}\n")


def bar(label: str, done: int, total: int, seconds: float) -> str:
    """One update of a tqdm bar, carriage return first."""
    share = done / total if total else 1.0
    left = seconds / done * (total - done) if done else 0.0
    rate = (
        f"{seconds / done:.2f}s/it"
        if done and seconds >= done
        else (f"{done / seconds:.2f}it/s" if done and seconds else "?it/s")
    )
    eta = _clock(left) if done else "?"
    blocks = "█" * int(share * 10)
    return f"\r{label} {share:4.0%}|{blocks:<10}| {done}/{total} [{_clock(seconds)}<{eta}, {rate}]"


def shard_bar(label: str, done: int, total: int, seconds: float) -> str:
    """One update of the weight loader's bar."""
    rate = f"{seconds / done:.2f}s/it" if done else "?it/s"
    eta = _clock(seconds / done * (total - done)) if done else "?"
    share = done / total if total else 1.0
    return f"\r{label}: {share:4.0%} Completed | {done}/{total} [{_clock(seconds)}<{eta}, {rate}]"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:02d}:{rest:02d}"


def traceback_text(frames: Iterable[tuple[str, int, str, str]], last: str) -> str:
    """A Python traceback: (file, line, function, source) per frame, then the exception."""
    lines = ["Traceback (most recent call last):"]
    for file, number, function, source in frames:
        lines += [f'  File "{file}", line {number}, in {function}', f"    {source}"]
    return "\n".join([*lines, last])
