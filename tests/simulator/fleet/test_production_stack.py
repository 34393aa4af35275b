"""Routers of vLLM's production stack, by their rules."""

from typing import Any, cast

import pytest

from simulator.fleet.production_stack import SentLately
from simulator.fleet.routers import load_router
from simulator.fleet.routers.vllm_kv_aware import VllmKvAware
from tests.simulator.fleet.test_deployed_routers import fleet, text
from tests.simulator.fleet.test_prefixes import asking


def test_vllm_prefix_aware_takes_the_longest_prefix_whatever_the_load() -> None:
    router = load_router("vllm_prefix_aware")
    prompt = text(1, 96, 0, 1)
    home = router.choose(asking(0, prompt), fleet(0, 0, 0, 0)).index
    loads = [9 * (number == home) for number in range(4)]
    assert {router.choose(asking(row, text(1, 96, row, 9)), fleet(*loads)).index for row in range(1, 9)} == {home}
    assert len({router.choose(asking(row, text(row, 96, row, 1)), fleet(*loads)).index for row in range(9, 40)}) == 4


def test_a_short_match_goes_to_the_fewest_requests_and_is_remembered() -> None:
    """`test_below_threshold_seeding_enables_later_pinning` in test_prefixaware_router.py: a piece of 128."""
    router = load_router("vllm_prefix_aware", {"prefix_min_match_length": 128})
    assert router.choose(asking(0, text(1, 32, 0, 18)), fleet(0, 0, 0)).index == 0  # none was sent any
    assert [router.choose(asking(row, text(row, 32, row, 0)), fleet(0, 0, 0)).index for row in (2, 3)] == [1, 2]
    assert {router.choose(asking(row, text(1, 32, row, 18)), fleet(9, 0, 0)).index for row in range(4, 9)} == {0}
    assert router.choose(asking(9, text(9, 31, 9, 0)), fleet(0, 0, 0)).index == 1
    strict = load_router("vllm_prefix_aware", {"prefix_min_match_length": 129})
    assert [strict.choose(asking(row, text(1, 32, row, 18)), fleet(0, 0, 0)).index for row in range(4)] == [0, 1, 2, 0]


def test_a_longer_prefix_of_a_replica_that_is_gone_is_passed_over() -> None:
    """`longest_prefix_match` in hashtrie.py looks among available endpoints, as Ray's and SGLang's trees do."""
    for name in ("vllm_prefix_aware", "ray_prefix_aware", "sglang_cache_aware", "prefix_affinity"):
        router: Any = load_router(name, {"block_size": 2})
        first, longer = asking(0, text(1, 8, 0, 0)), asking(1, text(1, 12, 1, 0))
        for request, number in ((first, 2), (longer, 1)):
            prompt = router._table.stretches(request)
            router._table.add(prompt, number)
            if name == "sglang_cache_aware":
                router._first.add(prompt, number)
        replicas = fleet(0, 0, 0)
        replicas.take_out(1)
        assert router.choose(asking(2, text(1, 12, 2, 1)), replicas).index == 2, name


def test_the_production_stack_counts_the_requests_of_its_window() -> None:
    sent = SentLately(10.0)
    for number, now_s in ((0, 0.0), (0, 1.0), (1, 9.0)):
        sent.add(number, now_s)
    assert [sent.count(number, 10.5) for number in (0, 1, 2)] == [1, 1, -1]
    assert [sent.count(number, 12.0) for number in (0, 1, 2)] == [0, 1, -1]
    for row in range(1000):
        sent.add(0, 20.0 + row)
    assert len(sent._sent[0]) == 11  # though nobody asked
    assert sent.fewest(fleet(0, 0), 1020.0).index == 1


class Stored:
    """A cache of which it is known when each chunk was stored."""

    def __init__(self, *events: int | None) -> None:
        self.events = list(events)

    def stored(self, request: Any, chunk_tokens: int) -> list[int | None]:
        return self.events


