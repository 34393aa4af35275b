"""The block keys of the requests that a prefix cache has to do with."""

import sys
from collections.abc import Iterable

from simulator.memory.block_keys import BlockKeys, Chains
from simulator.request import Request


class RequestKeys:
    """Keys by request, worked out once for each.

    `num_telling` counts the requests whose answers others may find: what decoding fills of them has to enter the cache
    in time. What others decode is their own, and need have entered only when they leave.

    With speculative decoding a key may cover the `lookahead` tokens behind its block too, which the drafter has read;
    or the last block of every hit is dropped (`drops_hit_block`). A block is found if `behind` tokens or more follow it
    in the sequence: one is left to compute, and what its key covers is known.
    """

    __slots__ = ("_chains", "_keys", "behind", "block_size", "drops_hit_block", "lookahead", "num_telling")

    def __init__(self, block_size: int, lookahead: int = 0, *, drops_hit_block: bool = False) -> None:
        self.block_size = block_size
        self.lookahead = lookahead
        self.behind = max(1, lookahead)
        self.drops_hit_block = drops_hit_block
        self.num_telling = 0
        self._keys: dict[int, BlockKeys] = {}
        self._chains: Chains = {}

    def __len__(self) -> int:
        return len(self._keys)

    def of(self, request: Request) -> BlockKeys:
        """The keys of this request."""
        keys = self._keys.get(request.row)
        if keys is None:
            keys = self._keys[request.row] = BlockKeys(request, self.block_size, self._chains, self.lookahead)
            self.num_telling += keys.tells_answer
        return keys

    def end(self, row: int) -> None:
        """Forget the keys of a request."""
        keys = self._keys.pop(row, None)
        if keys is not None:
            self.num_telling -= keys.tells_answer

    def steps_to_hit(self, request: Request, hits: int, decoding: Iterable[tuple[Request, int]]) -> int:
        """Decode steps until a request with so many leading blocks in the cache may find another there.

        `decoding` are those who may fill it, with the tokens of theirs that are known by now. As long as no other
        request comes or goes, blocks are only evicted besides.
        """
        size = self.block_size
        steps = sys.maxsize
        keys = self.of(request)
        if keys.num_shared <= hits:
            return steps
        awaited = keys.first(hits + 1)[hits]
        full = (hits + 1) * size
        for other, tokens in decoding:
            theirs = self.of(other)
            if theirs.num_shared > hits and tokens < full and theirs.first(hits + 1)[hits] == awaited:
                steps = min(steps, full - tokens)
        return steps
