"""The prefix cache: which heads of prompts the KV cache still holds."""

from __future__ import annotations

from collections import OrderedDict

BLOCK_TOKENS = 64


class PrefixCache:
    """Blocks of prompts by their chained hash, the longest unused one given up first.

    A hit of a block implies that all blocks before it were the same, because hashes are chained.
    """

    def __init__(self, kv_tokens: int) -> None:
        self._room = kv_tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def reuse(self, blocks: tuple[int, ...]) -> int:
        """Tokens of these blocks that are cached; all of them are from now on."""
        if not self._room:
            return 0
        hit = 0
        for block in blocks:
            if block not in self._blocks:
                break
            hit += BLOCK_TOKENS
        for block in blocks:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._room:
            self._blocks.popitem(last=False)
        return hit

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()
