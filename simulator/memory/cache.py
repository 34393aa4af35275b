"""The protocol of KV memory with a prefix cache: vLLM's `PrefixCache` or `PrefixLedger`, and SGLang's `RadixCache`."""

from collections.abc import Iterable, Mapping
from typing import Protocol, cast, runtime_checkable

from simulator.memory.blocks import KVBlocks, SwappableBlocks
from simulator.memory.request_keys import RequestKeys
from simulator.request import Request


@runtime_checkable
class Cache(KVBlocks, Protocol):
    """KV blocks that are found again by their content. Cached blocks that no request uses count as free.

    Nothing is swapped beside a prefix cache: the constructors take the number of host blocks and do not use it.
    """

    @property
    def keys(self) -> RequestKeys | None:
        """Keys of the requests at hand; None where no block enters that decoding fills, but those of prompts alone."""

    def hits(self, request: Request, num_tokens: int) -> tuple[int, int]:
        """Cached leading blocks of the request's `num_tokens` tokens, and how many of these no request uses.

        At least one token is left to compute. The call changes nothing.
        """

    def freed_with(self, held: Mapping[int, int]) -> int:
        """Blocks that come free when all rows of `held` leave; `held` maps a row to the blocks it holds."""

    def take_hits(self, request: Request, blocks: int) -> None:
        """Admit the request with its first `blocks` blocks, which are cached."""

    def enter(self, request: Request, full_blocks: int) -> None:
        """Note that the request's first `full_blocks` blocks are full, at the latest after this step."""

    def settle(self, rows: Iterable[int]) -> None:
        """Note that what was computed of the prompts of these rows is known, in this order."""

    def lose(self, row: int, num_blocks: int) -> None:
        """Free the blocks of a preempted request; `free` is for finished ones."""

    def abort(self, row: int, num_blocks: int, num_computed_tokens: int) -> None:
        """Free the blocks of an aborted request; what it computed stays cached."""

    def clear(self) -> None:
        """Forget all content; no request may hold a block."""

    def end(self, row: int) -> None:
        """Forget the content of a request that has ended."""


_kinds: dict[type, tuple[bool, bool]] = {}


def kinds_of(blocks: KVBlocks) -> tuple[SwappableBlocks | None, Cache | None]:
    """The blocks as what else they are; None for what they are not. A class is looked at once, as that takes long."""
    kind = type(blocks)
    if kind not in _kinds:
        _kinds[kind] = isinstance(blocks, SwappableBlocks), isinstance(blocks, Cache)
    can_swap, caches = _kinds[kind]
    return cast("SwappableBlocks", blocks) if can_swap else None, cast("Cache", blocks) if caches else None
