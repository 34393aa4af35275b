"""Runs of KV blocks, and the queue in which those that no request uses come to be allocated anew."""

from collections.abc import Hashable, Iterator


class BlockRun:
    """Blocks at consecutive places of a sequence, from `start` on, which the same requests use.

    `keys` are those of their content; without keys it is the content of the request `row` alone, or nothing is known
    of it. `rest` is what a use of the run goes on with that began before its end was split off.
    """

    __slots__ = ("after", "before", "keys", "references", "rest", "row", "size", "start")

    def __init__(self, row: int, start: int, size: int, keys: list[Hashable] | None = None) -> None:
        self.row = row
        self.start = start
        self.size = size
        self.keys = keys
        self.references = 0
        self.rest: BlockRun | None = None
        self.before = self.after = self  # in the queue


class FreeRuns:
    """Unused runs, the one to be allocated first in front; of a run, the last block comes first."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends = BlockRun(-1, 0, 0)

    def __iter__(self) -> Iterator[BlockRun]:
        run = self._ends.after
        while run is not self._ends:
            yield run
            run = run.after

    @property
    def first(self) -> BlockRun:
        return self._ends.after

    @property
    def last(self) -> BlockRun:
        """The last run; a run of no blocks where the queue is empty."""
        return self._ends.before

    def append(self, run: BlockRun) -> None:
        self.put(run, self._ends)

    def put(self, run: BlockRun, after: BlockRun) -> None:
        """Put a run before the run `after`."""
        before = after.before
        run.before, run.after = before, after
        before.after = after.before = run

    def remove(self, run: BlockRun) -> None:
        before, after = run.before, run.after
        before.after, after.before = after, before
        run.before = run.after = run
