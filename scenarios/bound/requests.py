"""The requests of a workload as bounds need them: lengths, the least that must be computed, and the arrivals."""

from collections import Counter
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from simulator.client import Client
from simulator.errors import InputError
from simulator.request import PromptContent
from simulator.workload import Workload

Floats = NDArray[np.float64]
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
