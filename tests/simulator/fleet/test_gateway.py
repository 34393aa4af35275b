"""A gateway's flow control: its rules one by one, and that no request is lost or served twice."""

from math import inf
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import scenarios
from simulator.engine.clock import Clock
from simulator.fleet.dispatch import TokensInFlight
from simulator.fleet.gateway import DISPATCH_S, FlowControl, Gateway
from simulator.fleet.routers import load_router
from simulator.fleet.routers.llm_d import LlmD
from simulator.request import Request
from simulator.results.records import Passage, Status
from tests.scenarios.runs.test_runner import small
from tests.simulator.fleet.test_deployed_routers import fleet as load_fleet
from tests.simulator.fleet.test_prefixes import asking


class Fleet:
    """A dispatch whose replicas are as full as the test says; it keeps what it was given, and when."""

    def __init__(self, *waiting: int, kv: float = 0.0) -> None:
        self.replicas = [
            SimpleNamespace(index=index, num_waiting=each, num_unfinished=each, expected=0, kv_utilization=kv)
            for index, each in enumerate(waiting)
        ]
        self.sides = (self.replicas,)
        self.in_flight = None
        self.given: list[tuple[float, int]] = []
        self.requests: list[Request] = []
        self.clock = Clock()
        self.ended: list[tuple[int, str]] = []
        self.passages: list[tuple[int, float, float, Passage]] = []
        self.reject_reasons: dict[int, str] = {}

    def submit(self, request: Request) -> int:
        self.given.append((round(self.clock.now, 6), request.row))
        self.requests.append(request)
        return 0

    def request(self, live: Any, replica: int, status: Status, released_s: float) -> None:
        self.ended.append((live.row, status.name))

    def gateway(self, live: Any = None, **control: Any) -> Gateway:
        recorder = SimpleNamespace(
            passages=SimpleNamespace(add=self.passages.append), reject_reasons=self.reject_reasons, request=self.request
        )
        me, now = cast("Any", self), cast("Any", self.replicas) if live is None else live
        return Gateway(self.clock, me, FlowControl(**control), cast("Any", recorder), None, now)

    def set(self, at_s: float, waiting: int) -> None:
        self.clock.call(at_s, lambda: setattr(self.replicas[0], "num_waiting", waiting))


def asks(row: int, priority: int = 0, flow: str = "default", deadline_s: float | None = None) -> Request:
    return Request(row, str(row), 0.0, 8, 4, 4, priority, flow, deadline_s=deadline_s)


@pytest.mark.parametrize(
    ("waiting", "kv", "saturation"), [((0, 0), 0.0, 0.0), ((5, 0), 0.4, 0.75), ((10, 0), 0.0, 1.0), ((0,), 0.8, 1.0)]
)
def test_saturation_is_the_mean_of_the_fuller_of_queue_and_kv(
    waiting: tuple[int, ...], kv: float, saturation: float
) -> None:
    assert FlowControl().saturation(cast("Any", Fleet(*waiting, kv=kv).replicas)) == saturation


def test_the_other_detector_counts_requests_in_flight() -> None:
    """Whatever the queues and the KV: 3 + 1 of 2 x 2; the less important stop at half of that."""
    replicas = cast("Any", Fleet(3, 1, kv=1.0).replicas)
    assert FlowControl(detector="concurrency", max_concurrency=2).saturation(replicas) == 1.0
    assert FlowControl(detector="concurrency").saturation(replicas) == 0.02
    fleet = Fleet(1)
    gateway = fleet.gateway(detector="concurrency", max_concurrency=2, min_ceiling=0.5)
    assert [gateway.submit(asks(row, priority=priority)) for row, priority in enumerate((1, 0))] == [0, 0]
    assert gateway.submit(asks(2, priority=1)) == -1


@pytest.mark.parametrize(("mode", "saturation"), [("requests", 0.4), ("tokens", 0.5), ("hybrid", 0.7)])
def test_tokens_count_by_themselves_or_beside_requests(mode: Any, saturation: float) -> None:
    """Of two replicas one has 4 of 5 requests, the other 60 of 100 tokens: 40 % and 0, 20 % and 60."""
    control = FlowControl(detector="concurrency", concurrency_mode=mode, max_concurrency=5, max_token_concurrency=100)
    assert control.saturation(cast("Any", Fleet(4, 0).replicas), {0: 40, 1: 60}) == pytest.approx(saturation)


