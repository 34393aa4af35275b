"""SGLang's prefix cache: KV pages in a radix tree (`UnifiedRadixCache`), the tree, and its keys."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import TypeAlias

from simulator.memory.block_keys import num_shared_blocks, stretches
from simulator.memory.blocks import OutOfBlocksError
from simulator.request import Request

# Keys of KV pages as arrays of numbers: for a radix tree, which compares long runs of them.
#
# The numbers say what the keys of `simulator.memory.block_keys.BlockKeys` say: two requests have equal numbers at a
# place exactly where those have equal keys, provided that all that comes before is equal too. As arrays they are
# made, cut and compared without walking the pages one by one.

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


# A radix tree over pages of KV, with locks and access times: the tree in SGLang's `UnifiedRadixCache`.
#
# python/sglang/srt/mem_cache/unified_cache/unified_tree_core.py (SGLang 0.5.23), whose line numbers are given. A
# node holds consecutive pages without a branch between them. A request locks the node that it ends in and all above
# it. Eviction takes whole unlocked leaves, the least recently used first; a parent that loses its last child
# becomes a leaf.


class Node:
    """Consecutive pages of a sequence; `locks` requests use it or a node below it."""

    __slots__ = ("children", "locks", "pages", "parent", "used_at")

    def __init__(self, parent: Node | None, pages: Pages, used_at: int) -> None:
        self.parent = parent  # None for the root, and for an evicted node
        self.pages = pages
        self.children: dict[int, Node] = {}  # by their first page
        self.locks = 0
        self.used_at = used_at  # no two nodes have the same

    def __lt__(self, other: Node) -> bool:
        return False  # the heap may hold a node twice, never two nodes of the same time


class RadixTree:
    """Pages by their content. `unlocked` counts those that no request uses."""

    def __init__(self) -> None:
        self.root = Node(None, array("q"), 0)
        self.unlocked = 0
        self._nodes = 0
        self._time = 0
        self.tell: Callable[[Pages, int, int], None] | None = None  # of a path, whose end enters, 1, or goes, -1
        self._candidates: list[tuple[int, Node]] = []  # heap of candidates for eviction, stale entries included

    def look(self, pages: Pages, kept: Mapping[Node, int] | None = None) -> tuple[int, int]:
        """Length of the longest prefix of `pages` in the tree, and how many of its pages no request uses.

        `kept` says how many leading pages of unlocked nodes are in use all the same.
        """
        found = unused = 0
        for node, same in self._walk(pages):
            found += same
            if node.locks == 0:
                unused += same if kept is None else max(0, same - kept.get(node, 0))
        return found, unused

    def keep(self, pages: Pages, kept: dict[Node, int]) -> None:
        """Note in `kept` that a request uses the longest prefix of `pages`."""
        for node, same in self._walk(pages):
            if node.locks == 0:
                kept[node] = max(same, kept.get(node, 0))

    def _walk(self, pages: Pages) -> Iterator[tuple[Node, int]]:
        """Nodes along the longest prefix of `pages`, with how many of their pages it has."""
        node, found = self.root, 0
        while found < len(pages) and (child := node.children.get(pages[found])) is not None:
            same = common(child.pages, pages, found)
            yield child, same
            if same < len(child.pages):
                return
            found += same
            node = child

    def by_subtree(self, sequences: Sequence[Pages]) -> list[int]:
        """Places of these sequences in the order of a depth-first walk, by where their cached prefixes end.

        Of a node's children that comes first under which most of them end; those that end in the node itself come
        after all its children, and a longer match within a node before a shorter one.
        """
        ends: dict[Node, list[tuple[int, int]]] = {}
        weights: dict[Node, int] = {}
        for place, pages in enumerate(sequences):
            end, length = self.root, 0
            for end, length in self._walk(pages):  # noqa: B007 - the last ones
                weights[end] = weights.get(end, 0) + 1
            ends.setdefault(end, []).append((-length, place))
        order: list[int] = []
        rest = [(self.root, False)]
        while rest:
            node, is_done = rest.pop()
            if is_done:
                order.extend([place for _, place in sorted(ends.get(node, ()))])
                continue
            rest.append((node, True))
            children = sorted(node.children.values(), key=lambda child: -weights.get(child, 0))
            rest.extend([(child, False) for child in reversed(children) if child in weights])
        return order

    def match(self, pages: Pages) -> Node:
        """Access the longest prefix of `pages`, split off where needed; returns its last node.

        The nodes on the way are accessed after the part behind the split (:1523), those above before those below
        (:1030).
        """
        path = []
        for node, same in list(self._walk(pages)):
            if same < len(node.pages):
                path.append(self._split(node, same))
                self._access(node)
            else:
                path.append(node)
        for node in path:
            self._access(node)
        return path[-1] if path else self.root

    def insert(self, pages: Pages) -> tuple[Node, int]:
        """Insert `pages`; returns their last node, and how many of them were in the tree before.

        Nodes are accessed on the way down; the part behind a split after the part before it (:1282).
        """
        last, found = self.root, 0
        for node, same in list(self._walk(pages)):
            last = node if same == len(node.pages) else self._split(node, same)
            self._access(last)
            if last is not node:
                self._access(node)
            found += same
        if found < len(pages):
            leaf = Node(last, pages[found:], 0)
            last.children[pages[found]] = leaf
            self._nodes += 1
            self.unlocked += len(leaf.pages)
            self._access(leaf)
            last = leaf
            if self.tell is not None:
                self.tell(pages, found, 1)
        return last, found

    def _access(self, node: Node) -> None:
        self._time += 1
        node.used_at = self._time
        self._add_candidate(node)

    def _split(self, node: Node, at: int) -> Node:
        """Split the first `at` pages of `node` off into a new parent of it."""
        parent = node.parent
        assert parent is not None
        head = Node(parent, node.pages[:at], node.used_at)
        head.locks = node.locks
        parent.children[head.pages[0]] = head
        node.pages = node.pages[at:]
        node.parent = head
        head.children[node.pages[0]] = node
        self._nodes += 1
        return head

    def lock(self, node: Node) -> None:
        """Lock the path from the root to `node` for one more request."""
        while node.parent is not None:
            if node.locks == 0:
                self.unlocked -= len(node.pages)
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Undo one `lock` of the path from the root to `node`."""
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self.unlocked += len(node.pages)
                self._add_candidate(node)
            node = node.parent

    def freed_with(self, ends: Iterable[Node]) -> int:
        """Pages that would be unlocked if the requests that end in these nodes left."""
        users = paths(ends)
        return sum([len(node.pages) for node, count in users.items() if count == node.locks])

    def evict(self, num_pages: int) -> int:
        """Evict at least `num_pages` pages, so many being unlocked; returns how many were evicted."""
        evicted = 0
        while evicted < num_pages:
            entry = heappop(self._candidates)
            if not _is_true(entry):
                continue
            node = entry[1]
            parent = node.parent
            assert parent is not None
            if self.tell is not None:
                path = _path(node)
                self.tell(path, len(path) - len(node.pages), -1)
            del parent.children[node.pages[0]]
            node.parent = None
            self._nodes -= 1
            evicted += len(node.pages)
            if parent.parent is not None:
                self._add_candidate(parent)
        self.unlocked -= evicted
        return evicted

    def _add_candidate(self, node: Node) -> None:
        """Make the node a candidate for eviction if it is an unlocked leaf."""
        if node.locks or node.children:
            return
        heappush(self._candidates, (node.used_at, node))
        if len(self._candidates) > 2 * self._nodes + 1000:  # most entries are stale
            self._candidates = [entry for entry in self._candidates if _is_true(entry)]
            heapify(self._candidates)

    def check(self, ends: Iterable[Node]) -> int:
        """Raise AssertionError unless the tree is consistent and locked by these nodes alone; returns its pages."""
        users = paths(ends)
        in_tree = unlocked = nodes = 0
        offered = {node for _, node in filter(_is_true, self._candidates)}
        rest = [(self.root, first, child) for first, child in self.root.children.items()]
        while rest:
            parent, first, node = rest.pop()
            assert node.parent is parent, "a node has another parent"
            assert len(node.pages) > 0, "a node is empty"
            assert node.pages[0] == first, "a node is filed under another page than its first"
            assert node.locks == users.pop(node, 0), "locks differ from the users"
            assert node.used_at <= self._time, "a node was accessed in the future"
            assert node.locks or node.children or node in offered, "an unlocked leaf is no candidate for eviction"
            nodes += 1
            in_tree += len(node.pages)
            unlocked += 0 if node.locks else len(node.pages)
            rest.extend((node, page, child) for page, child in node.children.items())
        assert not users, "a page in use was evicted"
        assert nodes == self._nodes, "nodes differ"
        assert unlocked == self.unlocked, "the count of unlocked pages differs"
        return in_tree


