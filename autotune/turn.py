"""One trial at a time is measured on a host: neighbours may load meanwhile, but not be measured.

Servers on other GPUs of a host share its processor, its memory, its PCIe switches and its power
with the one that is measured. Loads take minutes and measuring takes one, so that taking turns
costs little.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

_POLL_SECONDS = 0.1


@contextlib.asynccontextmanager
async def turn(host: str | None) -> AsyncIterator[None]:
    """Hold the turn of the host of that name while the block runs; None needs no turn.

    The turn is a name in the kernel's table of local sockets: it leaves no file, and whoever
    dies while he holds it has given it back.
    """
    if host is None:
        yield
        return
    with socket.socket(socket.AF_UNIX) as held:
        while not _bound(held, f"\0autotune-turn-{host}"):
            await asyncio.sleep(_POLL_SECONDS)
        yield


def _bound(held: socket.socket, name: str) -> bool:
    try:
        held.bind(name)
    except OSError:
        return False
    return True
