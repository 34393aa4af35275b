"""Keys of KV pages as arrays of numbers: for a radix tree, which compares long runs of them.

The numbers say what the keys of `simulator.memory.block_keys.BlockKeys` say: two requests have equal numbers at a place
exactly where those have equal keys, provided that all that comes before is equal too. As arrays they are made, cut and
compared without walking the pages one by one.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from typing import TypeAlias

from simulator.division import cdiv
from simulator.memory.block_keys import check_hash_size
from simulator.request import PromptContent, Request

Pages: TypeAlias = "array[int]"  # of 64-bit numbers; an array cannot be subscripted while running

# Content (a hash, a prefix group, the tokens of a page) -> its number.
Symbols = dict[Hashable, int]

_PLACES = 1 << 32  # numbers reserved for a symbol, one a page of a request


class PageKeys:
    """Numbers of one request's full pages of prompt and output, computed on demand."""

    __slots__ = ("_own", "_pages")

    def __init__(self, request: Request, page_size: int, symbols: Symbols) -> None:
        self._own = -(request.row + 1) * _PLACES  # base of the pages that hold a token of its own
        self._pages: Pages = array("q")
        content = request.content
        if content is None:
            return
        if content.prompt_token_ids:
            self._spell(content.prompt_token_ids + content.output_token_ids, page_size, symbols)
        elif content.block_hashes:
            check_hash_size(request, page_size)
            self._name(content, request.input_tokens // page_size, page_size, symbols)
        else:
            shared = min(content.prefix_tokens, request.input_tokens) // page_size
            self._run(("group", content.prefix_group), 0, shared, symbols)
            if content.conversation is not None:
                symbol = "conversation", content.conversation
                self._own = symbols.setdefault(symbol, len(symbols) + 1) * _PLACES

    def first(self, count: int) -> Pages:
        """The numbers of the first `count` pages."""
        pages = self._pages
        if count > len(pages):
            pages.extend(range(self._own + len(pages), self._own + count))
        return pages[:count]

    def _run(self, symbol: Hashable, start: int, end: int, symbols: Symbols) -> None:
        base = symbols.setdefault(symbol, len(symbols) + 1) * _PLACES
        self._pages.extend(range(base + start, base + end))

    def _spell(self, tokens: tuple[int, ...], size: int, symbols: Symbols) -> None:
        for end in range(size, len(tokens) + 1, size):
            symbol = "ids", tokens[end - size : end]
            self._pages.append(symbols.setdefault(symbol, len(symbols) + 1) * _PLACES)

    def _name(self, content: PromptContent, most: int, size: int, symbols: Symbols) -> None:
        """A page takes the hash of the block that holds its last token."""
        start = 0
        for place, value in enumerate(content.block_hashes, start=1):
            end = min(most, cdiv(place * content.hash_block_size + 1, size) - 1)
            if end > start:
                self._run(("hash", value), start, end, symbols)
                start = end
