"""Routers as others deploy them: against decisions of their own code where it runs here, else by their rule."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import scenarios
from simulator.fleet.prompt_table import Stretch
from simulator.fleet.router import Draws, HighestInTurn, Replicas, prefix_scores, queue_scores
from simulator.fleet.routers import load_router
from simulator.fleet.routers.dynamo_kv import DynamoKv
from simulator.fleet.routers.llm_d import LlmD
from simulator.fleet.routers.ray_prefix_aware import RayPrefixAware
from simulator.fleet.routers.sglang_bucket import boundaries
from simulator.fleet.routers.sglang_cache_aware import SglangCacheAware
from simulator.fleet.routers.vllm_dp import ApiServer
from simulator.request import ArrivingRequest, PromptContent
from tests.scenarios.runs.test_runner import small

RECORDED = Path(__file__).parents[2] / "data" / "routers"


def recorded(name: str) -> Any:
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


def asking(row: int, tokens: tuple[int, ...]) -> ArrivingRequest:
    content = PromptContent(prompt_token_ids=tokens)
    at_s = 0.001 * row
    return ArrivingRequest(row, str(row), at_s, len(tokens), 9, 0, "", None, None, None, content, None, None, ())


def fleet(*loads: int, **others: Any) -> Replicas:
    """Replicas with so many unfinished requests."""
    made = [SimpleNamespace(index=index, num_unfinished=load, num_waiting=load) for index, load in enumerate(loads)]
    for name, values in others.items():
        for load, value in zip(made, values, strict=True):
            setattr(load, name, value)
    return Replicas(cast("Any", made))


def text(kind: int, shared: int, row: int, own: int) -> tuple[int, ...]:
    """A prompt that begins with a text's first tokens, and goes on with its own."""
    return (*range(1000 * kind, 1000 * kind + shared), *range(10**5 + 1000 * row, 10**5 + 1000 * row + own))


@pytest.mark.parametrize("run", [0, 1])
def test_dynamo_counts_and_chooses_as_recorded(run: int) -> None:
    router = load_router("dynamo_kv", {"knowledge": "approximate"})
    assert isinstance(router, DynamoKv)
    equals = 0
    for what, row, *seen in recorded("dynamo_kv")["runs"][run]:
        if what == "prefilled":
            router.began(row)
        elif what == "ended":
            router.ended(row)
        else:
            kind, shared, own, taken, counted, cached = seen
            request = asking(row, text(kind, shared, row, own))
            prompt = router._table.stretches(request)
            known = router._cached(request, prompt, fleet(0, 0, 0, 0))
            assert list(known.values()) == cached
            booked = [router._of(number) for number in range(4)]
            tokens = [each.prefill_tokens + request.input_tokens - 16 * known[n] for n, each in enumerate(booked)]
            assert [[had, each.with_blocks(prompt)] for had, each in zip(tokens, booked, strict=True)] == counted
            costs = [router.cost(request, prompt, number, known[number]) for number in range(4)]
            assert costs == [tokens / 16 + blocks for tokens, blocks in counted]
            assert costs[taken] == min(costs)
            equals += costs.count(min(costs)) > 1
            router.book(request, prompt, taken, known[taken])
    assert equals < 10, "most choices are no matter of chance"


def test_dynamo_leaves_an_idle_replica_without_the_common_beginning_to_the_end() -> None:
    router = load_router("dynamo_kv", {"knowledge": "approximate"})
    assert isinstance(router, DynamoKv)
    replicas, taken = fleet(0, 0, 0), []
    for row in range(20):
        taken.append(router.choose(asking(row, text(1, 64, row, 32)), replicas).index)
        if row < 19:
            router.ended(row)
    assert len(set(taken)) == 1
    assert router.choose(asking(20, text(1, 64, 20, 32)), replicas).index != taken[0]


