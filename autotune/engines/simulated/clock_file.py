"""The file through which a simulated server and its client share one virtual clock.

Six 8-byte words, mapped by both sides: the server's time (s), the speed (virtual seconds a real
second), the moment the client sleeps until (infinity if it does not), a counter that the client
moves whenever it looks at the clock, the number of events it has taken, and its thread. Aligned
words are written whole, so no lock.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import threading
from pathlib import Path

SIZE = 48
NAME = "simulated.clock"
DEFAULT_SPEED = 4000.0  # ten minutes of loading in a sixth of a second
_DOUBLE, _COUNT = struct.Struct("<d"), struct.Struct("<Q")


class ClockFile:
    """The mapped words; creates the file if it is not there."""

    def __init__(self, path: Path, speed: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fresh = os.fstat(handle).st_size < SIZE
            if fresh:
                os.ftruncate(handle, SIZE)
            self._words = mmap.mmap(handle, SIZE)
        finally:
            os.close(handle)
        if fresh:
            self.speed, self.wake = speed, math.inf

    @property
    def now(self) -> float:
        """The server's time, seconds."""
        return float(_DOUBLE.unpack_from(self._words, 0)[0])

    @now.setter
    def now(self, seconds: float) -> None:
        _DOUBLE.pack_into(self._words, 0, seconds)

    @property
    def speed(self) -> float:
        """Virtual seconds a real second."""
        return float(_DOUBLE.unpack_from(self._words, 8)[0])

    @speed.setter
    def speed(self, speed: float) -> None:
        _DOUBLE.pack_into(self._words, 8, speed)

    @property
    def wake(self) -> float:
        """The earliest time the client sleeps until; infinity if it does not sleep."""
        return float(_DOUBLE.unpack_from(self._words, 16)[0])

    @wake.setter
    def wake(self, seconds: float) -> None:
        _DOUBLE.pack_into(self._words, 16, seconds)

    @property
    def touches(self) -> int:
        """Moves while the client works."""
        return int(_COUNT.unpack_from(self._words, 24)[0])

    @property
    def taken(self) -> int:
        """Events that the client has taken in."""
        return int(_COUNT.unpack_from(self._words, 32)[0])

    @property
    def client(self) -> int:
        """The thread that looked last, by its number on this host; 0 if none has."""
        return int(_COUNT.unpack_from(self._words, 40)[0])

    def take(self) -> None:
        """The client has taken one more event."""
        _COUNT.pack_into(self._words, 32, self.taken + 1)
        self._sign()

    def touch(self) -> None:
        """The client is awake."""
        _COUNT.pack_into(self._words, 24, self.touches + 1)
        self._sign()

    def _sign(self) -> None:
        _COUNT.pack_into(self._words, 40, threading.get_native_id())
