"""A radix tree over pages of KV, with locks and times of use: the tree in SGLang's `RadixCache`.

python/sglang/srt/mem_cache/radix_cache.py (SGLang 0.5). A node holds pages that follow each other, without a branch
between them. Whoever uses a node locks it and all above it. What nobody uses can be forgotten: the leaf that was used
least recently first, as a whole, so that its parent may become a leaf.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from simulator.memory.page_keys import Pages


class Node:
    """Some pages of a sequence; `locks` of those who hold it use it, or something behind it."""

    __slots__ = ("children", "locks", "pages", "parent", "serial", "used_at")

    def __init__(self, parent: Node | None, pages: Pages, used_at: int, serial: int) -> None:
        self.parent = parent  # None for the root, and for a node that is forgotten
        self.pages = pages
        self.children: dict[int, Node] = {}  # by their first page
        self.locks = 0
        self.used_at = used_at
        self.serial = serial  # the older of two that were used at the same time goes first

    def __lt__(self, other: Node) -> bool:
        return False  # a heap holds the same node twice now and then, never two of the same time and serial


class RadixTree:
    """Pages by what they hold. `unlocked` is the number of those that nobody uses."""

    def __init__(self) -> None:
        self.root = Node(None, array("q"), 0, 0)
        self.unlocked = 0
        self._nodes = 0
        self._time = 0
        self._serial = 0
        self._leaves: list[tuple[int, int, Node]] = []  # a heap of those that may be forgotten, stale entries too

    def look(self, pages: Pages) -> tuple[int, int]:
        """How many of these pages are there, from the first on, and how many of them nobody uses."""
        node, found, unused = self.root, 0, 0
        while found < len(pages) and (child := node.children.get(pages[found])) is not None:
            same = common(child.pages, pages, found)
            found += same
            if child.locks == 0:
                unused += same
            if same < len(child.pages):
                break
            node = child
        return found, unused

    def reach(self, pages: Pages) -> tuple[Node, int]:
        """Go along these pages as far as they are there, splitting the node that this ends in; how many are.

        As in SGLang, all that is met is used now, also what lies behind the split.
        """
        self._time += 1
        node, found = self.root, 0
        while found < len(pages) and (child := node.children.get(pages[found])) is not None:
            same = common(child.pages, pages, found)
            found += same
            child.used_at = self._time
            self._offer(child)
            if same < len(child.pages):
                return self._split(child, same), found
            node = child
        return node, found

    def insert(self, pages: Pages) -> tuple[Node, int]:
        """Put these pages there; returns their last node, and how many of them were there before."""
        node, found = self.reach(pages)
        if found < len(pages):
            self._serial += 1
            leaf = Node(node, pages[found:], self._time, self._serial)
            node.children[pages[found]] = leaf
            self._nodes += 1
            self.unlocked += len(leaf.pages)
            self._offer(leaf)
            node = leaf
        return node, found

    def _split(self, node: Node, at: int) -> Node:
        """A new node for the first `at` pages of `node`, before it."""
        parent = node.parent
        assert parent is not None
        self._serial += 1
        head = Node(parent, node.pages[:at], node.used_at, self._serial)
        head.locks = node.locks
        parent.children[head.pages[0]] = head
        node.pages = node.pages[at:]
        node.parent = head
        head.children[node.pages[0]] = node
        self._nodes += 1
        return head

    def lock(self, node: Node) -> None:
        """Somebody uses all pages up to the end of `node`."""
        while node.parent is not None:
            if node.locks == 0:
                self.unlocked -= len(node.pages)
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Somebody uses them no longer."""
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self.unlocked += len(node.pages)
                self._offer(node)
            node = node.parent

    def freed_with(self, ends: Iterable[Node]) -> int:
        """How many pages nobody would use if those who locked these nodes did not."""
        users = paths(ends)
        return sum([len(node.pages) for node, count in users.items() if count == node.locks])

    def forget(self, num_pages: int) -> int:
        """Make room of at least so many pages, which must be unlocked; returns how many have been forgotten."""
        forgotten = 0
        while forgotten < num_pages:
            entry = heappop(self._leaves)
            if not _is_true(entry):
                continue
            node = entry[2]
            parent = node.parent
            assert parent is not None
            del parent.children[node.pages[0]]
            node.parent = None
            self._nodes -= 1
            forgotten += len(node.pages)
            if parent.parent is not None:
                self._offer(parent)
        self.unlocked -= forgotten
        return forgotten

    def _offer(self, node: Node) -> None:
        """The node may be forgotten, if it is a leaf that nobody uses."""
        if node.locks or node.children:
            return
        heappush(self._leaves, (node.used_at, node.serial, node))
        if len(self._leaves) > 2 * self._nodes + 1000:  # most entries are stale
            self._leaves = [entry for entry in self._leaves if _is_true(entry)]
            heapify(self._leaves)

    def check(self, ends: Iterable[Node]) -> int:
        """Raise AssertionError unless the tree is one, and locked by just these nodes; returns its pages."""
        users = paths(ends)
        in_tree = unlocked = nodes = 0
        offered = {node for _, _, node in filter(_is_true, self._leaves)}
        rest = [(self.root, first, child) for first, child in self.root.children.items()]
        while rest:
            parent, first, node = rest.pop()
            assert node.parent is parent, "a node has another parent"
            assert len(node.pages) > 0, "a node is empty"
            assert node.pages[0] == first, "a node is found by another page than its first"
            assert node.locks == users.pop(node, 0), "locks differ from the users"
            assert node.used_at <= self._time, "a node was used later than now"
            assert node.locks or node.children or node in offered, "a leaf can never be forgotten"
            nodes += 1
            in_tree += len(node.pages)
            unlocked += 0 if node.locks else len(node.pages)
            rest.extend((node, page, child) for page, child in node.children.items())
        assert not users, "what is in use has been forgotten"
        assert nodes == self._nodes, "nodes differ"
        assert unlocked == self.unlocked, "the count of unlocked pages differs"
        return in_tree


def paths(ends: Iterable[Node]) -> dict[Node, int]:
    """How many of the paths from the root to these nodes go through each node."""
    users: dict[Node, int] = {}
    for node in ends:
        while node.parent is not None:
            users[node] = users.get(node, 0) + 1
            node = node.parent
    return users


def common(node: Pages, pages: Pages, start: int) -> int:
    """How many pages of `node` are those of `pages` from `start` on, the first of them being known to be."""
    most = min(len(node), len(pages) - start)
    if node[:most] == pages[start : start + most]:
        return most
    same, other = 1, most  # so many are the same; among the first so many there is another
    while same + 1 < other:
        middle = (same + other) // 2
        if node[same:middle] == pages[start + same : start + middle]:
            same = middle
        else:
            other = middle
    return same


def _is_true(entry: tuple[int, int, Node]) -> bool:
    used_at, _, node = entry
    return node.used_at == used_at and not node.locks and not node.children and node.parent is not None