@pytest.mark.parametrize(("temperature", "drawn"), [(0.5, (323, 1004, 2673)), (1.0, (738, 1238, 2024))])
def test_dynamo_draws_by_temperature_as_often_as_recorded(temperature: float, drawn: tuple[int, ...]) -> None:
    """4,000 choices of its own between workers that cost 60, 40 and 20 blocks."""
    router = load_router("dynamo_kv", {"temperature": temperature})
    assert isinstance(router, DynamoKv)
    times = Counter(router._draw([60.0, 40.0, 20.0]) for _ in range(4000))
    assert [times[place] for place in range(3)] == pytest.approx(drawn, abs=130)  # three standard deviations of each


def test_dynamo_credits_less_where_more_is_to_be_computed() -> None:
    """As its replay logs it: 64 of 96 tokens cached, 192 tokens more to compute than elsewhere are two prompts."""
    router = load_router("dynamo_kv", {"overlap_score_credit_decay": 2.0})
    assert isinstance(router, DynamoKv)
    request = asking(0, text(1, 64, 0, 32))
    prompt = router._table.stretches(request)
    router._of(0).prefill_tokens = 200
    assert router.cost(request, prompt, 0, 4, least_tokens=8) == (200 + 96) / 16 - 4 / (1 + 2 * 2) + 6
    assert router.cost(request, prompt, 0, 4, least_tokens=200) == (200 + 96) / 16 - 4 + 6


def test_dynamo_weighs_what_is_to_prefill_and_each_request() -> None:
    weights = {"prefill_load_scale": 3.0, "overlap_score_credit": 0.5, "decode_active_request_weight": 2.0}
    router = load_router("dynamo_kv", weights)
    assert isinstance(router, DynamoKv)
    request = asking(0, text(1, 64, 0, 32))
    router._of(0).prefill_tokens, router._of(0).requests = 200, 5
    assert router.cost(request, router._table.stretches(request), 0, 4) == 3 * ((200 + 96) / 16 - 0.5 * 4) + 6 + 2 * 5


def test_dynamo_draws_among_equals() -> None:
    router = load_router("dynamo_kv")
    assert isinstance(router, DynamoKv)
    assert {router._draw([2.0, 1.0, 1.0]) for _ in range(50)} == {1, 2}


def test_what_dynamo_takes_to_be_cached_is_forgotten_in_time() -> None:
    router = load_router("dynamo_kv", {"knowledge": "approximate", "ttl_s": 10.0})
    assert isinstance(router, DynamoKv)
    replicas, prompt = fleet(0, 0), text(1, 64, 0, 1)
    first = router.choose(asking(0, prompt), replicas)
    router.ended(0)
    found = []
    for row, now_s in ((1, 9.0), (2, 18.0), (3, 28.5)):
        request = asking(row, prompt)._replace(arrival_s=now_s)
        found.append(router._cached(request, router._table.stretches(request), replicas)[first.index])
        if row == 1:
            router.book(request, router._table.stretches(request), first.index, 4)  # used again: kept until 19 s
    assert found == [4, 4, 0]


def test_ray_names_the_replicas_that_its_own_code_names() -> None:
    router = load_router("ray_prefix_aware", {"block_size": 1})
    assert isinstance(router, RayPrefixAware)
    for row, (kind, shared, own, unfinished, named, taken) in enumerate(recorded("ray_prefix_aware")["choices"]):
        request = asking(row, text(kind, shared, row, own))
        keys = router._table.stretches(request)
        replicas = fleet(*unfinished)
        assert [load.index for load in router.named(request, keys, replicas)] == named
        if named:
            assert router.choose(request, replicas).index == taken
        else:
            router._table.add(keys, taken)


@pytest.mark.parametrize("run", [0, 1])
def test_sglang_chooses_as_recorded(run: int) -> None:
    recording = recorded("sglang_cache_aware")["runs"][run]
    router = load_router("sglang_cache_aware", {"block_size": 1, **recording["parameters"]})
    loads, taken_by = [0] * 4, {}
    for row, *sent in recording["events"]:
        if sent:
            kind, shared, own, taken = sent
            assert router.choose(asking(row, text(kind, shared, row, own)), fleet(*loads)).index == taken
            taken_by[row] = taken
        loads[taken_by[row]] += 1 if sent else -1


