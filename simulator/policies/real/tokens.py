"""Tokens for a real scheduler: its prefix cache finds what batchlab's finds, as equal blocks have equal tokens."""

from collections.abc import Hashable, Mapping
from typing import Any, Self

from simulator.division import cdiv
from simulator.memory.block_keys import BlockKeys, Chains
from simulator.request import Request


class TokenBlocks:
    """Names for the blocks of requests: small numbers from 1 on, equal where the blocks' keys are."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._chains = Chains()
        self._names: dict[Hashable, int] = {}

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> Self | None:
        """Names as a scheduler with these settings takes them; None where it caches no prefixes."""
        return cls(settings["name_size"]) if settings["enable_prefix_caching"] else None

    def of(self, request: Request) -> list[int]:
        """The names of its leading blocks that other requests may have too; the others are its own."""
        keys = BlockKeys(request, self._size, self._chains)
        # A block more than it fills: with asynchronous scheduling one token too many is computed.
        count = min(keys.num_shared, cdiv(request.input_tokens + request.output_tokens, self._size) + 1)
        return [self._names.setdefault(key, len(self._names) + 1) for key in keys.first(count)[:count]]
