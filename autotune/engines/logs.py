"""Reading a server's log: pieces of lines, phases, and the line that states the cause.

A log is not made of lines. Progress bars overwrite themselves with carriage returns, colours
come as escape sequences, and a warning may be glued behind a bar's last update. `pieces` cuts a
log into what a person would see as lines.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.engines.failures import NOISE
from autotune.records import FailureKind

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BAR_END = re.compile(r"((?:it/s|s/it|[kMG]?i?B/s)\])(?=\S)")
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt)\b(?::|$)"
)
# What stands before a message, one or more of them: SGLang's time stamp and rank, the process
# and the logger as vLLM and Ray write them, torch's rank, the margin of an exception group.
_PREFIX = re.compile(
    r"(?:\[\d{4}-\d\d-\d\d [\d:.]+(?P<rank>(?: (?:DP|PP|CP|TP|EP|ATTN_CP|MOE_DP)\d+)*)\]"
    r"|(?P<process>\((?:Worker_(?P<worker>[A-Z]\w*) |(?:[\w.:-]+ )*)pid=\d+(?:,? \w+=[^\s,)]+)*\))"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:]+(?: \[[^\]]+\])?"
    r"|(?P<torch>\[rank\d+\]:)"
    r"|(?P<margin> {2,}\|))(?: |$)"
)
_WRITER = ("rank", "process", "torch", "margin")
# Host, process, thread, device and source line: other ones in every trial.
_NCCL_PREFIX = re.compile(r"^\S+:\d+:\d+ \[\d+\] (?:\S+:\d+ )?(?=NCCL WARN)")
_FRAME = re.compile(r'[ >]+(?=File ".*", line \d+)')  # `>`: loguru's mark
_MAX_CAUSE = 400


def pieces(text: str) -> Iterator[str]:
    """The visible lines of a log, each update of a progress bar one of them; no empty ones."""
    for raw in re.split(r"[\r\n]+", _COLOUR.sub("", text)):
        for piece in _BAR_END.sub(r"\1\n", raw).split("\n"):
            if piece.strip():
                yield piece.rstrip()


def message_of(line: str) -> str:
    """A line without time stamp, rank, process and logger."""
    return _NCCL_PREFIX.sub("", _written_by(line)[1].strip())


def rank_of(line: str) -> str | None:
    """The rank that wrote a line, e.g. "TP3" or "DP0 TP3"; None if the line does not say."""
    names = [(found["rank"] or found["worker"] or "").strip() for found in _prefixes(line)]
    return next(filter(None, names), None)


def _prefixes(line: str) -> Iterator[re.Match[str]]:
    found = _PREFIX.match(line)
    while found is not None:
        yield found
        found = _PREFIX.match(line, found.end())


def _written_by(line: str) -> tuple[tuple[str, ...], str]:
    """Who wrote a line, as far as it says, and the rest of it with its indentation."""
    prefixes = list(_prefixes(line))
    writer = tuple(found[part] for found in prefixes for part in _WRITER if found[part])
    return writer, line[prefixes[-1].end() if prefixes else 0 :]


class LogReader:
    """Reads a growing log from where it stopped the last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""
        self.offset = 0

    def read(self) -> list[str]:
        """The pieces that were completed since the last call."""
        try:
            with self._path.open("rb") as log:
                log.seek(self.offset)
                data = log.read()
        except FileNotFoundError:
            return []
        self.offset += len(data)
        text = self._rest + self._decode(data)
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        self._rest = text[end:]
        return list(pieces(text[:end]))

    @property
    def unfinished(self) -> str:
        """The last piece so far: a bar that stands, without its end."""
        return next(iter(list(pieces(self._rest))[-1:]), "")


@dataclass(frozen=True)
class Cause:
    """The line that states why a server died, and what stood around it."""

    kind: FailureKind
    line: str
    excerpt: tuple[str, ...]
    index: int  # of the line among the pieces


def first_cause(
    lines: Sequence[str], failure_of: Callable[[str], FailureKind | None]
) -> Cause | None:
    """The first causal line over all ranks, or None if no line states a cause.

    A line that only says that something crashed counts if no other states why: a rank that
    lost its peers may well be heard before the peer that ran out of memory.
    """
    weak: Cause | None = None
    source = _source_lines(lines)
    for index, line in enumerate(lines):
        kind = None if index in source or NOISE.search(line) else failure_of(line)
        if kind is None:
            continue
        if kind is not FailureKind.CRASHED:
            return _cause(kind, lines, index)
        weak = weak or _cause(kind, lines, index)
    return weak or _first_exception(lines)


def _source_lines(lines: Sequence[str]) -> set[int]:
    """Which lines are a program's own text, quoted below the frames of a traceback: it says what
    would be said, such as `raise RuntimeError(f"NCCL error: {reason}")`, not what happened.

    It is indented more than its frame. Writers are followed apart, as their lines may alternate.
    """
    found: set[int] = set()
    frames: dict[tuple[str, ...], int] = {}  # writer -> indentation of its last frame
    for index, line in enumerate(lines):
        writer, text = _written_by(line)
        text = text.expandtabs()
        indentation = len(text) - len(text.lstrip())
        frame = _FRAME.match(text)
        if frame is not None:
            frames[writer] = frame.end()
        elif indentation > frames.get(writer, indentation):
            found.add(index)
        elif text:
            frames.pop(writer, None)
    return found


def _first_exception(lines: Sequence[str]) -> Cause | None:
    """The line that ends the first traceback: what is left when no table knows the cause."""
    in_traceback = False
    for index, line in enumerate(lines):
        if "Traceback (most recent call last)" in line:
            in_traceback = True
        elif in_traceback and _EXCEPTION.match(message_of(line)):
            return _cause(FailureKind.CRASHED, lines, index)
    return None


def _cause(kind: FailureKind, lines: Sequence[str], index: int) -> Cause:
    around = [*lines[max(0, index - 3) : index + 4]]
    tail = lines[max(index + 4, len(lines) - 4) :]
    excerpt = tuple(line[:_MAX_CAUSE] for line in (*around, *tail))
    return Cause(kind, _with_details(lines, index)[:_MAX_CAUSE], excerpt, index)


def _with_details(lines: Sequence[str], index: int) -> str:
    """The line; a validation error of pydantic names its fields only in the lines behind it."""
    line = message_of(lines[index])
    if not re.search(r"validation errors? for", line):
        return line
    details = []
    for detail in (message_of(following) for following in lines[index + 1 : index + 9]):
        if detail.startswith(("Traceback", "For further information", "(", "[")):
            continue
        details.append(re.sub(r" \[type=.*", "", detail))
    return f"{line}: {', '.join(details)}"
