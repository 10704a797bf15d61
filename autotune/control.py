"""The client for all but the measured requests: what a server says of itself, and is told."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx


def with_key(key: str | None) -> dict[str, str]:
    """The headers that an OpenAI-compatible server with a key asks for; none without one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


class ControlClient(httpx.AsyncClient):
    """httpx, with its limit of seconds for the whole answer and not for each read of it.

    A body that trickles, or has no end, would be read for ever.
    """

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Raises httpx.ReadTimeout where the answer's end has not come in time."""
        seconds = request.extensions["timeout"]["read"]
        try:
            async with asyncio.timeout(seconds):
                return await super().send(request, **options)
        except TimeoutError as problem:
            raise httpx.ReadTimeout(f"no end within {seconds:g} s", request=request) from problem
