"""`requests.jsonl`: every request of a measurement, with what was seen of it."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, TextIO

from autotune.figures import tpot_seconds
from autotune.stream import Reply


class Journal:
    """Writes the file line by line; the first line holds the seeds."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self._file: TextIO = path.open("w", encoding="utf-8")
        self._zero: float | None = None
        self._line(header)

    def add(
        self,
        phase: str,
        replies: Collection[Reply],
        first_tokens: int,
        outliers: Collection[int] = (),
    ) -> None:
        """Store the replies of a phase; `outliers` are positions among them."""
        if self._zero is None:
            self._zero = min((reply.sent for reply in replies), default=0.0)
        for position, reply in enumerate(replies):
            self._line(_row(phase, reply, first_tokens, self._zero, position in outliers))
        self._file.flush()

    def close(self) -> None:
        """No more lines."""
        self._file.close()

    def _line(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps({k: v for k, v in row.items() if v is not None}) + "\n")


def _row(phase: str, reply: Reply, first: int, zero: float, outlier: bool) -> dict[str, Any]:
    return {
        "phase": phase,
        "index": reply.index,
        "sent_s": round(reply.sent - zero, 6),
        "ttft_ms": _ms(reply.ttft_seconds),
        "tpot_ms": _ms(tpot_seconds(reply, first)),
        "e2e_ms": _ms(reply.e2e_seconds),
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "cached_tokens": reply.cached_tokens,
        "deltas": len(reply.deltas),
        "finish": reply.finish_reason,
        "fault": reply.fault,
        "error": reply.error or None,
        "outlier": outlier or None,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)
