"""JSON that somebody else wrote: a server, a tool, a person."""

from __future__ import annotations

import json
from typing import Any


def foreign_json(text: str | bytes) -> Any:
    """The parsed text.

    Raises ValueError whatever is wrong with it, also for arrays nested a thousand deep, of which
    the standard library makes a RecursionError.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
