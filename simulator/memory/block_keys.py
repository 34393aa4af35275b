"""Keys of KV blocks: equal keys mean equal tokens up to and including the block.

A key is made from token ids, the block hashes of a trace, a shared prefix group, the conversation, or, where nothing is
said of content, from the request itself. A prefix cache knows content by these keys alone.
"""

from __future__ import annotations

from collections.abc import Hashable

from simulator.errors import InputError
from simulator.request import Request

# Numbers for chains of blocks of token ids: (number of the block before, its tokens) -> number.
Chains = dict[tuple[int, tuple[int, ...]], int]


class BlockKeys:
    """Keys of one request's full blocks, by their index in its sequence of prompt and output tokens.

    Unknown tokens are the request's own: a block that holds one has a key that no other request has.
    """

    __slots__ = ("_chains", "_content", "_input_tokens", "_numbers", "_row", "_size", "_tokens")

    def __init__(self, request: Request, block_size: int, chains: Chains) -> None:
        content = request.content
        self._row = request.row
        self._size = block_size
        self._input_tokens = request.input_tokens
        self._content = content
        self._chains = chains
        self._tokens: tuple[int, ...] = ()
        self._numbers: list[int] = []  # of the blocks of token ids, computed on demand
        if content is None:
            return
        if content.prompt_token_ids:
            self._tokens = content.prompt_token_ids + content.output_token_ids
        elif content.block_hashes:
            check_hash_size(request, block_size)

    def __getitem__(self, block: int) -> Hashable:
        """The key of the full block with this index, from 0."""
        content = self._content
        if content is None:
            return self._row, block
        end = (block + 1) * self._size
        if self._tokens:
            return ("ids", self._number(block)) if end <= len(self._tokens) else (self._row, block)
        if content.block_hashes:
            place = (end - 1) // content.hash_block_size
            if end <= self._input_tokens and place < len(content.block_hashes):
                return "hash", content.block_hashes[place], block
        elif end <= min(content.prefix_tokens, self._input_tokens):
            return "group", content.prefix_group, block
        elif content.conversation is not None:
            return "conversation", content.conversation, block
        return self._row, block

    def _number(self, block: int) -> int:
        numbers = self._numbers
        while len(numbers) <= block:
            start = len(numbers) * self._size
            chained = (numbers[-1] if numbers else 0, self._tokens[start : start + self._size])
            numbers.append(self._chains.setdefault(chained, len(self._chains) + 1))
        return numbers[block]


def check_hash_size(request: Request, block_size: int) -> None:
    """Raise InputError unless the size of a request's block hashes and `block_size` divide one another."""
    content = request.content
    assert content is not None
    if content.hash_block_size % block_size and block_size % content.hash_block_size:
        raise InputError(
            f"request {request.request_id} has hashes of {content.hash_block_size}-token blocks, "
            f"which do not go with block_size = {block_size}: one must be a multiple of the other"
        )
