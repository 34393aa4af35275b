"""Checks of the pages at every step, made by an executor in debug mode."""

from __future__ import annotations

from collections import Counter

from gpu_backend.pool import PagedPool
from gpu_backend.work import Work
from simulator.memory.blocks import BlockTables


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
