"""What the engine asks of memory that keeps what it holds: `PrefixCache`, as vLLM has it, and SGLang's `RadixCache`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from simulator.memory.blocks import KVBlocks
from simulator.request import Request


@runtime_checkable
class Cache(KVBlocks, Protocol):
    """KV blocks that are found again by what they hold. Those that nobody uses count as free."""

    @property
    def enters_decoded(self) -> bool:
        """Whether blocks are to `enter` as decoding fills them, and not only those of prompts."""

    def hits(self, request: Request, num_tokens: int) -> tuple[int, int]:
        """How many leading blocks of the request's `num_tokens` tokens are cached, and how many of those nobody uses.

        At least one token is left to compute. Looking changes nothing.
        """

    def freed_with(self, held: Mapping[int, int]) -> int:
        """How many blocks come free when these rows, which hold so many, leave."""

    def take_hits(self, request: Request, blocks: int) -> None:
        """The request is admitted, and begins with its `blocks` leading blocks, which are cached."""

    def enter(self, request: Request, full_blocks: int) -> None:
        """The first `full_blocks` blocks of the request are full, or will be after this step."""

    def settle(self, rows: Iterable[int]) -> None:
        """The step has ended that computed prompts of these rows; told before anybody leaves with it."""

    def lose(self, row: int, num_blocks: int) -> None:
        """As `free`, which is for requests that have ended: all blocks of one that was preempted."""

    def end(self, row: int) -> None:
        """The request will not come back."""
