"""Blocks of finished requests that come free some plans later (`Traits.frees_late`)."""

from collections import deque

from simulator.memory.blocks import KVBlocks


class LateFrees:
    """Blocks of finished requests that come free `plans` plans after the next one; `num_blocks` in all."""

    __slots__ = ("_due", "num_blocks")

    def __init__(self, plans: int) -> None:
        self._due: deque[list[tuple[int, int]]] = deque([[] for _ in range(plans + 1)])
        self.num_blocks = 0

    @property
    def ahead(self) -> tuple[int, ...]:
        """See `View.late_blocks`."""
        return tuple([sum([blocks for _, blocks in freed]) for freed in list(self._due)[:-1]])

    def put_off(self, row: int, num_blocks: int) -> None:
        """A request has finished, whose blocks come free later."""
        self._due[-1].append((row, num_blocks))
        self.num_blocks += num_blocks

    def next_plan(self, blocks: KVBlocks) -> None:
        """A plan is made: free what is due with it."""
        for row, num_blocks in self._due.popleft():
            blocks.free(row, num_blocks)
            self.num_blocks -= num_blocks
        self._due.append([])
