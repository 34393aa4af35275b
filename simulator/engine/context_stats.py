"""Statistics of the decode contexts, kept as sums so that a decode step touches no request.

A request's `offset` is its computed tokens less the clock's ticks: it does not change while the request decodes.
"""

from heapq import heappop, heappush


class ContextStats:
    """Maximum and sum of squares of the decode contexts. Adding and removing take O(log n)."""

    __slots__ = ("_count", "_heap", "_size", "_squares", "_sum")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove every request."""
        self._size = self._sum = self._squares = 0
        self._count: dict[int, int] = {}  # requests by offset
        self._heap: list[int] = []  # offsets, negated; one that no request has any more goes when it comes up

    def add(self, offset: int) -> None:
        """A request joins."""
        self._size += 1
        self._sum += offset
        self._squares += offset * offset
        count = self._count
        if offset in count:
            count[offset] += 1
        else:
            count[offset] = 1
            heappush(self._heap, -offset)

    def remove(self, offset: int) -> None:
        """A request leaves."""
        self._size -= 1
        self._sum -= offset
        self._squares -= offset * offset
        left = self._count[offset] - 1
        if left:
            self._count[offset] = left
        else:
            del self._count[offset]

    def at(self, ticks: int) -> tuple[int, int]:
        """The longest context and the sum of squares at so many ticks; zeros for an empty batch."""
        if not self._size:
            return 0, 0
        heap, count = self._heap, self._count
        while -heap[0] not in count:
            heappop(heap)
        return ticks - heap[0], self._squares + ticks * (2 * self._sum + ticks * self._size)
