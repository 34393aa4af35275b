"""The paged KV cache itself: pages on the device, pages on the host, and copies between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from gpu_backend.fp8 import E4M3, LARGEST, as_bytes
from gpu_backend.work import Swap, Work
from simulator.hardware.models import Model
from simulator.memory.blocks import BlockTables

_STAGED_BYTES = 256 * 2**20  # of a copy between device and host, at a time


class PagedPool:
    """Keys and values of `num_blocks` pages and the null page 0, for every layer; and `num_host_blocks` on the host.

    `kv` is [layer, block, 2, kv_head, block_size, head_dim] of `dtype`, keys before values. The host's pages are whole,
    all layers together, and pinned where the device is a CUDA one: each is one copy.
    """

    def __init__(
        self, model: Model, num_blocks: int, block_size: int, num_host_blocks: int, device: str, dtype: torch.dtype
    ) -> None:
        page = (2, model.kv_heads, block_size, model.head_dim)
        self.block_size = block_size
        self.kv = torch.zeros((model.layers, num_blocks + 1, *page), device=device, dtype=dtype)
        self.host = torch.zeros((num_host_blocks, model.layers, *page), dtype=dtype, pin_memory=device == "cuda")
        self._is_cuda = device == "cuda"
        self._moved = as_bytes(self.kv)
        self._staged = max(1, _STAGED_BYTES // max(1, self.bytes_per_block))

    @property
    def num_blocks(self) -> int:
        """Pages of the device, the null page not counted."""
        return int(self.kv.shape[1]) - 1

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a page: all layers."""
        return int(self.kv[:, 0].numel() * self.kv.element_size())

    def swap_out(self, swap: Swap) -> None:
        """Copy pages of the device to pages of the host."""
        self.moving_out(swap)()

    def swap_in(self, swap: Swap) -> None:
        """Copy pages of the host to pages of the device."""
        self.moving_in(swap)()

    def moving_out(self, swap: Swap) -> Callable[[], None]:
        """Prepare the copies of `swap_out`: the call waits for nothing, and may be done over."""
        parts = [(self._ids(source), target) for source, target in self._in_parts(swap)]

        def move() -> None:
            for source, target in parts:
                staged = self._moved.index_select(1, source).transpose(0, 1).contiguous()
                for place, page in enumerate(target):
                    as_bytes(self.host[page]).copy_(staged[place], non_blocking=self._is_cuda)

        return move

    def moving_in(self, swap: Swap) -> Callable[[], None]:
        """Prepare the copies of `swap_in`, likewise."""
        parts = [(source, self._ids(target)) for source, target in self._in_parts(swap)]

        def move() -> None:
            for source, target in parts:
                size = len(source), *self.host.shape[1:]
                staged = torch.empty(size, device=self.kv.device, dtype=self._moved.dtype)
                for place, page in enumerate(source):
                    staged[place].copy_(as_bytes(self.host[page]), non_blocking=self._is_cuda)
                self._moved.index_copy_(1, target, staged.transpose(0, 1).contiguous())

        return move

    def _in_parts(self, swap: Swap) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Sources and targets of what is copied at a time."""
        parts = [slice(start, start + self._staged) for start in range(0, len(swap.source), self._staged)]
        return [(swap.source[part], swap.target[part]) for part in parts]

    def poison(self, blocks: Iterable[int]) -> None:
        """Fill pages that hold nothing with a number that spoils every answer it gets into.

        Not a NaN: gathered pages are masked by a zero probability, and zero times NaN is NaN.
        """
        listed = list(blocks)
        if listed:
            poison = torch.tensor(LARGEST if self.kv.dtype == E4M3 else 1e4).to(self.kv.dtype)
            self._moved.index_fill_(1, self._ids(listed), as_bytes(poison.view(1)).item())

    def checksums(self, blocks: Sequence[int]) -> list[int]:
        """Return a checksum of each page's bits."""
        return _sums(self._moved.index_select(1, self._ids(blocks)).transpose(0, 1))

    def host_checksums(self, blocks: Sequence[int]) -> list[int]:
        """Checksums of pages of the host."""
        return _sums(as_bytes(self.host)[list(blocks)])

    def _ids(self, blocks: Sequence[int]) -> Tensor:
        return torch.tensor(blocks, dtype=torch.int64, device=self.kv.device)


