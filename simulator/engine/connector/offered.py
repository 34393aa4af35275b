"""What a connector offers of a request to the host: chunks of each KV group, and the blocks that hold them.

The rules are those of vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py (0.33), whose line numbers
are given.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.division import cdiv
from simulator.engine.connector.blocks import Connected
from simulator.engine.connector.groups import ConnectedGroups
from simulator.engine.connector.request import ConnectedRequest
from simulator.hardware.kv_groups import LayerCache
from simulator.memory.block_keys import BlockKeys
from simulator.memory.group_pool import NULL
from simulator.memory.group_tables import window_tails
from simulator.memory.offload.access import Access
from simulator.request import Request


class OffloadGroup(NamedTuple):
    """A KV group in chunks of `chunk_blocks` blocks. `window` is how many a hit needs; 0: all from the start."""

    number: int
    cache: LayerCache
    chunk_blocks: int
    window: int
    tables: dict[int, list[int]]

    @property
    def chunk(self) -> int:
        """Tokens of a chunk."""
        return self.cache.block_size * self.chunk_blocks

    def window_before(self, tokens: int) -> int:
        """Chunks that a hit of so many tokens needs: one more where it ends inside a chunk (:364)."""
        if self.cache.kind != "window":
            return self.window
        return max(self.window, cdiv(self.cache.window - 1 + -tokens % self.chunk, self.chunk))


class OffloadGroups:
    """The groups of a memory; `in_order`: as they are looked up, those that need the most first.

    A budget of one block loads `tokens_of_block` tokens of all groups. Windows are kept that end at multiples of `unit`
    tokens; 0: at any.
    """

    def __init__(self, blocks: Connected, chunk_blocks: int) -> None:
        self.has_several = isinstance(blocks, ConnectedGroups)
        self.retention: int | None = None
        if isinstance(blocks, ConnectedGroups):
            plan = blocks.plan
            self.hash_size, self.retention = plan.hash_block_size, blocks.retention
            self.all = [_group(table.number, table.cache, chunk_blocks, table.tables) for table in blocks.tables]
            token_bytes = sum([group.page_bytes // group.cache.block_size for group in plan.groups])
            self.tokens_of_block = plan.bytes_per_block[0] / token_bytes
        else:
            self.hash_size = blocks.block_size
            self.all = [_group(0, LayerCache("full", blocks.block_size), chunk_blocks, blocks.tables)]
            self.tokens_of_block = float(blocks.block_size)
        whole = [group for group in self.all if not group.window]
        self.windows = sorted([group for group in self.all if group.window], key=lambda group: -group.window)
        self.in_order = [*whole, *self.windows]
        chunks = {group.chunk for group in whole} or {max([group.chunk for group in self.all])}
        self.unit = chunks.pop() if len(chunks) == 1 else 0


def _group(number: int, cache: LayerCache, chunk_blocks: int, tables: dict[int, list[int]]) -> OffloadGroup:
    reach = cache.window if cache.kind == "window" else cache.chunk if cache.kind == "chunked" else 0
    return OffloadGroup(number, cache, chunk_blocks, cdiv(reach, cache.block_size * chunk_blocks), tables)


@dataclass(slots=True)
class Part:
    """A request in one group: keys of its chunks, of which `chunks` have been offered, and its blocks by id.

    A block that its window has left still holds its content, and is `NULL` here only when it has been taken anew.
    """

    keys: list[Hashable] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    chunks: int = 0


@dataclass(slots=True)
class Offered:
    """What the connector keeps of a request: its `parts` by group, and its copies under way.

    `ended_tokens` of it are computed, where it has ended; `junction`: see `simulator.memory.grouped.Hit`.
    """

    request: Request
    live: ConnectedRequest
    parts: list[Part]
    access: Access = field(default_factory=Access)
    jobs: set[int] = field(default_factory=set)
    junction: int = 0
    ended_tokens: int = 0
    is_closed: bool = False  # it has ended, and all of it has been offered

    def name(self, groups: OffloadGroups, of_blocks: BlockKeys) -> None:
        """Name the chunks of the tokens that are known by now."""
        num_tokens, places = self.live.num_tokens, self.access.places
        for group, part in zip(groups.all, self.parts, strict=True):
            size = group.chunk
            for chunk in range(len(part.keys), num_tokens // size):
                key = of_blocks[(chunk + 1) * size // groups.hash_size - 1]
                if groups.has_several:
                    key = group.number, key
                part.keys.append(key)
                places[key] = (chunk + 1) * size, group.number

    def storable(self, group: OffloadGroup, num_tokens: int) -> int:
        """Leading chunks that are full of so many tokens (:452)."""
        part = self.parts[group.number]
        return min(num_tokens // group.chunk, len(part.blocks) // group.chunk_blocks, len(part.keys))


class Offer(NamedTuple):
    """Chunks that are offered of a request, and for each group those that were looked at."""

    keys: list[Hashable]
    looked_at: list[range]


def offer_of(groups: OffloadGroups, offered: Offered, num_tokens: int, *, ended: bool) -> Offer:
    """The chunks of so many computed tokens that have not been offered and that a later request may find (:1787).

    Windows are kept where a hit may end; at the end of a request, that is also where it ends.
    """
    keys: list[Hashable] = []
    looked_at: list[range] = []
    prompt, retention = offered.request.input_tokens, groups.retention
    boundaries = [prompt - 1, offered.junction] if offered.junction else [prompt - 1]
    for group in groups.all:
        part, size = offered.parts[group.number], group.chunk_blocks
        start, stop, prompt_stop = part.chunks, offered.storable(group, num_tokens), prompt // group.chunk
        tail = 0  # blocks from one end of windows to the next, where they are kept at the request's end too
        if group.cache.kind == "window" and retention is None and groups.unit % group.cache.block_size == 0:
            tail = groups.unit // group.cache.block_size
        again = ended and tail > 0 and stop != prompt_stop
        if again:  # what was no tail while the request went on may be one now
            start = min(start, (stop * size - stop * size % tail) // size)
        looked_at.append(range(start, max(start, stop)))
        places = range(start * size, stop * size)
        end = 0 if not tail else stop if ended else prompt_stop if stop <= prompt_stop else 0
        kept = _kept(groups, group, places, boundaries, end)
        before = (_kept(groups, group, places, boundaries, prompt_stop) if again else None) or set()
        for chunk in range(start, stop):
            own = range(chunk * size, (chunk + 1) * size)
            if again and chunk < part.chunks and not before.isdisjoint(own):
                continue  # it has been offered
            tails = own if kept is None else kept.intersection(own)
            if tails and part.blocks[own[-1]] != NULL and all(part.blocks[place] != NULL for place in tails):
                keys.append(part.keys[chunk])
    return Offer(keys, looked_at)


def _kept(
    groups: OffloadGroups, group: OffloadGroup, places: range, boundaries: Sequence[int], end: int
) -> set[int] | None:
    """The blocks that may serve a hit, where the request's chunks may end at `end`; None for all."""
    if group.cache.kind != "window":
        return None
    end_place = end * group.chunk_blocks
    return set(window_tails(group.cache, groups.unit, groups.retention, places, boundaries, end_place))


def blocks_of(groups: OffloadGroups, offered: Offered, offer: Offer, stored: Sequence[Hashable]) -> list[list[int]]:
    """The blocks that a store of these keys reads, by group."""
    new = set(stored)
    found = []
    for group, part, places in zip(groups.all, offered.parts, offer.looked_at, strict=True):
        size = group.chunk_blocks
        chunks = [part.blocks[at * size : (at + 1) * size] for at in places if part.keys[at] in new]
        found.append([block for chunk in chunks for block in chunk if block != NULL])
    return found
