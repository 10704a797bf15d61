"""A request inside the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.engines.simulated.noise import AcceptSampler

Sink = Callable[["Sequence", int, bool], None]
"""Called with the request, the number of tokens that are new, and whether it is finished."""


@dataclass(eq=False, slots=True)
class Sequence:
    """One generation: what was asked, how far it is, and where its tokens go."""

    prompt_tokens: int
    max_tokens: int
    sink: Sink
    text_hash: int
    blocks: tuple[int, ...] = ()  # chained hashes of the prompt's 64-token blocks
    step_factor: float = 1.0
    accept: AcceptSampler | None = None
    arrived: float = 0.0
    cached_tokens: int = 0
    prefilled: int = 0
    generated: int = 0
    pending: int = 0  # generated, not sent yet
    cycles: int = 0
    finish_reason: str = "length"
    aborted: bool = False
    error: str | None = None

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV cache it takes."""
        return self.prefilled + self.generated

    @property
    def left(self) -> int:
        """Tokens still to be generated."""
        return self.max_tokens - self.generated
