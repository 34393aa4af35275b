"""The radix cache beside a naive one, which is a dictionary of prefixes, whatever is done to both."""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from simulator.memory.radix_cache import Node, PageKeys, RadixCache, Symbols
from simulator.request import PromptContent, Request
from tests.examples import examples

Prefix = tuple[int, ...]


@dataclass
class Held:
    """What a request has: so many pages of its sequence in the tree, and others."""

    shared: Prefix
    own: int = 0


class NaiveTree:
    """Cached pages by the prefix that each ends; and the prefixes that end a node, with the time of its last access."""

    def __init__(self, num_pages: int) -> None:
        self.idle = num_pages
        self.cached: set[Prefix] = set()
        self.ends: dict[Prefix, int] = {(): 0}  # with the time of the node's last access
        self.held: dict[int, Held] = {}
        self.time = 0

    def known(self, pages: Prefix) -> int:
        return next((n for n in range(len(pages), 0, -1) if pages[:n] in self.cached), 0)

    def users(self, prefix: Prefix) -> int:
        return sum(held.shared[: len(prefix)] == prefix for held in self.held.values())

    def node(self, prefix: Prefix) -> list[Prefix]:
        """The pages of the node that this one belongs to."""
        end = min((e for e in self.ends if e[: len(prefix)] == prefix), key=len)
        start = max(n for n in range(len(prefix)) if prefix[:n] in self.ends)
        return [end[:n] for n in range(start + 1, len(end) + 1)]

    def free(self) -> int:
        return self.idle + sum(not self.users(prefix) for prefix in self.cached)

    def access(self, end: Prefix) -> None:
        self.time += 1
        self.ends[end] = self.time

    def path(self, pages: Prefix) -> list[Prefix]:
        return sorted((end for end in self.ends if end and end == pages[: len(end)]), key=len)

    def match(self, pages: Prefix) -> None:
        """A node ends where the match does; what lies behind is accessed first, then the path, from above."""
        found = pages[: self.known(pages)]
        if found not in self.ends:
            self.access(self.node(found)[-1])
            self.ends[found] = 0
        for end in self.path(found):
            self.access(end)

    def insert(self, pages: Prefix) -> int:
        """The path is accessed from above, what lies behind a split after it, and a new leaf last."""
        found = pages[: self.known(pages)]
        behind = None if found in self.ends else self.node(found)[-1]
        self.ends.setdefault(found, 0)
        for end in self.path(found):
            self.access(end)
        if behind is not None:
            self.access(behind)
        if len(found) < len(pages):
            self.cached.update(pages[:n] for n in range(len(found) + 1, len(pages) + 1))
            self.access(pages)
        return len(found)

    def take(self, num_pages: int) -> None:
        while self.idle < num_pages:
            leaves = [e for e in self.ends if e and not self.users(e) and not self.extended(e)]
            leaf = min(leaves, key=lambda end: self.ends[end])
            for page in self.node(leaf):
                self.cached.remove(page)
                self.idle += 1
            del self.ends[leaf]
        self.idle -= num_pages

    def extended(self, prefix: Prefix) -> bool:
        return any(len(page) > len(prefix) and page[: len(prefix)] == prefix for page in self.cached)

    def share(self, row: int, pages: Prefix, prompt: int) -> None:
        """A node ends where the prompt does, after so many pages."""
        held = self.held[row]
        found = self.insert(pages)
        if 0 < prompt < len(pages):
            self.insert(pages[:prompt])
        held.own -= len(pages) - len(held.shared)
        self.idle += found - len(held.shared)  # what it held twice
        held.shared = pages

    def lose(self, row: int) -> None:
        self.idle += self.held.pop(row).own

    def freed_with(self, rows: list[int]) -> int:
        shared = [page for page in self.cached if any(self.held[row].shared[: len(page)] == page for row in rows)]
        alone = [p for p in shared if self.users(p) == sum(self.held[r].shared[: len(p)] == p for r in rows)]
        return len(alone) + sum(self.held[row].own for row in rows)


WORDS = st.text("ab", min_size=1, max_size=14)