def _sums(pages: Tensor) -> list[int]:
    """Sums of the words of each page, each times an odd number of its place: a page with its rows swapped differs."""
    words = pages.reshape(len(pages), -1).view(torch.int16).to(torch.int64)
    odd = torch.arange(words.shape[1], device=words.device, dtype=torch.int64) * 2 + 1
    listed: list[int] = (words * odd).sum(1).tolist()
    return listed


# Checks of the pages at every step, made by an executor in debug mode.


class Checks:
    """Raise AssertionError where a page is misused; fill pages with poison when they change hands.

    - every page has as many owners as the block manager says, and without a prefix cache one at most
    - free and used pages are all there are
    - tokens are written into pages of their own request, each slot once in a step
    - pages come back from the host as they went
    """

    def __init__(self, pool: PagedPool) -> None:
        self._pool = pool
        self._owned: set[int] = set()
        self._swapped: dict[int, int] = {}  # page of the host -> checksum

    def before(self, work: Work, blocks: BlockTables) -> None:
        """Check the tables, poison new pages, and keep checksums of those that move to the host."""
        owners = Counter(block for table in blocks.tables.values() for block in table)
        assert not owners[0], "the null block is in use"
        assert all(count == blocks.references[block] for block, count in owners.items()), "owners are miscounted"
        assert blocks.shares_blocks or max(owners.values(), default=1) == 1, "a page has two owners"
        free = blocks.num_free
        assert free + len(owners) == blocks.num_blocks == self._pool.num_blocks, "pages are missing"
        self._check_writes(work, blocks)
        leaving = self._pool.checksums(work.swap_out.source) if work.swap_out.source else []
        self._swapped |= dict(zip(work.swap_out.target, leaving, strict=True))
        self._poison(work, set(owners), blocks.shares_blocks)

    def after(self, work: Work) -> None:
        """Check that pages hold on the host what they held on the device, and the reverse for returning ones."""
        target = list(work.swap_out.target)
        if target:
            assert self._pool.host_checksums(target) == [self._swapped[page] for page in target], "swapped out wrongly"
        size = self._pool.block_size
        ends = [(part.table, part.computed // size) for part in work.decodes]
        written = {table[page] for table, page in ends if page < len(table)}
        back = [pair for pair in zip(work.swap_in.source, work.swap_in.target, strict=True) if pair[1] not in written]
        if back:
            found = self._pool.checksums([page for _, page in back])
            assert found == [self._swapped[page] for page, _ in back], "swapped in wrongly"
        used = {page for part in work.parts for page in part.table}
        self._pool.poison(sorted(set(work.swap_out.source) - self._owned - used))

    def _check_writes(self, work: Work, blocks: BlockTables) -> None:
        size = self._pool.block_size
        written: set[tuple[int, int]] = set()
        for part in work.parts:
            for place in range(part.computed, part.computed + len(part.tokens)):
                if place // size >= len(part.table):
                    assert part.is_held, f"row {part.row} computes beyond its pages"
                    continue
                block = part.table[place // size]
                slot = block, place % size
                assert block, f"row {part.row} writes to the null block"
                assert slot not in written, f"slot {slot} is written twice"
                written.add(slot)
            assert part.table == blocks.tables[part.row], f"row {part.row} uses pages that are not its own"

    def _poison(self, work: Work, owned: set[int], shares_blocks: bool) -> None:
        """Poison pages without an owner, and those that are taken and not yet written.

        A page of a prefix cache keeps its content without an owner: there, only pages that are written anew, from
        their first slot on, are poisoned.
        """
        pool = self._pool
        begun: set[int] = set()
        size = pool.block_size
        for part in work.parts:
            first = -(-part.computed // size)
            last = -(-(part.computed + len(part.tokens)) // size)
            begun.update(part.table[first:last])
        if not shares_blocks:
            begun |= self._owned - owned
        pool.poison(sorted(begun - set(work.swap_out.source)))
        self._owned = owned
