"""KV pages with a prefix cache that is a radix tree: SGLang's `UnifiedRadixCache`.

L. Zheng et al., SGLang: Efficient Execution of Structured Language Model Programs (arXiv 2312.07104), section 3, and
python/sglang/srt/mem_cache/unified_radix_cache.py (SGLang 0.5.23), with its page size as our block size; SGLang's
default is 1.

A prompt enters the tree chunk by chunk, after the step that computed the chunk; the rest of a request enters when it
finishes. Prompts of one step therefore do not hit each other. Decoded tokens are private until the request finishes,
and lost when it is retracted. A request locks the path that it uses. Unlocked pages count as free, and are evicted when
an allocation needs them. What is looked up is accessed, whether the request is admitted or not.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from simulator.memory.blocks import OutOfBlocksError
from simulator.memory.page_keys import PageKeys, Pages, Symbols, chained
from simulator.memory.radix_tree import Node, RadixTree
from simulator.request import Request


@dataclass(slots=True)
class Holder:
    """A running request: the end of its locked path, its length, and the full pages after the present step."""

    request: Request
    node: Node
    shared: int
    computed: int = 0


class RadixCache:
    """Counts of pages: in the tree, private to requests, or idle. Duplicates are merged."""

    keys = None
    by_id = None

    def __init__(self, num_blocks: int, num_host_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.tree = RadixTree()
        self._idle = num_blocks
        self._own = 0  # private to requests: not in the tree
        self._holders: dict[int, Holder] = {}
        self._keys: dict[int, PageKeys] = {}
        self._symbols: Symbols = {}

    @property
    def num_free(self) -> int:
        return self._idle + self.tree.unlocked

    # Looking

    def hits(self, request: Request, num_tokens: int) -> tuple[int, int]:
        """Cached leading pages of the request's `num_tokens` tokens, and how many of these no request uses.

        At least one token is left to compute.
        """
        return self.tree.look(self.pages_to_find(request, num_tokens))

    def find(self, request: Request, num_tokens: int) -> tuple[int, int]:
        """As `hits`, but nothing need be left to compute."""
        return self.tree.look(self._keys_of(request).first(num_tokens // self.block_size))

    def by_subtree(self, requests: Sequence[tuple[Request, int]]) -> list[int]:
        """The places of requests, with so many tokens each, depth first (`RadixTree.by_subtree`)."""
        return self.tree.by_subtree([self._keys_of(request).first(n // self.block_size) for request, n in requests])

    def pages_to_find(self, request: Request, num_tokens: int) -> Pages:
        """The pages that may be found of a request: at least one token is left to compute."""
        return self._keys_of(request).first((num_tokens - 1) // self.block_size)

    def names(self, request: Request, blocks: int) -> list[Hashable]:
        """Names of a request's first pages; what the tree tells are `chained` pages, too."""
        return chained(self._keys_of(request).first(blocks))

    def freed_with(self, held: Mapping[int, int]) -> int:
        """Pages that come free when all rows of `held` leave; `held` maps a row to the pages it holds."""
        holders = [self._holders[row] for row in held]
        own = sum(held.values()) - sum([holder.shared for holder in holders])
        return own + self.tree.freed_with([holder.node for holder in holders])

    def _keys_of(self, request: Request) -> PageKeys:
        keys = self._keys.get(request.row)
        if keys is None:
            keys = self._keys[request.row] = PageKeys(request, self.block_size, self._symbols)
        return keys

    # Taking

    def match(self, request: Request, num_tokens: int) -> None:
        """Access the cached leading pages of the request's `num_tokens` tokens."""
        self.tree.match(self._keys_of(request).first(num_tokens // self.block_size))

    def take_hits(self, request: Request, blocks: int) -> None:
        """Lock the path of the request's first `blocks` pages, which `match` has split off."""
        node = self.tree.root
        depth = 0
        pages = self._keys_of(request).first(blocks)
        while depth < blocks:
            node = node.children[pages[depth]]
            depth += len(node.pages)
        assert depth == blocks
        self.tree.lock(node)
        self._holders[request.row] = Holder(request, node, blocks)

    def make_room(self, num_blocks: int) -> None:
        """Evict until so many pages are idle, as far as unlocked ones suffice: `evict_to_free_tokens`."""
        shortfall = num_blocks - self._idle
        if shortfall > 0:
            self._idle += self.tree.evict(min(shortfall, self.tree.unlocked))

    def allocate(self, row: int, num_blocks: int) -> None:
        """Give the request `num_blocks` more private pages, evicting unlocked leaves where idle ones are too few."""
        self.grow(num_blocks, (row,))

    def grow(self, num_blocks: int, rows: Iterable[int]) -> None:
        if num_blocks > self.num_free:
            raise OutOfBlocksError(f"{num_blocks} blocks are asked for, {self.num_free} are free")
        if num_blocks > self._idle:
            self._idle += self.tree.evict(num_blocks - self._idle)
        self._idle -= num_blocks
        self._own += num_blocks

    def enter(self, request: Request, full_blocks: int) -> None:
        """Note that the request's first `full_blocks` pages are full after this step."""
        self._holders[request.row].computed = full_blocks

    def settle(self, rows: Iterable[int]) -> None:
        """Insert what is computed of the prompts of `rows`."""
        for row in rows:
            self._share(self._holders[row])

    def _share(self, holder: Holder) -> None:
        """Insert what a request has computed and lock it; duplicates come free."""
        pages = self._keys_of(holder.request).first(max(holder.computed, holder.shared))
        node, found = self.tree.insert(pages)
        prompt = holder.request.input_tokens // self.block_size
        if 0 < prompt < len(pages):  # split where the prompt ends, so that the answer can be evicted alone (:1254)
            self.tree.insert(pages[:prompt])
        self._own -= len(pages) - holder.shared
        self._idle += found - holder.shared
        self.tree.lock(node)
        self.tree.unlock(holder.node)
        holder.node, holder.shared = node, len(pages)

    # Leaving

    def free(self, row: int, num_blocks: int) -> None:
        """Insert what a finished request has computed, as last told by `enter`, and unlock it."""
        self._share(self._holders[row])
        self.lose(row, num_blocks)

    def abort(self, row: int, num_blocks: int, num_computed_tokens: int) -> None:
        """Insert all that an aborted request has computed, and unlock it, as SGLang's `cache_finished_req` does."""
        holder = self._holders[row]
        holder.computed = num_computed_tokens // self.block_size
        self._share(holder)
        self.lose(row, num_blocks)

    def lose(self, row: int, num_blocks: int) -> None:
        """Retract the request: its private pages are lost."""
        holder = self._holders[row]
        own = num_blocks - holder.shared
        if not 0 <= own <= self._own:
            raise ValueError(f"row {row} shares {holder.shared} blocks, and cannot hold {num_blocks}")
        del self._holders[row]
        self._own -= own
        self._idle += own
        self.tree.unlock(holder.node)

    def clear(self) -> None:
        """Forget all content; no request holds a page."""
        self.tree = RadixTree()
        self._idle = self.num_blocks

    def end(self, row: int) -> None:
        """Forget the keys of a request that has ended."""
        self._keys.pop(row, None)

    def check(self) -> None:
        """Raise AssertionError unless tree, locks and counts agree."""
        holders = self._holders.values()
        in_tree = self.tree.check([holder.node for holder in holders])
        for holder in holders:
            depth, node = 0, holder.node
            while node.parent is not None:
                depth += len(node.pages)
                node = node.parent
            assert node is self.tree.root, "a request uses an evicted page"
            assert depth == holder.shared, "a request's path has another length than it holds"
        assert min(self._idle, self._own) >= 0, "a count of pages is negative"
        assert self._idle + self._own + in_tree == self.num_blocks, "pages were lost"
