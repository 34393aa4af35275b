"""Keys of KV blocks: equal keys mean equal tokens up to and including the block.

A key is made from token ids, the block hashes of a trace, a shared prefix group, the conversation, or, where nothing is
said of content, from the request itself. A prefix cache knows content by these keys alone.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable

from simulator.errors import InputError
from simulator.request import PromptContent, Request

# Numbers for names, and for chains of blocks of token ids: (number of the block before, its tokens) -> number.
Chains = dict[tuple[Hashable, Hashable], int]

# A key is a number times `NUMBER`, and the block's place where the number names what goes on for several blocks. With
# `HASHED` the number is a trace's own. Of 32 bits, it is the golden ratio's multiplier (Knuth, TAOCP 3, 6.4): runs of
# keys lie apart in a hash table, where powers of two had them collide.
HASHED = 2_654_435_761
NUMBER = 2 * HASHED
_AT_ONCE = 32  # keys worked out together, as decoding asks for one after the other


class BlockKeys:
    """Keys of one request's full blocks, by their index in its sequence of prompt and output tokens.

    The first `num_shared` blocks may be found in other requests too, and their keys are integers; `tells_answer`: some
    of these hold tokens of the answer. Blocks behind hold a token of which nothing is known, which is the request's
    own: no other request has such a key.
    """

    __slots__ = (
        "_chains",
        "_content",
        "_input_tokens",
        "_known",
        "_row",
        "_size",
        "_tokens",
        "num_shared",
        "tells_answer",
    )

    def __init__(self, request: Request, block_size: int, chains: Chains) -> None:
        content = request.content
        self._row = request.row
        self._size = block_size
        self._input_tokens = request.input_tokens
        self._content = content
        self._chains = chains
        self._tokens: tuple[int, ...] = ()
        self._known: list[Hashable] = []  # of the leading shared blocks, computed on demand
        self.num_shared = 0
        self.tells_answer = False
        if content is None:
            return
        if content.prompt_token_ids:
            self._tokens = content.prompt_token_ids + content.output_token_ids
            self.num_shared = len(self._tokens) // block_size
        elif content.block_hashes:
            check_hash_size(request, block_size)
            hashed = len(content.block_hashes) * content.hash_block_size
            self.num_shared = min(hashed, request.input_tokens) // block_size
        elif content.conversation is not None:
            self.num_shared = sys.maxsize
        else:
            self.num_shared = self._grouped(content)
        self.tells_answer = self.num_shared > request.input_tokens // block_size

    def __getitem__(self, block: int) -> Hashable:
        """The key of the full block with this index, from 0."""
        return self.first(block + 1)[block] if block < self.num_shared else (self._row, block)

    def first(self, blocks: int) -> list[Hashable]:
        """Keys of the leading shared blocks, at least so many where there are: a list that is not to be changed."""
        known = self._known
        start = len(known)
        if start < blocks and start < self.num_shared:
            self._extend(known, start, min(max(blocks, start + _AT_ONCE), self.num_shared))
        return known

    def _extend(self, known: list[Hashable], start: int, stop: int) -> None:
        """Work out the keys of the blocks from `start` to before `stop`."""
        content = self._content
        assert content is not None
        if self._tokens:
            size, chains = self._size, self._chains
            key: Hashable = known[-1] if known else 0
            for first in range(start * size, stop * size, size):
                key = chains.setdefault((key, self._tokens[first : first + size]), (len(chains) + 1) * NUMBER)
                known.append(key)
        elif content.block_hashes:
            size, hash_size = self._size, content.hash_block_size
            while start < stop:
                place = ((start + 1) * size - 1) // hash_size  # of the hash that names the block's last token
                end = min(stop, max(start + 1, (place + 1) * hash_size // size))
                hashed = content.block_hashes[place] * NUMBER + HASHED
                known += range(hashed + start, hashed + end)
                start = end
        else:
            grouped = min(self._grouped(content), stop)
            known += self._named("group", content.prefix_group, start, grouped)
            known += self._named("conversation", content.conversation, max(start, grouped), stop)

    def _grouped(self, content: PromptContent) -> int:
        """Leading blocks that lie wholly in a shared prefix."""
        return min(content.prefix_tokens, self._input_tokens) // self._size

    def _named(self, kind: str, name: str | None, start: int, stop: int) -> range:
        if start >= stop:
            return range(0)
        key = self._chains.setdefault((kind, name), (len(self._chains) + 1) * NUMBER)
        return range(key + start, key + stop)


def check_hash_size(request: Request, block_size: int) -> None:
    """Raise InputError unless the size of a request's block hashes and `block_size` divide one another."""
    content = request.content
    assert content is not None
    if content.hash_block_size % block_size and block_size % content.hash_block_size:
        raise InputError(
            f"request {request.request_id} has hashes of {content.hash_block_size}-token blocks, "
            f"which do not go with block_size = {block_size}: one must be a multiple of the other"
        )
