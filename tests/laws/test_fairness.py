"""Law 11: vtc's service gap stays within its published bound; nobody starves under aging and the boost."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.decode_batch import DecodeBatch
from simulator.queues import Order, make_queue
from simulator.queues.vtc import Vtc
from simulator.request import Request
from simulator.request_state import RequestState
from tests.examples import examples
from tests.laws.orders import CLASSES, ORDERED, ordered_scenarios

Job = tuple[str, int, int]  # class, prompt and output tokens


@dataclass(slots=True)
class Server:
    """A server as in the paper: room for `capacity` tokens, kept for all that a request will need; no preemption.

    `service` is what each class was given, by the test's own account: its prompts at admission, its tokens in time.
    """

    order: str
    jobs: Sequence[tuple[int, Job]]  # by the step of their arrival
    capacity: int
    w_p: float
    w_q: float
    service: list[dict[str, float]] = field(default_factory=list)  # after each step
    backlog: list[set[str]] = field(default_factory=list)  # who waits in it
    counters: list[dict[str, float]] = field(default_factory=list)  # of those who wait, if the order has any

    def run(self) -> None:
        queue, batch = make_queue(self.order), DecodeBatch(4)
        batch.meter = queue.meter
        given = dict.fromkeys(CLASSES, 0.0)
        running: list[RequestState] = []
        coming = list(enumerate(self.jobs))
        for step in range(100_000):
            while coming and coming[0][1][0] <= step:
                row, (_, (name, inputs, outputs)) = coming.pop(0)
                queue.push(RequestState(Request(row, str(row), 0.0, inputs, outputs, outputs, 0, name), batch.clock))
            queue.at(float(step))
            new = []
            while len(queue) and self.fits([*running, queue.head]):
                new.append(queue.head)
                running.append(queue.head)
                given[queue.head.class_name] += self.w_p * queue.head.input_tokens
                queue.remove(queue.head)
            if batch.size:
                for live in batch.advance(1, float(step)):
                    batch.leave(live)
                    running.remove(live)
                for name in self.decoding:
                    given[name] += self.w_q
            for live in new:
                live.base_computed, live.base_outputs, live.last_token_s = live.input_tokens, 1, float(step)
                given[live.class_name] += self.w_q
                if queue.meter is not None:
                    queue.meter.sampled(live)
                if live.max_tokens > 1:
                    batch.join(live, live.max_tokens - 1)
                else:
                    running.remove(live)
            self.decoding = [live.class_name for live in running]
            self.service.append(dict(given))
            self.backlog.append({live.class_name for live in queue})
            if isinstance(queue, Vtc):
                self.counters.append({name: queue.counter(name) for name in self.backlog[-1]})
            if not (coming or running or len(queue)):
                return
        raise AssertionError("it never ends")

    decoding: list[str] = field(default_factory=list)  # of each request that decodes in the next step

    def fits(self, requests: Sequence[RequestState]) -> bool:
        return sum(live.input_tokens + live.max_tokens for live in requests) <= self.capacity

    def widest_gap(self, weights: dict[str, float]) -> float:
        """The largest difference in service between two classes over any time in which both wait all along."""
        widest = 0.0
        for one in CLASSES:
            for other in CLASSES:
                low = high = None
                for served, waits in zip(self.service, self.backlog, strict=True):
                    if one not in waits or other not in waits:
                        low = high = None
                        continue
                    ahead = served[one] / weights.get(one, 1.0) - served[other] / weights.get(other, 1.0)
                    low = ahead if low is None else min(low, ahead)
                    high = ahead if high is None else max(high, ahead)
                    widest = max(widest, high - low)
        return widest


@st.composite
def servers(draw: st.DrawFn, order: str, weights: dict[str, float]) -> Server:
    """Busy servers: short and long prompts and answers, floods and trickles, and more classes than one that wait."""
    longest = draw(st.sampled_from([4, 12, 40]))
    lengths = st.integers(1, longest)
    jobs = draw(
        st.lists(
            st.tuples(st.integers(0, 30), st.tuples(st.sampled_from(CLASSES), lengths, lengths)),
            min_size=2,
            max_size=40,
        )
    )
    w_p, w_q = draw(st.sampled_from([(1.0, 2.0), (1.0, 1.0), (0.0, 1.0), (0.5, 4.0)]))
    chosen = Order(order, class_weights=weights, w_p=w_p, w_q=w_q) if order == "vtc" else order
    jobs.sort(key=lambda job: job[0])
    return Server(chosen, jobs, draw(st.integers(2 * longest, 5 * longest)), w_p, w_q)


def most(server: Server, weights: dict[str, float]) -> float:
    """The paper's U: max(w_p L_input, w_q M); a class of weight w is charged 1 / w of it."""
    longest = max(inputs for _, (_, inputs, _) in server.jobs)
    return max(server.w_p * longest, server.w_q * server.capacity) / min([1.0, *weights.values()])