def _path(node: Node) -> Pages:
    """The pages from the root up to the end of a node."""
    parts = []
    at: Node | None = node
    while at is not None:
        parts.append(at.pages)
        at = at.parent
    path = array("q")
    for pages in reversed(parts):
        path += pages
    return path


def paths(ends: Iterable[Node]) -> dict[Node, int]:
    """For each node, how many of the paths from the root to `ends` pass through it."""
    users: dict[Node, int] = {}
    for node in ends:
        while node.parent is not None:
            users[node] = users.get(node, 0) + 1
            node = node.parent
    return users


def common(node: Pages, pages: Pages, start: int) -> int:
    """Length of the common prefix of `node` and `pages[start:]`, whose first pages are known to be equal."""
    most = min(len(node), len(pages) - start)
    if node[:most] == pages[start : start + most]:
        return most
    same, other = 1, most  # the first `same` are equal; among the first `other` one differs
    while same + 1 < other:
        middle = (same + other) // 2
        if node[same:middle] == pages[start + same : start + middle]:
            same = middle
        else:
            other = middle
    return same


def _is_true(entry: tuple[int, Node]) -> bool:
    used_at, node = entry
    return node.used_at == used_at and not node.locks and not node.children and node.parent is not None


# KV pages with a prefix cache that is a radix tree: SGLang's `UnifiedRadixCache`.
#
# L. Zheng et al., SGLang: Efficient Execution of Structured Language Model Programs (arXiv 2312.07104), section 3,
# and python/sglang/srt/mem_cache/unified_radix_cache.py (SGLang 0.5.23), with its page size as our block size;
# SGLang's default is 1.
#
# A prompt enters the tree chunk by chunk, after the step that computed the chunk; the rest of a request enters when
# it finishes. Prompts of one step therefore do not hit each other. Decoded tokens are private until the request
# finishes, and lost when it is retracted. A request locks the path that it uses. Unlocked pages count as free, and
# are evicted when an allocation needs them. What is looked up is accessed, whether the request is admitted or not.


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
