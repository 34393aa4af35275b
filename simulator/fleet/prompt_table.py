"""A router's memory of the prompts that it sent to each replica: its estimate of what they have cached.

Routers in production keep such an estimate rather than ask: SGLang's router a tree of the prompts of all workers
(sgl-router, `cache_aware`), the endpoint picker of llm-d and of the Gateway API Inference Extension a table of block
hashes with, for each server, the blocks used last (`prefix-cache-scorer`, `lruCapacityPerServer`). Here it is the
latter, in blocks of tokens. A key names a block together with all that comes before it, so the table is a tree.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeAlias

from simulator.memory.block_keys import BlockKeys, Chains
from simulator.request import ArrivingRequest, Request

_Used: TypeAlias = "OrderedDict[Hashable, float]"


class PromptTable:
    """Blocks of prompts by replica: of each the `most` used last."""

    def __init__(self, block_size: int, most: int) -> None:
        self._size = block_size
        self._most = most
        self._holders: dict[Hashable, int] = {}  # the replicas of a block, a bit each
        self._sets: dict[int, int] = {}  # one object of each number among these
        self._used: dict[int, _Used] = {}  # by replica, with the time of its last use; the block used longest ago first
        self._chains: Chains = {}

    def keys(self, request: ArrivingRequest) -> list[Hashable]:
        """The keys of a prompt's full blocks."""
        keys = BlockKeys(Request._make((*request[:4], 1, *request[4:], None)), self._size, self._chains)
        blocks = request.input_tokens // self._size
        known = keys.first(blocks)[:blocks]
        return known + [keys[block] for block in range(len(known), blocks)]

    def longest(self, keys: list[Hashable]) -> tuple[int, list[int]]:
        """The longest prefix in blocks that a replica has been sent, and the numbers of these replicas, rising."""
        holders = self._holders
        found = depth = 0
        for key in keys:
            here = holders.get(key)
            if here is None:
                break
            found, depth = here, depth + 1
        return depth, _numbers(found)

    def shares(self, keys: list[Hashable]) -> dict[int, int]:
        """For each replica that has been sent a first part of these blocks, how many."""
        holders = self._holders
        found: dict[int, int] = {}
        before = depth = 0
        for key in keys:
            here = holders.get(key, 0)
            if here != before:
                for number in _numbers(before & ~here):
                    found[number] = depth
                before = here
            if not here:
                break
            depth += 1
        for number in _numbers(before):
            found[number] = depth
        return found

    def held(self, keys: list[Hashable]) -> dict[int, int]:
        """For each replica, how many of these blocks it was sent, up to the first that none was sent."""
        found: dict[int, int] = {}
        for key in keys:
            here = self._holders.get(key)
            if here is None:
                break
            for number in _numbers(here):
                found[number] = found.get(number, 0) + 1
        return found

    def size(self, number: int) -> int:
        """Blocks remembered of a replica."""
        used = self._used.get(number)
        return 0 if used is None else len(used)

    def add(self, keys: list[Hashable], number: int, now_s: float = 0.0, most: int | None = None) -> None:
        """These blocks were sent to a replica now; beyond `most`, its block used longest ago is forgotten.

        The last block of a prompt counts as used before its first, so that what is kept of a prompt is its beginning.
        """
        used = self._used.get(number)
        if used is None:
            used = self._used[number] = OrderedDict()
        holders, sets = self._holders, self._sets
        bit = 1 << number
        for key in reversed(keys):
            if key in used:
                used.move_to_end(key)
                used[key] = now_s
            else:
                used[key] = now_s
                here = holders.get(key, 0) | bit
                holders[key] = sets.setdefault(here, here)
        self._shorten(number, self._most if most is None else most)

    def trim(self) -> None:
        """Forget of each replica what it has more than `most`."""
        for number in self._used:
            self._shorten(number, self._most)

    def _shorten(self, number: int, most: int) -> None:
        used = self._used[number]
        while len(used) > most:
            key, _ = used.popitem(last=False)
            self._take_out(key, 1 << number)

    def forget(self, before_s: float) -> None:
        """Forget the blocks used last before this time."""
        for number, used in self._used.items():
            while used and next(iter(used.values())) < before_s:
                key, _ = used.popitem(last=False)
                self._take_out(key, 1 << number)

    def _take_out(self, key: Hashable, bit: int) -> None:
        """One replica has a block no longer."""
        here = self._holders[key] & ~bit
        if here:
            self._holders[key] = self._sets.setdefault(here, here)
        else:
            del self._holders[key]


def _numbers(bits: int) -> list[int]:
    """The places of the bits that are set, rising."""
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found
