"""Keys of KV pages as arrays of numbers: for a radix tree, which compares long runs of them.

The numbers say what the keys of `simulator.memory.block_keys.BlockKeys` say: two requests have equal numbers at a place
exactly where those have equal keys, provided that all that comes before is equal too. As arrays they are made, cut and
compared without walking the pages one by one.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from itertools import accumulate
from typing import TypeAlias

from simulator.memory.block_keys import num_shared_blocks, stretches
from simulator.request import Request

Pages: TypeAlias = "array[int]"  # of 64-bit numbers; an array cannot be subscripted while running

# Content (a hash, a prefix group, the tokens of a page) -> its number.
Symbols = dict[Hashable, int]

PLACES = 1 << 32  # numbers reserved for a symbol, one a page of a request


class PageKeys:
    """Numbers of one request's full pages of prompt and output, computed on demand."""

    __slots__ = ("_num_shared", "_own", "_pages", "_request", "_size", "_symbols")

    def __init__(self, request: Request, page_size: int, symbols: Symbols) -> None:
        self._request = request
        self._size = page_size
        self._symbols = symbols
        self._num_shared = num_shared_blocks(request, page_size)
        self._own = -(request.row + 1) * PLACES  # base of the pages that hold a token of its own
        self._pages: Pages = array("q")

    def first(self, count: int) -> Pages:
        """The numbers of the first `count` pages."""
        pages = self._pages
        start = len(pages)
        if start < count:
            stop = min(count, self._num_shared)
            if start < stop:
                symbols = self._symbols
                for kind, name, first, end in stretches(self._request, self._size, start, stop):
                    base = symbols.setdefault((kind, name), len(symbols) + 1) * PLACES
                    pages.extend(range(base + first, base + end))
            pages.extend(range(self._own + len(pages), self._own + count))
        return pages[:count]


def chained(pages: Pages) -> list[Hashable]:
    """A name for each page of a sequence, which says what comes before it, too."""
    return list(accumulate(pages, lambda before, page: hash((before, page))))