def test_sglang_evicts_at_intervals() -> None:
    router = load_router("sglang_cache_aware", {"block_size": 1, "max_tree_size": 4 * 20, "eviction_interval_s": 10.0})
    assert isinstance(router, SglangCacheAware)
    for kind in (1, 2):
        router.choose(asking(kind, text(kind, 16, kind, 0)), fleet(0))
    assert router._table.size(0) == 32
    router.choose(asking(3, text(2, 16, 3, 0))._replace(arrival_s=10.0), fleet(0))
    assert router._table.size(0) == 20
    assert router._table.longest(router._table.stretches(asking(4, text(1, 16, 4, 0))))[0] == 4  # ends go first


@pytest.mark.parametrize("run", [0, 1])
def test_sglang_s_buckets_choose_as_recorded(run: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.fleet.routers.sglang_bucket.CHARACTERS", 1)
    recording = recorded("sglang_bucket")["runs"][run]
    router = load_router("sglang_bucket", recording["parameters"])
    for row, (at_ms, length, taken) in enumerate(recording["requests"]):
        request = asking(row, ())._replace(arrival_s=at_ms / 1000, input_tokens=length)
        assert router.choose(request, fleet(0, 0, 0)).index == taken


@pytest.mark.parametrize(
    ("lengths", "share", "ends"),
    [
        ([33, 34, 34], 33, [33, 67]),
        ([5, 10, 15, 20, 24, 26], 33, [20, 26]),
        ([10, 20, 30, 40, 45, 57], 67, [40, 57]),
        ([20], 6, [20, 27]),
        ([7], 2, [7, 10]),
    ],
)
def test_boundaries_move_as_in_sglang_s_own_tests(lengths: list[int], share: int, ends: list[int]) -> None:
    """`test_load_balancing_conditions` and `test_adjust_boundary_1`, `_2` in bucket.rs."""
    assert boundaries(lengths, share, 3) == ends


def test_prefix_hash_bounds_the_load_of_a_popular_prefix() -> None:
    router = load_router("prefix_hash", {"prefix_tokens": 16, "overflow": "ring"})
    prompt = text(1, 64, 0, 1)
    home = router.choose(asking(0, prompt), fleet(0, 0, 0, 0)).index
    loads = [1] * 4
    for row in range(40):
        chosen = router.choose(asking(row, prompt), fleet(*loads)).index
        most = 1.25 * (sum(loads) + 1) / 4
        assert (chosen == home) == (loads[home] + 1 <= most or min(loads) + 1 > most)
        loads[chosen] += 1
    others = {router.choose(asking(row, text(2 + row, 64, row, 1)), fleet(0, 0, 0, 0)).index for row in range(40)}
    assert others == {0, 1, 2, 3}


@pytest.mark.parametrize(("load", "stays"), [(30, True), (35, False)])
def test_prefix_hash_accepts_the_loads_that_sglang_accepts(load: int, stays: bool) -> None:
    """100 requests on 4 workers, `test_load_ok_calculation` in prefix_hash.rs: 31.5 at most."""
    router = load_router("prefix_hash", {"prefix_tokens": 16})
    prompt = text(1, 64, 0, 1)
    home = router.choose(asking(0, prompt), fleet(0, 0, 0, 0)).index
    loads = [(100 - load) // 3] * 4
    loads[home] = load
    loads[(home + 1) % 4] += 100 - sum(loads)
    chosen = router.choose(asking(1, prompt), fleet(*loads)).index
    assert chosen == (home if stays else loads.index(min(loads)))


@pytest.mark.parametrize(
    ("queues", "scores"), [((10, 5, 0), [0.0, 0.5, 1.0]), ((5, 5), [1.0, 1.0]), ((0, 0), [1.0, 1.0])]
)
def test_queues_score_as_in_llm_d_s_own_test(queues: tuple[int, ...], scores: list[float]) -> None:
    """`TestQueueScorer` in scorer/queuedepth/queue_test.go of llm-d-router (6d7e4bcd)."""
    assert queue_scores(fleet(*queues)) == scores


def test_prefixes_score_as_in_llm_d_s_own_test() -> None:
    """`TestPrefixPluginScore` in scorer/prefix/plugin_test.go of llm-d-router (2b0e7579)."""
    assert prefix_scores({0: 5, 1: 2}, 10, fleet(0, 0)) == [0.5, 0.2]


@pytest.mark.parametrize(
    ("scores", "times"), [([50.0] * 8, [10] * 8), ([50.0, 50.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [40, 40])]
)
def test_equals_take_turns_as_in_llm_d_s_own_test(scores: list[float], times: list[int]) -> None:
    """80 picks: `TestEqualScoreDistribution` in picker/maxscore/picker_test.go of llm-d-router (0fa77a00)."""
    picker, replicas = HighestInTurn(), fleet(*[0] * 8)
    picked = Counter(picker.pick(scores, replicas).index for _ in range(80))
    assert [picked[number] for number in range(len(times))] == times


def test_one_counter_serves_ties_of_any_number() -> None:
    """`RotateScoredEndpoints`, picker/common.go: after a tie of two at 1 of 8 the counter is back at 0."""
    picker, replicas = HighestInTurn(), fleet(*[0] * 8)
    ties = [8, 8, 2, 8, 8, 4, 4, 8]
    assert [picker.pick([1.0] * tie + [0.0] * (8 - tie), replicas).index for tie in ties] == [0, 1, 0, 0, 1, 2, 3, 0]


def test_llm_d_adds_up_its_scores() -> None:
    """Replica 0 has the prompt and the longest queue: 3 + 0 + 2 x 0.5; replica 1 is idle: 0 + 2 + 2 x 0.9."""
    router = load_router("llm_d", {"block_size": 16})
    prompt = text(1, 64, 0, 0)
    blocks = (100, 100)
    busy = fleet(0, 1, kv_utilization=(0.0, 0.9), num_blocks=blocks)
    assert router.choose(asking(0, prompt), busy).index == 0
    unequal = fleet(4, 0, kv_utilization=(0.5, 0.4), num_blocks=blocks)
    assert router.choose(asking(1, prompt), unequal).index == 0  # 3 + 0 + 1 = 4 against 0 + 2 + 1.2
    assert router.choose(asking(2, text(2, 64, 2, 1)), unequal).index == 1  # 0 + 0 + 1 against 0 + 2 + 1.2


def test_llm_d_remembers_as_many_blocks_as_a_replica_has() -> None:
    """`TestIndexer_RemovePodAndEviction`, approximateprefix/indexer_test.go: the eleventh pushes out the first."""
    router = load_router("llm_d", {"block_size": 1})
    assert isinstance(router, LlmD)
    one = fleet(0, kv_utilization=(0.0,), num_blocks=(10,))
    prompt = asking(0, text(1, 11, 0, 0))
    router.choose(prompt, one)
    ((text_of, start, stop),) = router._table.stretches(prompt)
    assert router._table.held([Stretch(text_of, start, stop)]) == {}  # the first block of the prompt has gone
    assert router._table.held([Stretch(text_of, start + 1, stop)]) == {0: 10}


def test_llm_d_picks_who_decodes_and_then_who_prefills() -> None:
    """`PrefixBasedPDDecider`: apart from 48 tokens on that the picked one is not known to have; both picks remember."""
    router = load_router("llm_d", {"block_size": 16, "non_cached_tokens": 48})
    assert isinstance(router, LlmD)
    loads = [SimpleNamespace(index=i, num_waiting=0, kv_utilization=0.0, num_blocks=99) for i in range(4)]
    prefill, decode = Replicas(cast("Any", loads[:2])), Replicas(cast("Any", loads[2:]))

    def picks(row: int, prompt: tuple[int, ...]) -> tuple[int, int | None]:
        request = asking(row, prompt)
        number = router.for_decode().choose(request, decode).index
        return number, router.choose(request, prefill).index if router.prefills_apart(request, number) else None

    first = picks(0, text(1, 64, 0, 0))
    assert first[1] is not None
    assert picks(1, text(1, 64, 1, 47)) == (first[0], None)
    assert picks(2, text(1, 64, 2, 48)) == first  # of the replicas that prefill, the one that has the beginning
    assert picks(3, text(2, 47, 3, 0))[1] is None  # shorter than the threshold
    assert picks(4, text(3, 48, 4, 0))[1] is not None


def test_llm_d_s_second_pick_does_not_see_the_first() -> None:
    """Of a prompt whose beginning no server has nothing is known, though the one to decode has it from now on."""
    router = load_router("llm_d", {"block_size": 16})
    assert isinstance(router, LlmD)
    rooms = (3, 3, 4)  # blocks of two replicas that prefill and of one that decodes
    loads = [SimpleNamespace(index=i, num_waiting=0, kv_utilization=0.0, num_blocks=n) for i, n in enumerate(rooms)]
    prefill, decode = Replicas(cast("Any", loads[:2])), Replicas(cast("Any", loads[2:]))

    def prefills(row: int, prompt: tuple[int, ...]) -> int:
        request = asking(row, prompt)
        assert router.for_decode().choose(request, decode).index == 2
        return router.choose(request, prefill).index

    assert prefills(0, text(1, 64, 0, 0)) == 0  # has room for three of its four blocks: all but the first
    loads[0].num_waiting = 9
    assert prefills(1, text(2, 64, 1, 0)) == 1  # and who decodes forgets the first prompt
    assert prefills(2, text(1, 64, 2, 0)) == 1  # 0 + 2 of the queue; replica 0 would have 3 x 3 / 4


@pytest.mark.parametrize(
    "name",
    [
        "dynamo_kv",
        "llm_d",
        "prefix_hash",
        "ray_prefix_aware",
        "sglang_bucket",
        "sglang_cache_aware",
        "vllm_kv_aware",
        "vllm_load_aware",
        "vllm_prefix_aware",
    ],
)
def test_no_request_is_lost_or_served_twice(name: str) -> None:
    scenario = small(replicas=3, router=name, engine__enable_prefix_caching=True)
    result = scenarios.run(scenario)
    rows = result.records.requests.row.tolist()
    assert sorted(rows) == list(range(len(rows)))
    assert result.summary["completed"] == len(rows)
    assert set(result.records.requests.replica.tolist()) == {0, 1, 2}
    assert scenarios.run(scenario, fast_forward=False).summary == result.summary


def test_dynamo_hears_of_every_first_token_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[DynamoKv] = []
    started = DynamoKv.start

    def start(self: DynamoKv, draws: Draws) -> None:
        made.append(self)
        started(self, draws)

    monkeypatch.setattr(DynamoKv, "start", start)
    scenarios.run(small(replicas=3, router={"kind": "dynamo_kv", "knowledge": "approximate"}, engine__max_num_seqs=2))
    (router,) = [each for each in made if each._booked]  # a scenario is looked at before it runs
    assert not router._sent
    left = [(each.num_blocks, each.requests, each.prefill_tokens) for each in router._booked.values()]
    assert left == 3 * [(0, 0, 0)]


def test_random_numbers_are_uniform() -> None:
    draws = Draws(np.random.Generator(np.random.PCG64(1)))
    assert np.mean([draws.uniform() for _ in range(1000)]) == pytest.approx(0.5, abs=0.03)


def test_an_api_server_takes_the_others_to_choose_alike() -> None:
    """Two servers: a request of this one adds two to the rank's queue, until the next look."""
    ranks = fleet(0, 2, num_running=(0, 0), kv_utilization=(0.0, 0.0))
    ranks.looks = 0
    server = ApiServer(0, 2)
    assert [server.choose(ranks).index for _ in range(2)] == [0, 1]
    ranks.looks = 1
    assert server.choose(ranks).index == 0
