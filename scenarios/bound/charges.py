"""Prices of requests that no schedule undercuts: alone, and as shares of steps that many compute together.

**Alone.** A request that computes in a step makes it last at least `floor.s` of its own counts, as every coefficient of
a `StepFloor` is 0 or more. Its steps come one after the other. So the sum over the fewest steps that it needs, each
with its own counts alone, is a bound on its time, whatever else happens.

**Work.** A step's seconds are shared out over what it computes so that no more is charged than it lasts. What a floor
has for tokens, rows, contexts and pairs is charged to these. What it has for the step itself is charged in one of three
ways, for a step holds at most `seqs` requests, `tokens` tokens, and requests of `kv_tokens` KV tokens together:

    step >= step x requests / seqs        step >= step x tokens / tokens        step >= step x contexts / kv_tokens

Each is a floor without a constant (`amortised`), and so is any mean of them. Where layers keep different things, the
last is `step x blocks held / blocks of the pool`, with those that `HeldBlocks` proves. A request's charges then add up
over all its steps, whoever else is in them: they are its work. Replicas together do at most `replicas` seconds of work
a second.

**Preemption by recompute.** The token after k others costs a decode, whose context is m = prompt + k, or a prefill of m
tokens (with a prefix cache: of one token behind m - 1). A decode is charged with the cheaper of the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.hardware.kv_plan import KVPlan
from simulator.request import PromptContent
from simulator.timing.cost import StepFloor
from simulator.workload import Client, Workload

# The fewest KV blocks that a request in a step holds, where layers keep different things of it.

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HeldBlocks:
    """Blocks of a pool that serves several KV groups: `per_token` of the context, and those of windows and states.

    A request in a step whose context is m after it holds at least

        m x per_token  +  sum over windows of ceil(min(m, window) / block)  +  1 for each chunked group or state

    blocks. Proof. A group of full attention holds a slot for each of the m tokens, hence at least m / block blocks. A
    decode reads the keys of the last min(m, window) tokens, its own among them, and they lie in as many blocks as the
    second term says; a prompt's chunk that ends at m writes at least one token, and its last query reads the same
    window. A chunked group holds the block of the newest token, a group of states the state that the step writes. No
    block belongs to two groups, and where requests do not share KV none belongs to two requests. So these numbers
    add up to `pool` at most over all requests in a step, whatever else is in memory.
    """

    pool: int
    per_token: float
    windows: Sequence[tuple[int, int]]  # tokens, and those of a block
    others: int

    @classmethod
    def of(cls, plan: KVPlan, usable: int) -> HeldBlocks:
        """What the groups of a plan hold, in a pool of so many blocks."""
        caches = [group.cache for group in plan.groups]
        whole = sum(1.0 / cache.block_size for cache in caches if cache.kind == "full")
        windows = tuple((cache.window, cache.block_size) for cache in caches if cache.kind == "window")
        return cls(usable, whole, windows, sum(cache.kind in ("chunked", "mamba") for cache in caches))

    def beside(self, context: Floats) -> Floats:
        """Blocks of windows, chunks and states for contexts of at least so many tokens: they fall with none."""
        found = np.full(len(context), float(self.others))
        for window, size in self.windows:
            found += np.ceil(np.minimum(context, window) / size)
        return found


# The requests of a workload as bounds need them: lengths, the least that must be computed, and the arrivals.

Ints = NDArray[np.int64]

CLIENTS = "clients give up or try again, so which requests are served depends on the scheduler"
ENDLESS = "users of a closed loop send as many requests as the scheduler lets them"
CUT = "arrivals follow answers, so which requests lie in the measured window depends on the scheduler"


@dataclass(frozen=True, slots=True)
class Requests:
    """Measured requests, an entry each, in order of arrival.

    `computed` are the prompt tokens that must be computed whatever a prefix cache holds. Where arrivals follow answers
    (`fixed` false), `arrival_s` is 0 throughout and `chain_s` says what follows: see `longest_chain_s`.
    """

    arrival_s: Floats
    prompt: Ints
    computed: Ints
    outputs: Ints
    class_index: Ints
    class_names: tuple[str, ...]
    fixed: bool
    shares: bool  # some of them may share KV
    pools: tuple[tuple[int, Workload, int], ...]
    """Parts that were put together: their first row, what they are, and users (0: no limit)."""

    def __len__(self) -> int:
        return len(self.prompt)

    def longest_chain_s(self, alone_s: Floats) -> float:
        """Seconds of the longest chain of requests that wait for each other's answers, if each is served alone.

        Users of a closed loop work off their pool one after the other: the busiest takes at least the mean.
        """
        longest = float(alone_s.max(initial=0.0))
        for first, pool, users in self.pools:
            part, after, delay_s = alone_s[first : first + len(pool)], pool.after_row, pool.delay_s
            if users:
                longest = max(longest, float(part.sum()) / users)
            if after is None or delay_s is None:
                continue
            done = part.tolist()
            for row, (before, delay) in enumerate(zip(after.tolist(), delay_s.tolist(), strict=True)):
                if before >= 0:
                    others = () if pool.also_after is None else pool.also_after[row]
                    done[row] += max([done[before], *(done[other] for other in others)]) + delay
            longest = max(longest, *done, 0.0)
        return longest


def measured_requests(workload: Workload, *, caches: bool, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> Requests:
    """The requests that a run of this workload measures, with a prefix cache or without one.

    Raises InputError with the reason where a scheduler has a say in which requests these are.
    """
    if workload.patience_s is not None or any(client != Client() for client in workload.clients):
        raise InputError(CLIENTS)
    if any(loop.requests is None for loop in workload.loops) or (isfinite(workload.until_s) and workload.answers_back):
        raise InputError(ENDLESS)
    parts = [(workload, 0)]
    for loop in workload.loops:
        count = loop.requests or 0
        parts.append((_first(loop.draw(count), count), loop.concurrency))
    fixed = not workload.answers_back
    pools, first = [], 0
    for part, users in parts:
        pools.append((first, part, users))
        first += len(part)
    arrival_s = np.concatenate([np.asarray(part.arrival_s) for part, _ in parts])
    kept = np.ones(len(arrival_s), dtype=np.bool_)
    if warmup_s or cooldown_s:
        if not fixed:
            raise InputError(CUT)
        kept = (arrival_s >= arrival_s.min() + warmup_s) & (arrival_s <= arrival_s.max() - cooldown_s)
    prompt = np.concatenate([np.asarray(part.input_tokens) for part, _ in parts])
    outputs = np.concatenate([np.minimum(part.output_tokens, part.max_tokens) for part, _ in parts])
    contents: list[PromptContent | None] = []
    for part, _ in parts:
        contents += [None] * len(part) if part.content is None else list(part.content)
    computed = least_computed(prompt, outputs, contents) if caches else prompt
    shares = caches and any(content is not None for content in contents)
    return Requests(
        arrival_s[kept] if fixed else np.zeros(int(kept.sum())),
        prompt[kept],
        computed[kept],
        outputs[kept],
        np.concatenate([np.asarray(part.class_index) for part, _ in parts])[kept],
        workload.class_names,
        fixed,
        shares,
        () if fixed else tuple(pools),
    )


def _first(pool: Workload, count: int) -> Workload:
    """The first requests of a pool, which may hold more than was asked for."""
    columns = {name: column[:count] for name, column in pool.columns().items()}
    return Workload(**columns, class_names=pool.class_names)


def least_computed(prompt: Ints, outputs: Ints, contents: list[PromptContent | None]) -> Ints:
    """Prompt tokens of each request that no other request can have left in a prefix cache; at least 1.

    A cache never evicts here, and every other request may have come before: nothing that a scheduler does saves more.
    A prompt that shares in more than one way, or by its ids, counts as shared but for a token.
    """
    blocks: Counter[int] = Counter()
    groups: Counter[str] = Counter()
    longest: dict[str, list[int]] = {}  # the two longest texts of a conversation, prompt and answer
    for content, tokens, answer in zip(contents, prompt.tolist(), outputs.tolist(), strict=True):
        if content is None:
            continue
        blocks.update(content.block_hashes)
        if content.prefix_group is not None:
            groups[content.prefix_group] += 1
        if content.conversation is not None:
            texts = longest.setdefault(content.conversation, [0, 0])
            texts[:] = sorted([*texts, tokens + answer])[-2:]
    least = prompt.copy()
    for row, content in enumerate(contents):
        if content is None:
            continue
        tokens = int(prompt[row])
        shared = []
        if content.block_hashes:
            run = next(
                (at for at, key in enumerate(content.block_hashes) if blocks[key] < 2), len(content.block_hashes)
            )
            shared.append(run * content.hash_block_size)
        if content.prefix_group is not None:
            shared.append(content.prefix_tokens if groups[content.prefix_group] > 1 else 0)
        if content.conversation is not None:
            shorter, longer = longest[content.conversation]
            shared.append(shorter if tokens + int(outputs[row]) == longer else longer)
        if content.prompt_token_ids or len(shared) > 1:
            shared = [tokens]
        least[row] = max(1, tokens - max(shared, default=0))
    return least


@dataclass(frozen=True)  # no slots: what follows from the limits is worked out once
class Server:
    """The limits of a scenario's replicas, whatever the scheduler: most of each in a step, or in memory.

    `kv_tokens` None: requests may share KV, so their contexts may add up to more than the pool holds. `held` is there
    where the cache has several KV groups, and says what each request takes of it, instead of tokens.
    """

    replicas: int
    seqs: int
    tokens: int
    kv_tokens: int | None
    caches: bool
    floors: tuple[StepFloor, ...]
    held: HeldBlocks | None = None

    def amortised(self) -> Iterator[tuple[str, StepFloor, float]]:
        """Floors without a constant, with what limits the sharing of a step: slots, tokens or memory.

        The last entry is in seconds, for each block that a request holds beside those of its context.
        """
        for floor in self.floors:
            at_once, rest = floor.step, floor._replace(step=0.0)
            yield "slots", rest._replace(row=rest.row + at_once / self.seqs), 0.0
            if at_once > 0:
                yield "tokens", rest._replace(token=rest.token + at_once / self.tokens), 0.0
                if self.kv_tokens is not None:
                    each = 0.0 if self.held is None else at_once / self.held.pool
                    token = at_once / self.kv_tokens if self.held is None else each * self.held.per_token
                    contexts = rest.decode_context + token, rest.prefill_context + token
                    yield "memory", rest._replace(decode_context=contexts[0], prefill_context=contexts[1]), each


@dataclass(frozen=True)  # no slots, likewise
class Charges:
    """What requests cost at least on a server, in seconds, an entry a request."""

    server: Server
    requests: Requests

    @cached_property
    def first_token_alone_s(self) -> Floats:
        """Seconds from the first step of its prompt to its first token."""
        return self._most(self._prompt_s(floor) for floor in self.server.floors)

    @cached_property
    def decode_alone_s(self) -> Floats:
        """Seconds from its first token to its last."""
        return self._most(self._decode_s(floor) for floor in self.server.floors)

    @cached_property
    def works(self) -> list[tuple[str, Floats, Floats]]:
        """What limits the sharing, the work of the prompt and that of the decodes, for each amortised floor."""
        found = []
        for limit, floor, block_s in self.server.amortised():
            prompt, decode = self._prompt_s(floor), self._decode_s(floor)
            if block_s:
                prompt, decode = prompt + block_s * self._beside[0], decode + block_s * self._beside[1]
            found.append((limit, prompt, decode))
        return found

    @cached_property
    def _beside(self) -> tuple[Floats, Floats]:
        """Blocks beside those of the context, summed over the steps of a prompt, and over those of the decodes.

        The prompt's last chunk has its whole context, others at least a token; every decode's is longer than the
        prompt.
        """
        assert self.server.held is not None
        prompt = self.requests.prompt.astype(np.float64)
        decodes = self.requests.outputs.astype(np.float64) - 1
        chunks = np.ceil(self.requests.computed / self.server.tokens)
        beside = self.server.held.beside
        return beside(prompt) + (chunks - 1) * beside(np.ones(len(prompt))), decodes * beside(prompt + 1)

    def _most(self, each: Iterator[Floats]) -> Floats:
        """The largest for each request: every floor holds, so the best of them does."""
        found = np.zeros(len(self.requests))
        for seconds in each:
            found = np.maximum(found, seconds)
        return found

    def _prompt_s(self, floor: StepFloor) -> Floats:
        """Charges of a prompt: as many steps and rows as it has chunks, its tokens and pairs, its context once."""
        prompt, computed = self.requests.prompt.astype(np.float64), self.requests.computed.astype(np.float64)
        chunks = np.ceil(computed / self.server.tokens)
        pairs = computed * (prompt - computed) + computed * (computed + 1) / 2
        steps = chunks * (floor.step + floor.row)
        return steps + floor.token * computed + floor.prefill_context * prompt + floor.pair * pairs

    def _decode_s(self, floor: StepFloor) -> Floats:
        """Charges of all tokens but the first, which the prompt gives: contexts prompt + 1, prompt + 2, ..."""
        prompt, decodes = self.requests.prompt.astype(np.float64), self.requests.outputs.astype(np.float64) - 1
        again = np.full(len(prompt), floor.prefill_context + floor.pair)  # a token of context, by a prefill of one
        if not self.server.caches:  # by a prefill of all prompt + 1 tokens, or more
            again = floor.prefill_context + floor.pair * (prompt + 2) / 2 + floor.token * prompt / (prompt + 1)
        contexts = decodes * prompt + decodes * (decodes + 1) / 2
        found: Floats = decodes * (floor.step + floor.token + floor.row) + contexts * again.clip(
            max=floor.decode_context
        )
        return found
