"""Which requests a server runs: who waits, who prefills, who decodes, and who is put back.

It knows the KV cache's room and nothing of time: what a step costs, and when it is taken, is the
scheduler's business.
"""

from __future__ import annotations

import math
from collections import deque

from autotune.engines.simulated.models import Model
from autotune.engines.simulated.prefix_cache import PrefixCache
from autotune.engines.simulated.requests import Sequence
from autotune.engines.simulated.settings import Settings


def effective_max_running(model: Model, settings: Settings, kv_tokens: int) -> int:
    """How many requests run at once: the asked limit, the engine's own, and half the KV pool."""
    context = settings.context or model.context
    if settings.max_running is not None:
        asked = settings.max_running
    elif settings.engine == "vllm":
        asked = 1024
    else:
        asked = 48 if settings.spec_steps else min(max(kv_tokens * 512 // context, 2048), 4096)
    return max(1, min(asked, kv_tokens // 2))


class Batch:
    """The requests of one server. `tokens_a_step` is the most that a step may give a request."""

    def __init__(
        self, settings: Settings, kv_tokens: int, max_running: int, tokens_a_step: int
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self.running: list[Sequence] = []
        self._settings = settings
        self._kv_tokens, self._max_running = kv_tokens, max_running
        self._tokens_a_step = tokens_a_step
        self._prefixes = PrefixCache(kv_tokens if settings.prefix_cache else 0)

    def __len__(self) -> int:
        return len(self.waiting) + len(self.prefilling) + len(self.running)

    @property
    def kv_used(self) -> int:
        """Tokens of KV cache that running requests take."""
        return sum(s.kv_tokens for s in self.running) + sum(s.kv_tokens for s in self.prefilling)

    def forget_prefixes(self) -> None:
        """Empty the prefix cache."""
        self._prefixes.clear()

    def admit(self, most: float = math.inf) -> None:
        """Let those that wait prefill, as many as limits and KV cache allow, `most` at the most."""
        reserve = self._reserve()
        used = self.kv_used
        budget = self._settings.chunk_tokens - sum(_unread(s) for s in self.prefilling)
        while self.waiting and budget > 0 and len(self.prefilling) < most:
            if len(self.running) + len(self.prefilling) >= self._max_running:
                return
            sequence = self.waiting[0]
            need = sequence.prompt_tokens + sequence.generated
            reserve += self._expected_new(sequence)
            alone = not self.running and not self.prefilling
            if used + need + reserve > self._kv_tokens and not alone:
                return
            self.waiting.popleft()
            self._reuse_prefix(sequence)
            self.prefilling.append(sequence)
            used += need
            budget -= need - sequence.prefilled

    def _reserve(self) -> float:
        return sum(self._expected_new(s) for s in (*self.running, *self.prefilling))

    def _expected_new(self, sequence: Sequence) -> float:
        """KV that a running request is still expected to take; too little leads to retraction."""
        if self._settings.engine == "vllm":
            return 0.0
        return 0.35 * self._settings.conservativeness * sequence.left

    def _reuse_prefix(self, sequence: Sequence) -> None:
        hit = self._prefixes.reuse(sequence.blocks)
        sequence.prefilled = min(hit, sequence.prompt_tokens - 1)
        if sequence.generated == 0:  # one that was retracted finds its own prompt again
            sequence.cached_tokens = sequence.prefilled

    def chunk(self, tokens: int) -> list[tuple[Sequence, int]]:
        """What the next prefill of so many tokens reads of which request."""
        taken: list[tuple[Sequence, int]] = []
        for sequence in self.prefilling:
            part = min(tokens, _unread(sequence))
            taken.append((sequence, part))
            tokens -= part
            if tokens <= 0:
                break
        return taken

    def was_read(self, sequence: Sequence, tokens: int) -> bool:
        """So many tokens of a prompt were prefilled; True if the request decodes from now on."""
        sequence.prefilled += tokens
        if _unread(sequence) > 0:
            return False
        sequence.prefilled = sequence.prompt_tokens
        self.prefilling.remove(sequence)
        self.running.append(sequence)
        return True

    def retract(self) -> int:
        """Put the youngest requests back until the next steps fit; returns how many."""
        growth = len(self.running) * self._tokens_a_step
        count = 0
        while len(self.running) > 1 and self.kv_used + growth > self._kv_tokens:
            sequence = self.running.pop()
            sequence.prefilled = 0
            self.waiting.appendleft(sequence)
            count += 1
        return count

    def drop_aborted(self) -> None:
        """Without those whose clients are gone."""
        if any(s.aborted for s in (*self.running, *self.prefilling, *self.waiting)):
            self.running = [s for s in self.running if not s.aborted]
            self.prefilling = [s for s in self.prefilling if not s.aborted]
            self.waiting = deque(s for s in self.waiting if not s.aborted)


def _unread(sequence: Sequence) -> int:
    """Tokens still to be prefilled; of a request that was put back, also those it had generated."""
    return sequence.prompt_tokens + sequence.generated - sequence.prefilled