def test_prompts_in_flight_hold_others_back() -> None:
    """One slot, prompts of 40 tokens and room for 100 tokens: three are sent, and one more as each begins."""
    control = {"detector": "concurrency", "concurrency_mode": "tokens", "max_token_concurrency": 100, "ttl_s": None}
    scenario = small(replicas=1, engine__max_num_seqs=1, flow_control=control)
    scenario["workload"] = {"requests": 6, "arrival": {"process": "poisson", "rate": 1e6}, "classes": [
        {"name": "a", "input": {"dist": "fixed", "value": 40}, "output": {"dist": "fixed", "value": 5}}
    ]}  # fmt: skip
    result = scenarios.run(scenario)
    requests, passages = result.records.requests, result.records.passages
    assert passages is not None
    sent_s = np.empty(6)
    sent_s[passages.row] = passages.at_s
    assert (sent_s[:3] == requests.arrival_s[:3]).all()
    first_s = requests.first_token_s
    assert (sent_s[3:] >= first_s[:3]).all()
    assert (sent_s[3:] <= first_s[:3] + 2 * DISPATCH_S).all()
    assert scenarios.run(scenario, fast_forward=False).summary == result.summary


@pytest.mark.parametrize("apart", [False, True])
def test_tokens_in_flight_come_to_nothing(apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever leaves, expires or is rejected."""
    made: list[TokensInFlight] = []
    most = [0]
    begin, sent = TokensInFlight.__init__, TokensInFlight.sent

    def init(self: TokensInFlight, *given: Any) -> None:
        begin(self, *given)
        made.append(self)

    def told(self: TokensInFlight, request: Any, number: int) -> None:
        sent(self, request, number)
        most.append(sum(self.by_number.values()))

    monkeypatch.setattr(TokensInFlight, "__init__", init)
    monkeypatch.setattr(TokensInFlight, "sent", told)
    where = {"fleet": HALVES} if apart else {"replicas": 2, "engine__max_num_seqs": 1, "engine__max_queued_requests": 1}
    control = {"detector": "concurrency", "concurrency_mode": "hybrid", "max_token_concurrency": 300, "ttl_s": 0.2}
    scenario = small(router="llm_d", flow_control=control, **where)
    scenario["workload"]["client"] = CLIENT
    scenarios.run(scenario)
    (tokens,) = made
    assert max(most) > 300
    assert not tokens._sent
    assert not any(tokens.by_number.values())


def test_llm_d_counts_what_was_not_sent_there_before() -> None:
    """In blocks: of 100 tokens two blocks of 64 are looked at, and one is known."""
    router = load_router("llm_d", {"block_size": 64, "max_prefix_tokens": 128})
    assert isinstance(router, LlmD)
    replicas = load_fleet(0, 0, kv_utilization=(0.0, 0.9), num_blocks=(99, 99))
    chosen = router.choose(asking(0, range(64)), replicas).index
    assert router.uncached_tokens(asking(0, range(64)), chosen) == 64
    again = asking(1, range(100))
    router.choose(again, replicas)
    assert [router.uncached_tokens(again, number) for number in (chosen, 1 - chosen)] == [64, 128]
    longer = asking(2, range(300))
    router.choose(longer, replicas)
    assert router.uncached_tokens(longer, chosen) == 128 - 64 + 172


def test_the_other_detector_knows_at_once_what_has_ended() -> None:
    """The router still sees the three of the last look."""
    fleet = Fleet(3)
    live = [SimpleNamespace(num_unfinished=1)]
    assert fleet.gateway(live, detector="concurrency", max_concurrency=2).submit(asks(0)) == 0
    assert fleet.gateway(detector="concurrency", max_concurrency=2).submit(asks(1)) == -1


def test_what_waited_arrives_as_it_is_sent_on() -> None:
    """To router and replica a request of time 0 arrives at 3 ms, with what is left of its deadline."""
    fleet = Fleet(5)
    gateway = fleet.gateway()
    gateway.submit(asks(0, deadline_s=0.5))
    fleet.set(0.0025, 0)
    fleet.clock.run()
    assert [(request.arrival_s, request.deadline_s) for request in fleet.requests] == [(0.003, 0.497)]


def test_one_request_passes_on_each_arrival_and_each_millisecond() -> None:
    fleet = Fleet(5)
    gateway = fleet.gateway()
    assert [gateway.submit(asks(row)) for row in range(3)] == [-1, -1, -1]
    fleet.set(0.0025, 0)
    fleet.clock.run()
    assert fleet.given == [(0.003, 0), (0.004, 1), (0.005, 2)]


def test_the_more_important_come_first_and_nothing_passes_them() -> None:
    fleet = Fleet(5)
    gateway = fleet.gateway()
    for row, priority in enumerate((2, 1, 0, 1)):
        gateway.submit(asks(row, priority))
    fleet.set(0.0005, 0)
    fleet.clock.run()
    assert [row for _, row in fleet.given] == [2, 1, 3, 0]


def test_the_less_important_stop_earlier() -> None:
    fleet = Fleet(3)  # 0.6 full
    gateway = fleet.gateway(min_ceiling=0.5)
    assert FlowControl(min_ceiling=0.5).ceilings(3) == [1.0, 0.75, 0.5]
    assert gateway.submit(asks(0, priority=0)) == 0
    assert gateway.submit(asks(1, priority=1)) == -1
    assert gateway.submit(asks(2, priority=0)) == 0


@pytest.mark.parametrize(("fairness", "order"), [("global_strict", [0, 1, 2, 3]), ("round_robin", [0, 3, 1, 2])])
def test_flows_take_turns_or_the_foremost_request_is_next(fairness: str, order: list[int]) -> None:
    fleet = Fleet(5)
    gateway = fleet.gateway(fairness=fairness)
    for row, flow in enumerate("aaab"):
        gateway.submit(asks(row, flow=flow))
    fleet.set(0.0005, 0)
    fleet.clock.run()
    assert [row for _, row in fleet.given] == order


def test_deadlines_order_a_flow() -> None:
    fleet = Fleet(5)
    gateway = fleet.gateway(ordering="deadline")
    for row, deadline_s in enumerate((None, 9.0, 3.0)):
        gateway.submit(asks(row, deadline_s=deadline_s))
    fleet.set(0.0005, 0)
    fleet.clock.run()
    assert [row for _, row in fleet.given] == [2, 1, 0]


def test_what_finds_the_queue_full_is_shed_and_what_waits_too_long_expires() -> None:
    fleet = Fleet(5)
    gateway = fleet.gateway(max_requests_per_priority=2, ttl_s=0.5)
    assert [gateway.submit(asks(row)) for row in range(3)] == [-1, -1, -1]
    assert fleet.ended == [(2, "REJECTED")]
    gateway.abort(-1, 1)
    fleet.set(0.6, 0)
    fleet.clock.run()
    assert not fleet.given
    assert fleet.ended == [(2, "REJECTED"), (1, "ABORTED"), (0, "REJECTED")]
    assert fleet.reject_reasons == {
        2: "the queue is full: flow_control.max_requests_per_priority is 2",
        0: "it waited too long at the gateway: flow_control.ttl_s is 0.5",
    }
    assert fleet.passages == [(2, 0.0, 0.0, Passage.SHED), (1, 0.0, 0.0, Passage.LEFT), (0, 0.5, 0.5, Passage.EXPIRED)]


def test_what_waits_at_the_end_of_the_run_is_unfinished() -> None:
    fleet = Fleet(5)
    gateway = fleet.gateway(ttl_s=inf)
    gateway.submit(asks(0))
    gateway.abandon()
    assert fleet.ended == [(0, "UNFINISHED")]


CLIENT = {"max_attempts": 3, "backoff_s": 0.05, "timeout_s": 0.5}


@pytest.mark.parametrize(
    ("most", "ttl_s", "ordering", "interval_s", "retries"),
    [
        (None, 0.02, "fcfs", 0.0, True),
        (2, 0.2, "deadline", 0.05, True),
        (2, None, "fcfs", 0.05, False),
        (4, 0.1, "fcfs", 0.0, False),
    ],
)
def test_no_request_is_lost_or_served_twice(
    most: int | None, ttl_s: float | None, ordering: str, interval_s: float, retries: bool
) -> None:
    scenario = small(
        replicas=2,
        router={"kind": "least_loaded", "signal_interval_s": interval_s},
        engine__max_num_seqs=1,
        flow_control={"queue_depth_threshold": 1, "max_requests": most, "ttl_s": ttl_s, "ordering": ordering},
    )
    if retries:
        scenario["workload"]["client"] = CLIENT
    result = scenarios.run(scenario)
    requests, passages = result.records.requests, result.records.passages
    assert passages is not None
    assert sorted(passages.row) == list(requests.row)
    assert len(set(requests.row)) == len(requests.row)
    went = np.zeros(len(requests.row), bool)
    went[passages.row[passages.passage == Passage.DISPATCHED]] = True
    assert ((requests.replica >= 0) == went).all()
    assert np.isin(requests.status[went], [Status.FINISHED, *[Status.ABORTED] * retries]).all()
    assert np.isin(requests.status[~went], [Status.REJECTED, *[Status.ABORTED] * retries]).all()
    if retries:
        calls = result.records.calls
        assert calls is not None
        served = calls.first_row[requests.status == Status.FINISHED]
        assert len(set(served)) == len(served)
        assert calls.attempt.max() <= CLIENT["max_attempts"]
    begun = went & ~np.isnan(requests.scheduled_s)
    waits = np.empty(len(requests.row))
    waits[passages.row] = passages.wait_s
    assert (requests.scheduled_s[begun] >= (requests.arrival_s + waits)[begun] - 1e-9).all()
    if ttl_s is not None:
        assert waits.max() <= ttl_s + 1e-9
    assert scenarios.run(scenario, fast_forward=False).summary == result.summary


def test_a_gateway_that_never_holds_back_changes_nothing() -> None:
    plain = small(replicas=2, router="least_loaded")
    held = small(replicas=2, router="least_loaded", flow_control={"queue_depth_threshold": 10**6, "ttl_s": None})
    shut = {"mean_gateway_wait_ms": 0.0, "p99_gateway_wait_ms": 0.0, "gateway_held_rate": 0.0}
    summary = scenarios.run(held).summary
    assert {key: summary[key] for key in shut} == shut
    assert scenarios.run(plain).summary.items() <= summary.items()


HALVES = [{"name": "p", "replicas": 2, "role": "prefill"}, {"name": "d", "replicas": 2, "role": "decode"}]


@pytest.mark.parametrize("interval_s", [0.0, 0.05])
def test_prefill_and_decode_apart_have_one_queue(interval_s: float) -> None:
    """Held back while the mean over both sides is too high; what is still prefilled elsewhere does not wait."""
    fleet = [{**half, "replicas": count, "engine": {"max_num_seqs": 1}}
             for half, count in zip(HALVES, (1, 2), strict=True)]  # fmt: skip
    router = {"kind": "least_loaded", "signal_interval_s": interval_s}
    control = {"queue_depth_threshold": 1, "kv_cache_util_threshold": 0.05, "ttl_s": 0.2}
    scenario = small(fleet=fleet, router=router, flow_control=control)
    scenario["workload"]["client"] = CLIENT
    result = scenarios.run(scenario)
    requests, passages = result.records.requests, result.records.passages
    assert passages is not None
    assert sorted(passages.row) == list(requests.row)
    went = passages.row[passages.passage == Passage.DISPATCHED]
    assert set(went) == set(np.flatnonzero(requests.replica >= 0))
    assert np.isin(requests.status[went], [Status.FINISHED, Status.ABORTED]).all()
    assert {Passage.DISPATCHED, Passage.EXPIRED} <= set(passages.passage)
    assert (passages.wait_s > 0).any()
    assert scenarios.run(scenario, fast_forward=False).summary == result.summary


def test_a_gateway_that_never_holds_back_changes_nothing_of_halves() -> None:
    plain = small(fleet=HALVES, router="least_loaded")
    held = small(fleet=HALVES, router="least_loaded", flow_control={"queue_depth_threshold": 10**6, "ttl_s": None})
    assert scenarios.run(plain).summary.items() <= scenarios.run(held).summary.items()


def test_what_is_on_its_way_does_not_wait() -> None:
    fleet = Fleet(8)
    fleet.replicas[0].expected = 8
    assert FlowControl().saturation(cast("Any", fleet.replicas)) == 0.0