WEIGHTS = [{}, {"a": 0.5}, {"a": 2.0, "b": 4.0}]


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@given(data=st.data())
@examples(150)
def test_the_gap_between_classes_that_wait_is_bounded(weights: dict[str, float], data: st.DataObject) -> None:
    """Theorem 4.4 of the paper: at most 2 U, over any time; and lemma 4.3: their counters are at most U apart."""
    server = data.draw(servers("vtc", weights))
    server.run()
    bound = most(server, weights)
    assert server.widest_gap(weights) <= 2 * bound
    for counters in server.counters:
        assert max(counters.values(), default=0.0) - min(counters.values(), default=0.0) <= bound


@pytest.mark.parametrize("weights", WEIGHTS[:2], ids=str)
@given(data=st.data())
@examples(60)
def test_the_counters_are_the_service(weights: dict[str, float], data: st.DataObject) -> None:
    """Where everybody is there from the start, nobody is lifted: counters are what was served, over the weight."""
    server = data.draw(servers("vtc", weights))
    server.jobs = [(0, job) for _, job in server.jobs]
    server.run()
    for counters, service in zip(server.counters, server.service, strict=True):
        assert counters == {name: service[name] / weights.get(name, 1.0) for name in counters}


A_FLOOD = [("a", 5, 5)] * 100 + [("b", 5, 5)] * 100
LOPSIDED = [("a", 20, 1), ("b", 1, 20), ("c", 10, 10)] * 150


@pytest.mark.parametrize("jobs", [A_FLOOD, LOPSIDED], ids=["flood", "lopsided"])
def test_first_come_first_served_breaks_the_bound(jobs: list[Job]) -> None:
    """Everybody waits from the start: a class that comes first, or that has the longer answers, is served far more."""
    all_jobs = [(0, job) for job in jobs]
    fair, unfair = Server("vtc", all_jobs, 45, 1.0, 2.0), Server("fcfs", all_jobs, 45, 1.0, 2.0)
    fair.run()
    unfair.run()
    assert fair.widest_gap({}) <= 2 * most(fair, {}) == 180
    assert unfair.widest_gap({}) > 1000


@pytest.mark.parametrize("policy", ORDERED)
@given(data=st.data())
@examples(150)
def test_nobody_passes_who_has_aged(policy: str, data: st.DataObject) -> None:
    """Under sjf with aging, a later arrival enters first only while the earlier has waited no longer than aging_s."""
    scenario = data.draw(ordered_scenarios(policy, "sjf"))
    aging_s = data.draw(st.sampled_from([0.0, 0.004, 0.02, 0.3]))
    chosen: Any = scenario.policy
    aged = replace(scenario, replicas=1, policy=replace(chosen, order=Order("sjf", aging_s=aging_s)))
    requests = aged.run().records.requests
    arrival_s, scheduled_s = requests.arrival_s, requests.scheduled_s
    for row in range(len(arrival_s)):
        later = np.arange(len(arrival_s)) > row
        passed_s = scheduled_s[later & (scheduled_s < scheduled_s[row])]
        assert (passed_s - arrival_s[row] <= aging_s).all()


def test_without_aging_the_long_wait_for_as_long_as_short_ones_come() -> None:
    """A long request among short ones, one slot: the last of all, or next when it has waited 5 steps."""
    queue, aged = make_queue("sjf"), make_queue("sjf", aging_s=5.0)
    batch = DecodeBatch(16)
    served = {}
    for name, one in (("never", queue), ("aged", aged)):
        one.push(RequestState(Request(0, "long", 0.0, 1, 90, 90), batch.clock))
        for step in range(1, 60):
            one.push(RequestState(Request(step, str(step), float(step), 1, 2, 2), batch.clock))
            one.at(float(step))
            head = one.head
            one.remove(head)
            if head.row == 0:
                served[name] = step
    assert served == {"aged": 6}