class CacheAndModel(RuleBasedStateMachine):
    """Requests that repeat each other come, in chunks or whole, decode, end, are retracted and return."""

    @initialize(pages=st.integers(1, 16), size=st.sampled_from([1, 1, 2, 3]))
    def begin(self, pages: int, size: int) -> None:
        self.size = size
        self.cache, self.model = RadixCache(pages, 0, size), NaiveTree(pages)
        self.symbols: Symbols = {}
        self.requests: dict[int, Request] = {}
        self.keys: dict[int, PageKeys] = {}
        self.target: dict[int, int] = {}  # tokens that a running request's prefill computes
        self.tokens: dict[int, int] = {}  # and those it has computed
        self.gone: dict[int, int] = {}  # tokens of those who were retracted

    def pages_of(self, row: int, tokens: int) -> Prefix:
        return tuple(self.keys[row].first(tokens // self.size))

    def enters(self, row: int, num_tokens: int) -> None:
        pages = self.pages_of(row, num_tokens - 1)
        found = self.model.known(pages)
        unused = sum(not self.model.users(pages[:n]) for n in range(1, found + 1))
        assert self.cache.hits(self.requests[row], num_tokens) == (found, unused)
        self.cache.match(self.requests[row], num_tokens - 1)
        self.cache.take_hits(self.requests[row], found)
        self.model.match(pages)
        self.model.held[row] = Held(pages[:found])
        self.tokens[row], self.target[row] = found * self.size, num_tokens

    def takes(self, row: int, tokens: int) -> bool:
        """Pages for so many tokens more, if there are."""
        held = self.model.held[row]
        after = self.tokens[row] + tokens
        needed = -(-after // self.size) - len(held.shared) - held.own
        if needed > self.model.free():
            return False
        if needed:
            self.cache.allocate(row, needed)
            self.model.take(needed)
            held.own += needed
        self.tokens[row] = after
        return True

    @rule(prompt=WORDS, answer=st.text("ab", min_size=1, max_size=4))
    def is_served(self, prompt: str, answer: str) -> None:
        """From its arrival to its end in one go, if there is memory for it."""
        row = self.comes(prompt, answer, True)
        asking = self.requests[row]
        for tokens in (asking.input_tokens - self.tokens[row], asking.output_tokens - 1):
            if not self.takes(row, tokens):
                return
            if self.tokens[row] == asking.input_tokens:
                self.cache.enter(asking, self.tokens[row] // self.size)
                self.cache.settle([row])
                self.shares(row)
        self.finishes(row)

    @rule(prompt=WORDS, answer=st.text("ab", min_size=1, max_size=6), known=st.booleans())
    def arrives(self, prompt: str, answer: str, known: bool) -> None:
        self.comes(prompt, answer, known)

    def comes(self, prompt: str, answer: str, known: bool) -> int:
        row = len(self.requests)
        content = PromptContent(prompt_token_ids=tuple(map(ord, prompt)), output_token_ids=tuple(map(ord, answer)))
        asking = Request(row, f"r{row}", 0.0, len(prompt), len(answer), 9, content=content if known else None)
        self.requests[row] = asking
        self.keys[row] = PageKeys(asking, self.size, self.symbols)
        self.enters(row, len(prompt))
        return row

    @rule(data=st.data())
    def returns(self, data: st.DataObject) -> None:
        if self.gone:
            row = data.draw(st.sampled_from(sorted(self.gone)))
            self.enters(row, self.gone.pop(row))

    @rule(data=st.data())
    def prefills(self, data: st.DataObject) -> None:
        """A step that computes something of the prompts of some, and ends."""
        rows = [row for row in self.tokens if self.tokens[row] < self.target[row]]
        if not rows:
            return
        done = []
        for row in data.draw(st.lists(st.sampled_from(rows), unique=True, min_size=1)):
            if self.takes(row, data.draw(st.integers(1, self.target[row] - self.tokens[row]))):
                self.cache.enter(self.requests[row], self.tokens[row] // self.size)
                done.append(row)
        self.cache.settle(done)
        for row in done:
            self.shares(row)

    def shares(self, row: int) -> None:
        self.model.share(row, self.pages_of(row, self.tokens[row]), self.requests[row].input_tokens // self.size)

    def last(self, row: int) -> int:
        """Tokens that the request will have computed when it ends."""
        return self.requests[row].input_tokens + self.requests[row].output_tokens - 1

    @rule(data=st.data(), tokens=st.integers(1, 3))
    def decodes(self, data: st.DataObject, tokens: int) -> None:
        rows = [row for row in self.tokens if self.target[row] <= self.tokens[row] < self.last(row)]
        if rows:
            row = data.draw(st.sampled_from(rows))
            self.takes(row, min(tokens, self.last(row) - self.tokens[row]))

    def leaves(self, row: int) -> None:
        del self.target[row], self.tokens[row]

    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        rows = [row for row in self.tokens if self.tokens[row] == self.last(row) and self.target[row] <= self.last(row)]
        if rows:
            self.finishes(data.draw(st.sampled_from(rows)))

    def finishes(self, row: int) -> None:
        self.cache.enter(self.requests[row], self.tokens[row] // self.size)
        self.cache.free(row, -(-self.tokens[row] // self.size))
        self.cache.end(row)
        self.shares(row)
        self.model.lose(row)
        self.leaves(row)

    @rule(data=st.data())
    def is_retracted(self, data: st.DataObject) -> None:
        if self.tokens:
            row = data.draw(st.sampled_from(sorted(self.tokens)))
            before, freed = self.cache.num_free, self.model.freed_with([row])
            self.cache.lose(row, -(-self.tokens[row] // self.size))
            assert self.cache.num_free == before + freed
            self.model.lose(row)
            self.gone[row] = min(max(self.tokens[row] + 1, self.target[row]), self.last(row))
            self.leaves(row)

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "cache"):
            return
        cache, model = self.cache, self.model
        cache.check()
        assert cache.num_free == model.free()
        assert sorted(nodes(cache)) == sorted(end for end in model.ends if end)
        held = {row: -(-tokens // self.size) for row, tokens in self.tokens.items()}
        for count in range(len(held) + 1):
            rows = list(held)[:count]
            assert cache.freed_with({row: held[row] for row in rows}) == model.freed_with(rows)
        for row, asking in self.requests.items():
            found = model.known(self.pages_of(row, asking.input_tokens - 1))
            assert cache.hits(asking, asking.input_tokens)[0] == found


def nodes(cache: RadixCache) -> list[Prefix]:
    """The ends of all nodes, as prefixes."""
    found: list[Prefix] = []
    rest: list[tuple[Prefix, Node]] = [((), cache.tree.root)]
    while rest:
        before, node = rest.pop()
        here = (*before, *node.pages)
        found.extend([here] if here else [])
        rest.extend((here, child) for child in node.children.values())
    return found


TestCacheAndModel = CacheAndModel.TestCase
TestCacheAndModel.settings = examples(250, stateful_step_count=40)
