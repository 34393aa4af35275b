"""Routers that remember prompts and sessions, by hand; the table of prompts against a naive one."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from simulator.fleet import prompt_table
from simulator.fleet.prompt_table import PromptTable
from simulator.fleet.router import Replicas
from simulator.fleet.routers import load_router
from simulator.fleet.routers.sglang_cache_aware import FirstSenders
from simulator.request import PromptContent, Request


def asking(row: int, tokens: Sequence[int], session: str | None = None) -> Any:
    """A request with these prompt tokens as a router sees it."""
    content = PromptContent(prompt_token_ids=tuple(tokens))
    return Request(row, str(row), float(row), len(tokens), 1, 1, session_id=session, content=content).arriving()


def replicas(*unfinished: int, kv: float = 0.0) -> Any:
    loads: list[Any] = [
        SimpleNamespace(index=i, num_unfinished=n, num_waiting=0, max_num_seqs=10, kv_utilization=kv)
        for i, n in enumerate(unfinished)
    ]
    return Replicas(loads)


def test_a_prompt_goes_where_its_beginning_went() -> None:
    router = load_router("prefix_affinity", {"block_size": 2})
    three = replicas(1, 0, 2)
    assert router.choose(asking(0, [1, 2, 3, 4, 5, 6]), three).index == 1  # unknown: the least loaded
    three[1].num_unfinished = 5
    three.changed(1)
    assert router.choose(asking(1, [1, 2, 3, 4, 9, 9]), three).index == 1
    assert router.choose(asking(2, [7, 7, 3, 4, 5, 6]), three).index == 0, "what follows another beginning is not known"
    assert router.choose(asking(3, [1, 2, 8, 8, 8, 8, 8, 8]), three).index == 0, "a quarter of it is too little"


def test_unequal_loads_come_first() -> None:
    router = load_router("prefix_affinity", {"block_size": 1, "balance_abs_threshold": 3, "balance_rel_threshold": 2.0})
    two = replicas(0, 0)
    assert router.choose(asking(0, [1, 2, 3]), two).index == 0
    for unfinished, expected in (((3, 0), 0), ((4, 0), 1), ((8, 4), 0), ((9, 4), 1)):
        fresh = replicas(*unfinished)
        assert router.choose(asking(1, [1, 2, 3]), fresh).index == expected, unfinished
        router = load_router(
            "prefix_affinity", {"block_size": 1, "balance_abs_threshold": 3, "balance_rel_threshold": 2.0}
        )
        router.choose(asking(0, [1, 2, 3]), replicas(0, 0))


def test_exact_knowledge_is_that_of_the_caches() -> None:
    router = load_router("prefix_affinity", {"knowledge": "exact"})
    two = replicas(0, 1)
    for load, tokens in zip(two, (1, 2), strict=True):
        load.cached_tokens = lambda request, tokens=tokens: tokens
    assert router.choose(asking(0, [1, 2, 3]), two).index == 1
    two[1].cached_tokens = lambda request: 0
    assert router.choose(asking(0, [1, 2, 3]), two).index == 0


def test_a_weighted_sum_weighs() -> None:
    three = replicas(5, 0, 0)
    by_load = load_router("weighted", {"block_size": 1, "prefix": 0.0})
    assert by_load.choose(asking(0, [1, 2]), three).index == 1
    both = load_router("weighted", {"block_size": 1, "prefix": 0.4})
    assert both.choose(asking(0, [1, 2]), replicas(0, 5, 5)).index == 0
    assert both.choose(asking(1, [1, 3]), replicas(1, 0, 0)).index == 0, "0.1 - 0.2 is less than 0"
    assert both.choose(asking(2, [1, 4]), replicas(3, 0, 0)).index == 1, "0.3 - 0.2 is not"
    faithful = load_router("weighted", {"prefix": 0.0, "session": 1.0})
    assert faithful.choose(asking(0, [1], "s"), replicas(1, 0)).index == 1
    assert faithful.choose(asking(1, [1], "s"), replicas(0, 9)).index == 1
    assert faithful.choose(asking(2, [1], "t"), replicas(0, 9)).index == 0


def test_a_session_stays_and_few_move_when_a_replica_joins() -> None:
    router = load_router("session_affinity")
    nine, ten = replicas(*[0] * 9), replicas(*[0] * 10)
    before = [router.choose(asking(i, [1], f"s{i}"), nine).index for i in range(2000)]
    again = [router.choose(asking(i + 5000, [1], f"s{i}"), nine).index for i in range(2000)]
    assert before == again
    after = [router.choose(asking(i, [1], f"s{i}"), ten).index for i in range(2000)]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {9}, "only to the one that joined"
    assert 100 < len(moved) < 320
    counts = [before.count(i) for i in range(9)]
    assert min(counts) > 100
    alone = {router.choose(asking(i, [1]), nine).index for i in range(200)}
    assert len(alone) == 9, "requests without a session spread"


def prompts(rng: random.Random, hashes: bool) -> list[Any]:
    """60 requests of tokens or hashes, whose beginnings are often alike."""
    made = []
    for row in range(60):
        tokens = [rng.randint(0, 2) for _ in range(rng.randint(1, 9))]
        ask = asking(row, tokens)
        if hashes:  # each names two tokens, and all before them
            names = tuple(int("1" + "".join(map(str, tokens[:end])), 3) for end in range(2, len(tokens) + 2, 2))
            ask = ask._replace(content=PromptContent(block_hashes=names, hash_block_size=2))
        made.append((ask, tokens))
    return made


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_the_table_is_what_a_naive_one_is(seed: int, forgets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of every prompt by replica, those used last kept, of a prompt its beginning or its end.

    Whether it forgets texts of which no block is left makes no difference.
    """
    monkeypatch.setattr(prompt_table, "_TEXTS", 1 if forgets else 1000)
    rng = random.Random(seed)
    hashes, keeps_ends = rng.random() < 0.5, rng.random() < 0.5
    size, most = rng.choice([1, 2, 4] if hashes else [1, 2, 3]), rng.choice([2, 5, 1000])
    table = PromptTable(size, most, keeps_ends=keeps_ends)
    senders = FirstSenders()
    first: dict[tuple[int, ...], int] = {}
    naive: dict[int, list[tuple[int, ...]]] = {}  # by replica, prefixes that end a block, used longest ago first
    for ask, tokens in prompts(rng, hashes):
        prefixes = [tuple(tokens[: max(end, 2 * -(-end // 2) if hashes else end)])
                    for end in range(size, len(tokens) + 1, size)]  # fmt: skip
        if hashes:  # half of what a hash names: by its place
            prefixes = [(*prefix, -place) for place, prefix in enumerate(prefixes)]
        prompt = table.stretches(ask)
        assert sum(stop - start for _, start, stop in prompt) == len(prefixes)
        held = {n: [p in used for p in prefixes] for n, used in naive.items()}
        known = [any(each) for each in zip(*held.values(), strict=True)]
        deepest = known.index(False) if False in known else len(known)
        depth, numbers = table.longest(prompt)
        assert depth == deepest
        assert numbers == (sorted(n for n, has in held.items() if has[deepest - 1]) if deepest else [])
        assert table.held(prompt) == {n: sum(has[:deepest]) for n, has in held.items() if any(has[:deepest])}
        if not keeps_ends:
            assert table.shares(prompt) == {n: sum(has) for n, has in held.items() if any(has)}
        number = rng.randint(0, 3)
        table.add(prompt, number)
        senders.add(prompt, number)
        for block, prefix in enumerate(prefixes):
            assert forgets or senders.of(prompt, block) == first.setdefault(prefix, number)
        used = naive.setdefault(number, [])
        for prefix in prefixes if keeps_ends else reversed(prefixes):
            if prefix in used:
                used.remove(prefix)
            used.append(prefix)
        del used[: max(0, len(used) - most)]
        assert table.size(number) == len(used)


def test_a_first_sender_is_forgotten_with_its_text() -> None:
    table, senders = PromptTable(1, 4), FirstSenders()
    old, new = table.stretches(asking(0, [1, 2, 3])), table.stretches(asking(1, [4, 5, 6, 7]))
    for prompt in (old, new):
        table.add(prompt, 0)
        senders.add(prompt, 0)
    senders.replace(new, 1, 2)
    senders.keep(table)
    assert [senders.of(new, block) for block in range(4)] == [0, 2, 0, 0]
    senders.add(old, 1)
    assert [senders.of(old, block) for block in range(3)] == [1, 1, 1]


def test_first_senders_are_kept_of_what_the_table_remembers() -> None:
    """Of a text whose beginning is kept, its end is forgotten: the next one to send it is its first sender."""
    table, senders = PromptTable(1, 2), FirstSenders()
    prompt = table.stretches(asking(0, [1, 2, 3, 4]))
    for number, most in ((0, 4), (1, 1)):
        table.add(prompt, number, most=most)
        senders.add(prompt, number)
    table.trim()  # to two blocks of replica 0, one of replica 1
    assert table.spans(prompt[0].text) == [(0, 2)]
    senders.keep(table)
    senders.add(prompt, 1)
    assert [senders.of(prompt, block) for block in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize("seed", range(20))
def test_first_senders_take_no_more_than_the_table(seed: int) -> None:
    """No part of a text is without a block that is remembered, and what is remembered has a first sender."""
    rng = random.Random(seed)
    table, senders = PromptTable(2, 6), FirstSenders()
    for ask, _ in prompts(rng, hashes=False):
        prompt, number = table.stretches(ask), rng.randint(0, 3)
        table.add(prompt, number)
        senders.add(prompt, number)
        senders.keep(table)
        for text, parts in senders._parts.items():
            places = [place for first, end, _ in parts for place in range(first, end)]
            assert places == [place for start, stop in table.spans(text) for place in range(start, stop)]
        assert senders._parts.keys() == table._runs.keys()