@pytest.mark.parametrize(
    ("named", "caches", "found"),
    [
        ("stored", [(None,), (None,)], {}),
        ("stored", [(5, 6, 7), (3, None, None)], {1: 256, 0: 768}),
        ("stored", [(5, 1, None), (3, 2, 4)], {1: 768, 0: 512}),  # another is named in between
        ("stored", [(1, None, 2), (2, None, 3)], {0: 256}),  # what nobody has ends the search
        ("registered", [(None,), (None,)], {}),
        ("registered", [(5, 6, 7), (3, None, None)], {0: 768}),
        ("registered", [(None, 1, None), (3, 2, 4)], {1: 768, 0: 512}),
        ("registered", [(None, None, 2), (2, None, 3)], {1: 256}),
    ],
)
def test_the_look_up_names_one_replica_a_chunk(named: str, caches: Any, found: dict[int, int]) -> None:
    """The first to have stored it, as LMCache did up to 0.3.10, or the first of all that have it."""
    router = load_router("vllm_kv_aware", {"named": named})
    assert isinstance(router, VllmKvAware)
    router.listen(cast("Any", {number: Stored(*events) for number, events in enumerate(caches)}))
    ends = router.looked_up(asking(0, list(range(800))), fleet(0, 0))
    assert list(ends.items()) == list(found.items())


def test_kv_aware_takes_who_is_named_for_the_first_chunk() -> None:
    """Though another has more of the prompt."""
    for named, number in (("stored", 1), ("registered", 0)):
        router: Any = load_router("vllm_kv_aware", {"named": named})
        router.listen({0: Stored(5, 6, 7), 1: Stored(3, None, None)})
        assert router.choose(asking(0, list(range(800))), fleet(0, 0)).index == number


def test_load_aware_weighs_the_named_share_against_the_load() -> None:
    """Half of the prompt is worth half of the mean load: 2 of a mean of 4 above it."""
    router: Any = load_router("vllm_load_aware")
    router.listen({1: Stored(1)})
    half = asking(0, list(range(512)))
    assert router.scores({1: 256}, 512, fleet(2, 6, 4)) == [0.5, 0.0, 0.0]
    assert router.choose(half, fleet(4, 5, 4)).index == 1  # 0.5 - 0.67 / 4.33 against 0.33 / 4.33
    assert router.choose(half, fleet(4, 7, 4)).index == 0  # 0.5 - 2 / 5 against 1 / 5
    assert router.choose(half, fleet(0, 0, 1)).index == 1  # of a mean below 1 no more than the difference counts
    assert router.scores({1: 768}, 512, fleet(0, 0, 0)) == [0.0, 1.0, 0.0]
    blind: Any = load_router("vllm_load_aware", {"beta": 0.0})
    blind.listen({1: Stored(1)})
    assert blind.choose(half, fleet(0, 99, 0)).index == 1


def test_load_aware_falls_back_as_kv_aware_does() -> None:
    router: Any = load_router("vllm_load_aware")
    router.listen({0: Stored(None), 1: Stored(None)})
    assert [router.choose(asking(row, [row] * 400), fleet(9, 9, 0)).index for row in range(3)] == [0, 1, 2]
    assert len({router.choose(asking(9 + row, [row], "s"), fleet(0, 0, 0)).index for row in range(9)}) == 1


def test_kv_aware_falls_back_to_sessions_and_to_the_fewest_requests() -> None:
    router = load_router("vllm_kv_aware", {"kv_aware_threshold": 100})
    assert isinstance(router, VllmKvAware)
    router.listen(cast("Any", {0: Stored(None), 1: Stored(1)}))
    three = fleet(0, 0, 0)
    assert router.choose(asking(0, list(range(356))), three).index == 1  # 256 of 356 are there
    assert router.choose(asking(1, list(range(357))), three).index == 0  # 256 of 357: the first that was sent none
    assert router.choose(asking(2, list(range(357))), three).index == 2
    assert [router.choose(asking(row, [row] * 400), three).index for row in (3, 4, 5)] == [0, 1, 2]
    assert router.choose(asking(66, [1] * 400), three).index == 0  # what was sent before 6 s counts no more
    faithful = {router.choose(asking(70 + row, [row] * 400, "s"), three).index for row in range(9)}
    assert len(faithful) == 1
