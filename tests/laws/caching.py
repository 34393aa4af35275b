"""Random scenarios with a prefix cache: prompts share groups, hashes or tokens, or go on with what was said before."""

import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from hypothesis import strategies as st

from simulator.memory.blocks import Cache
from simulator.memory.ledger import PrefixLedger
from simulator.memory.prefix_cache import PrefixCache
from simulator.plan import Policy
from simulator.request import PromptContent, Request
from simulator.simulate import Run
from simulator.workload import Workload
from tests.laws.scenarios import Scenario, scenarios

Contents = list[PromptContent | None]


class CheckingCache(PrefixCache):
    """Checks its whole state after every operation, and that the operation took or freed what it should."""

    def __init__(self, num_blocks: int, num_host_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, num_host_blocks, block_size)
        self.operations = 0

    def _checked(self, free: int) -> None:
        self.operations += 1
        assert self.num_free == free
        self.check()

    def take_hits(self, request: Request, blocks: int) -> None:
        assert not self.tables.get(request.row), "it holds blocks already"
        before = self.num_free
        super().take_hits(request, blocks)
        self._checked(before - sum(self.references[block] == 1 for block in self.tables[request.row]))

    def allocate(self, row: int, num_blocks: int) -> None:
        before = self.num_free
        super().allocate(row, num_blocks)
        self._checked(before - num_blocks)

    def enter(self, request: Request, full_blocks: int) -> None:
        before = self.num_free
        super().enter(request, full_blocks)
        self._checked(before)

    def grow(self, num_blocks: int, rows: Iterable[int]) -> None:
        before = self.num_free
        super().grow(num_blocks, rows)
        self._checked(before - num_blocks)

    def free(self, row: int, num_blocks: int) -> None:
        before, alone = self.num_free, self.freed_with([row])
        super().free(row, num_blocks)
        self._checked(before + alone)

    @property
    def is_empty(self) -> bool:
        """Nobody owns anything, and nothing is kept about anybody."""
        return not self.tables and not self.keys and not self._entered and self.num_free == self.num_blocks


def run_cached(
    scenario: Scenario,
    *,
    fast_forward: bool = True,
    make_cache: Callable[..., Cache] = PrefixLedger,
    make_policy: Callable[[], Policy] | None = None,
) -> Run:
    """The scenario with a prefix cache, and with its decisions."""
    return scenario.run(
        fast_forward=fast_forward,
        log_decisions=True,
        make_blocks=partial(make_cache, block_size=scenario.memory.block_size),
        make_policy=make_policy,
    )


def with_contents(scenario: Scenario, contents: Sequence[PromptContent | None]) -> Scenario:
    return replace(scenario, workload=replace(scenario.workload, content=list(contents)))


@st.composite
def caching_scenarios(draw: st.DrawFn, *, max_requests: int = 12, policy: str = "chunked_prefill") -> Scenario:
    """A scenario for `policy`, mostly with content that requests share."""
    scenario = draw(scenarios(policy, max_requests=max_requests))
    make = draw(st.sampled_from([groups, hashes, token_ids, token_ids, conversations, mixed]))
    rng = random.Random(draw(st.integers(0, 2**32)))
    return with_contents(scenario, make(rng, scenario.workload, scenario.memory.block_size))


def groups(rng: random.Random, workload: Workload, size: int) -> Contents:
    """Two or three prefixes, some longer than a prompt, some shorter than a block."""
    names = [(f"g{i}", rng.choice([1, size, 2 * size, 3 * size + 1, 50])) for i in range(rng.randint(1, 3))]
    drawn = [rng.choice([None, *names, *names]) for _ in range(len(workload))]
    return [None if one is None else PromptContent(prefix_group=one[0], prefix_tokens=one[1]) for one in drawn]


def hashes(rng: random.Random, workload: Workload, size: int) -> Contents:
    """Each prompt begins as an earlier one does and goes on in its own way; some say too little of themselves."""
    hash_size = rng.choice([s for s in (size, 2 * size, size // 2) if s])
    told: list[tuple[int, ...]] = [()]
    made: Contents = []
    for row, tokens in enumerate(workload.input_tokens.tolist()):
        count = -(-tokens // hash_size)
        kept = rng.choice(told)[: rng.randint(0, count)]
        path = kept + tuple(1000 * row + place for place in range(len(kept), count))
        told.append(path)
        said = path[: rng.randint(0, count)] if rng.random() < 0.1 else path
        made.append(PromptContent(block_hashes=said, hash_block_size=hash_size) if said else None)
    return made


def token_ids(rng: random.Random, workload: Workload, size: int) -> Contents:
    """Conversations that go on with few different tokens, so that blocks repeat; answers known in full or in part."""
    alphabet = rng.choice([1, 2, 50])
    told: list[list[int]] = [[]]
    made: Contents = []
    for tokens, outputs in zip(workload.input_tokens.tolist(), workload.output_tokens.tolist(), strict=True):
        begin = rng.choice(told)[: rng.randint(0, tokens)]
        prompt = begin + [rng.randrange(alphabet) for _ in range(tokens - len(begin))]
        answer = [rng.randrange(alphabet) for _ in range(rng.choice([outputs, outputs, outputs // 2, 0]))]
        told.append(prompt + answer)
        made.append(PromptContent(prompt_token_ids=tuple(prompt), output_token_ids=tuple(answer)))
    return made


def conversations(rng: random.Random, workload: Workload, size: int) -> Contents:
    """A few conversations, of which a request says the beginning, its answer included; some say nothing."""
    names = [None, *"abc"[: rng.randint(1, 3)] * 2]
    drawn = [rng.choice(names) for _ in range(len(workload))]
    return [None if name is None else PromptContent(conversation=name) for name in drawn]


def mixed(rng: random.Random, workload: Workload, size: int) -> Contents:
    """Every request from another source, or from none."""
    each = [make(rng, workload, size) for make in (groups, hashes, token_ids, conversations)]
    return [rng.choice([*row, None]) for row in zip(*each, strict=True)]


def sequence_of(row: int, tokens: int, content: PromptContent | None) -> list[Hashable]:
    """A request's tokens, one by one, from what is said of its content: equal exactly where that says so."""
    known: list[Hashable] = []
    if content is not None and content.prompt_token_ids:
        known = [("id", token) for token in content.prompt_token_ids + content.output_token_ids]
    elif content is not None and content.block_hashes:
        size = content.hash_block_size
        known = [("hash", value, place) for value in content.block_hashes for place in range(size)]
        del known[min(tokens, len(known)) :]
    return _sequence(row, known, tokens, content)


def _sequence(row: int, known: list[Hashable], tokens: int, content: PromptContent | None) -> list[Hashable]:
    if not known and content is not None and content.prefix_group is not None:
        shared = min(content.prefix_tokens, tokens)
        known = [("group", content.prefix_group, place) for place in range(shared)]
    elif not known and content is not None and content.conversation is not None:
        return [("conversation", content.conversation, place) for place in range(tokens + 1000)]
    return known + [("own", row, place) for place in range(len(known), len(known) + tokens + 1000)]


def common_prefix(one: Sequence[Hashable], other: Sequence[Hashable], most: int) -> int:
    """How many leading tokens two sequences share, `most` at most."""
    for place in range(most):
        if one[place] != other[place]:
            return place
    return most
