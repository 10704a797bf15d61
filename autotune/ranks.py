"""How far each rank of a server has come, by what the ranks write into its log."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_LAG_SECONDS = 10.0  # ranks write the same step up to seconds apart, and that is no news
_MOST_NAMED = 4


@dataclass
class Ranks:
    """The furthest step that each rank began. Ranks wait for each other at every step of a
    start, so the one that is behind is where to look when nothing moves.

    Steps that not every rank writes must not be noted: they would accuse those that keep silent.
    """

    _furthest: dict[str, tuple[int, str]] = field(default_factory=dict)
    _lead: int = -1
    _led_at: float = 0.0

    def note(self, rank: str, step: int, detail: str, now: float) -> None:
        """A rank began a step, the `step`-th in the engine's order, at `now` in seconds.

        A step that a rank begins again, as a restarted one does, changes nothing.
        """
        if step > self._furthest.get(rank, (-1, ""))[0]:
            self._furthest[rank] = (step, detail)
        if step > self._lead:
            self._lead, self._led_at = step, now

    def behind(self, now: float) -> str:
        """Which ranks the others have waited for, and at what, e.g. "TP5 of 8 ranks is still
        loading weights"; "" if none, or not for long."""
        least, detail = min(self._furthest.values(), default=(self._lead, ""))
        if least == self._lead or now - self._led_at < _LAG_SECONDS:
            return ""
        late = [rank for rank, (step, _) in self._furthest.items() if step == least]
        late.sort(key=_by_number)
        more = f" and {len(late) - _MOST_NAMED} more" if len(late) > _MOST_NAMED else ""
        verb = "is" if len(late) == 1 else "are"
        names = ", ".join(late[:_MOST_NAMED]) + more
        return f"{names} of {len(self._furthest)} ranks {verb} still {detail}"


def _by_number(rank: str) -> list[tuple[str, int]]:
    """TP2 before TP10."""
    return [(name, int(number)) for name, number in re.findall(r"(\D+)(\d+)", rank)]
