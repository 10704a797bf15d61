"""How far each rank of a server has come, by what the ranks write into its log."""

from __future__ import annotations

from dataclasses import dataclass, field

_LAG_SECONDS = 10.0  # ranks write the same step up to seconds apart, and that is no news
_MOST_NAMED = 4


@dataclass
class Ranks:
    """The steps that each rank began. Ranks wait for each other at every step of a start, so
    the one that is behind is where to look when nothing moves."""

    _begun: dict[str, list[str]] = field(default_factory=dict)
    _led_at: float = 0.0

    def note(self, rank: str, step: str, now: float) -> None:
        """A rank began a step, at `now` in seconds."""
        most = self._most
        self._begun.setdefault(rank, []).append(step)
        if self._most > most:
            self._led_at = now

    @property
    def _most(self) -> int:
        return max(map(len, self._begun.values()), default=0)

    def behind(self, now: float) -> str:
        """Which ranks the others have waited for, and at what, e.g. "TP5 of 8 ranks is still
        loading weights"; "" if none, or not for long."""
        least = min(map(len, self._begun.values()), default=0)
        if least == self._most or now - self._led_at < _LAG_SECONDS:
            return ""
        late = sorted(rank for rank, steps in self._begun.items() if len(steps) == least)
        more = f" and {len(late) - _MOST_NAMED} more" if len(late) > _MOST_NAMED else ""
        verb = "is" if len(late) == 1 else "are"
        names = ", ".join(late[:_MOST_NAMED]) + more
        step = self._begun[late[0]][-1]
        return f"{names} of {len(self._begun)} ranks {verb} still {step}"
