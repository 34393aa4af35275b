"""What routers remember: bounded whatever comes, and no choice depends on what has been forgotten."""

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from simulator.fleet import prompt_table
from simulator.fleet.prompt_table import PromptTable, Stretch
from simulator.fleet.router import Replicas
from simulator.fleet.routers import load_router
from simulator.fleet.routers.dynamo_kv import Booked, DynamoKv
from simulator.request import ArrivingRequest, PromptContent, Request
from tests.simulator.fleet.test_prefixes import asking, prompts

IN_FLIGHT = 8


def replicas() -> Replicas:
    loads: list[Any] = [
        SimpleNamespace(index=i, num_unfinished=0, num_waiting=0, max_num_seqs=10, kv_utilization=0.0, num_blocks=1000)
        for i in range(2)
    ]
    for load in loads:
        load.cached_tokens = lambda request: 0
    return Replicas(loads)


def contents(row: int) -> tuple[PromptContent, ...]:
    """What no other request has, but for a beginning that a third of them share."""
    shared = [row % 3] * 2
    return (
        PromptContent(prompt_token_ids=(*shared, *[row] * 6)),
        PromptContent(block_hashes=(row % 3, *range(10 * row + 10, 10 * row + 13)), hash_block_size=2),
        PromptContent(prefix_group=f"text {row}", prefix_tokens=4),
        PromptContent(conversation=f"conversation {row}"),
    )


def arriving(row: int, kind: int) -> ArrivingRequest:
    return Request(row, str(row), float(row), 8, 1, 1, content=contents(row)[kind]).arriving()


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("prefix_affinity", {"max_blocks": 24}),
        ("weighted", {"max_blocks": 24}),
        ("llm_d", {"max_blocks": 24}),
        ("ray_prefix_aware", {"max_blocks": 24}),
        ("vllm_prefix_aware", {"max_blocks": 24}),
        ("sglang_cache_aware", {"max_tree_size": 24 * 2 * 4, "eviction_interval_s": 5.0}),
        ("dynamo_kv", {"knowledge": "exact"}),
        ("dynamo_kv", {"knowledge": "approximate", "ttl_s": 12.0}),
    ],
)
def test_no_text_is_known_for_longer_than_its_blocks(
    name: str, parameters: dict[str, Any], kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of replicas with 24 blocks each, or of the last seconds, whatever comes."""
    monkeypatch.setattr(prompt_table, "_TEXTS", 20)
    router: Any = load_router(name, {"block_size": 2, **parameters})
    two: Any = replicas()
    largest = 0
    for row in range(500):
        two[row % 2].num_unfinished += 1
        two.changed(row % 2)
        router.choose(arriving(row, kind), two)
        if name == "dynamo_kv" and row >= IN_FLIGHT:
            router.ended(row - IN_FLIGHT)
        table = router._table
        assert set(table._ends) <= {0, 1}
        largest = max(largest, len(table._chains), sum(table._sizes.values()))
    assert 20 < largest < 70


def test_the_sessions_used_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.fleet.routers.weighted.MOST_SESSIONS", 2)
    router = load_router("weighted", {"prefix": 0.0, "session": 1.0})
    two: Any = replicas()

    def goes(row: int, session: str) -> int:
        for load in two:
            load.num_unfinished = row * (load.index == 0)  # without a session: replica 1, but for row 0
            two.changed(load.index)
        return router.choose(asking(row, [row], session), two).index

    assert [goes(row, session) for row, session in enumerate("aba")] == [0, 1, 0]
    assert goes(3, "c") == 1  # b is forgotten, a is not
    assert goes(4, "a") == 0
    assert goes(0, "b") == 0


@pytest.mark.parametrize("kind", range(4))
def test_prefix_hash_remembers_no_prompt(kind: int) -> None:
    """A prompt's home is a function of its beginning: what came before makes no difference."""
    homes = []
    for first in (0, 100):
        router = load_router("prefix_hash", {"prefix_tokens": 2})
        seen = [router.choose(arriving(row, kind), replicas()).index for row in range(first, 160)]
        homes.append(seen[100 - first :])
        assert set(seen) == {0, 1} or kind < 2
    assert homes[0] == homes[1]


@pytest.mark.parametrize("seed", range(30))
def test_blocks_in_use_are_counted_as_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    hashes, size = rng.random() < 0.5, rng.choice([1, 2])
    table, booked, naive = PromptTable(size, 1), Booked(), Counter[tuple[Any, int]]()
    sent: list[list[Stretch]] = []

    def blocks(prompt: list[Stretch]) -> list[tuple[Any, int]]:
        return [(text, place) for text, start, stop in prompt for place in range(start, stop)]

    for ask, _ in prompts(rng, hashes):
        prompt = table.stretches(ask)
        assert booked.with_blocks(prompt) == len(naive.keys() | set(blocks(prompt)))
        booked.add(prompt)
        sent.append(prompt)
        naive.update(blocks(prompt))
        while sent and rng.random() < 0.45:
            ended = sent.pop(rng.randrange(len(sent)))
            booked.end(ended)
            naive -= Counter(blocks(ended))
        assert (booked.requests, booked.num_blocks) == (len(sent), len(naive))
    for prompt in sent:
        booked.end(prompt)
    assert not booked.num_blocks
    assert not booked._parts


@pytest.mark.parametrize("knowledge", ["exact", "approximate"])
@pytest.mark.parametrize("seed", range(20))
def test_dynamo_s_costs_do_not_depend_on_texts_that_are_forgotten(
    seed: int, knowledge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of requests that run are kept, though nothing else is remembered of them."""
    costs, texts_known = [], []
    for texts in (1, 1000):
        monkeypatch.setattr(prompt_table, "_TEXTS", texts)
        rng = random.Random(seed)
        router = load_router("dynamo_kv", {"block_size": 1, "knowledge": knowledge, "ttl_s": 5.0})
        assert isinstance(router, DynamoKv)
        running: list[int] = []
        for row in range(150):
            request = asking(row, [rng.randint(0, 2) for _ in range(rng.randint(1, 9))])
            prompt = router._table.stretches(request)
            known = router._cached(request, prompt, replicas())
            costs.append([router.cost(request, prompt, number, known[number]) for number in range(2)])
            number = rng.randint(0, 1)
            router.book(request, prompt, number, known[number])
            running.append(row)
            while running and rng.random() < 0.6:
                router.ended(running.pop(rng.randrange(len(running))))
        texts_known.append(len(router._table._chains))
    assert texts_known[0] < texts_known[1]
    assert costs[:150] == costs[150:]
