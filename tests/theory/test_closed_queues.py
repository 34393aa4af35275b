"""Closed queues: N users who think, ask, wait for the answer, and think again.

The interactive response time law holds exactly on every recorded run; throughputs and times of the machine repairman
(closed M/M/1 and M/M/c) within the confidence interval.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from simulator.front_end import NO_FRONT_END, FrontEnd
from simulator.results.records import Floats, Records, Status
from simulator.simulate import simulate
from simulator.timing.formula_cost import Linear
from simulator.workload import ClosedLoop, Workload
from tests.laws.scenarios import POLICIES, Memory, make_policy
from tests.theory.queues import AMPLE, BUDGET, SEEDS, holds, interval

STEP_S = 0.005
SERVICE_S = 1.0


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed loop: `users`, a mean think time, and the pool they take from, in tokens a step each."""

    users: int
    think_s: float
    requests: int
    seed: int
    constant_think: bool = False

    def pool(self, count: int) -> Workload:
        """Exponential think times, and answers of exponential length, in steps."""
        rng = np.random.default_rng([self.users, self.seed])
        think_s = rng.exponential(self.think_s, count)
        if self.constant_think:
            think_s = np.full(count, self.think_s)
        steps = np.maximum(1, np.rint(rng.exponential(SERVICE_S / STEP_S, count))).astype(np.int64)
        none = np.zeros(count, dtype=np.int64)
        cap = np.full(count, int(steps.max()))
        return Workload(
            np.zeros(count), none + 1, steps, cap, none, none, after_row=none - 1, delay_s=think_s, request_ids=None
        )

    def workload(self) -> Workload:
        none = np.zeros(0, dtype=np.int64)
        loop = ClosedLoop(self.users, self.pool, self.requests)
        return Workload(np.zeros(0), none, none, none, none, none, loops=(loop,))


def run(
    case: Closed,
    name: str,
    slots: int,
    *,
    replicas: int = 1,
    memory: Memory = AMPLE,
    front_end: FrontEnd = NO_FRONT_END,
) -> Records:
    options = {"batch_timeout_s": 0.0} if name == "static" else {}
    policy = make_policy(name, slots, BUDGET, **options)
    return simulate(
        case.workload(),
        make_policy=lambda: policy,
        kv=memory,
        cost=Linear(STEP_S, 0.0, 0.0),
        replicas=replicas,
        router="least_loaded",
        front_end=front_end,
    ).at_clients()


# The law


@pytest.mark.parametrize(
    ("replicas", "front_end"),
    [
        (1, NO_FRONT_END),
        (3, FrontEnd(0.02, 0.03, 0.0005)),
        *(
            pytest.param(*setting, marks=pytest.mark.long)
            for setting in ((1, FrontEnd(0.02)), (1, FrontEnd(0.02, 0.03)), (3, NO_FRONT_END), (3, FrontEnd(0.02)))
        ),
    ],
)
@pytest.mark.parametrize("name", POLICIES)
def test_interactive_response_time_law(name: str, replicas: int, front_end: FrontEnd) -> None:
    """X = N / (R + Z), exactly, from time 0 until the first user finds nothing left to ask.

    X counts the answers in that time T, over T. R and Z are the time spent waiting and thinking within T, per answer:
    P. J. Denning, J. P. Buzen, The Operational Analysis of Queueing Network Models (1978). The law then says that every
    user was either thinking or waiting all the time, once: N T = C (R + Z).
    """
    case = Closed(users=7, think_s=0.4, requests=150, seed=1)
    records = run(case, name, 3, replicas=replicas, front_end=front_end)
    requests = records.requests
    assert np.all(requests.status == Status.FINISHED)
    order = np.array([int(name) for name in records.request_ids or ()])
    think_s = case.pool(case.requests).delay_s
    assert think_s is not None
    asked_s, answered_s = requests.arrival_s, requests.last_token_s
    begun_s = asked_s - think_s[order]
    until_s = float(np.sort(answered_s)[case.requests - case.users])  # the first who is answered, and has no next
    answers = int((answered_s <= until_s).sum())
    waiting_s = within(asked_s, answered_s, until_s) / answers
    thinking_s = within(begun_s, asked_s, until_s) / answers
    assert answers / until_s == pytest.approx(case.users / (waiting_s + thinking_s), rel=1e-12)


def within(from_s: Floats, to_s: Floats, until_s: float) -> float:
    """Seconds of these stretches before a time, all together."""
    return float((np.minimum(to_s, until_s) - np.minimum(from_s, until_s)).sum())


def test_the_law_in_the_summary() -> None:
    """Over a long run the means of the summary obey the law too, but for the ends of the run."""
    from simulator.metrics.summary import summarize

    case = Closed(users=8, think_s=3.0, requests=8_000, seed=5)
    records = run(case, "continuous", 4)
    found = summarize(records)
    think_s = case.pool(case.requests).delay_s
    assert think_s is not None
    seconds = float(found["mean_e2el_ms"] or 0) / 1e3 + float(think_s.mean())
    assert found["request_throughput"] == pytest.approx(case.users / seconds, rel=0.01)


# The machine repairman


def repairman(users: int, think_s: float, service_s: float, servers: int) -> tuple[float, float]:
    """Throughput and mean time in the system of closed M/M/c: users who think, and c servers with one queue.

    P(k users in the system) is proportional to the product of (N - i) / (Z / S x min(i + 1, c)) over i < k
    (L. Kleinrock, Queueing Systems 1 (1975), 3.8: M/M/m//M).
    """
    ratio = service_s / think_s
    weights = [1.0]
    for k in range(users):
        weights.append(weights[-1] * (users - k) * ratio / min(k + 1, servers))
    chances = np.array(weights) / sum(weights)
    throughput = float(sum(min(k, servers) * chance for k, chance in enumerate(chances))) / service_s
    return throughput, users / throughput - think_s


# Users, think time in seconds, servers, and whether the think time is constant.
REPAIRMEN = [
    (4, 3.0, 1, False),
    (4, 3.0, 1, True),
    (10, 8.0, 1, False),
    (10, 8.0, 1, True),
    (9, 4.0, 2, False),
    (9, 4.0, 2, True),
    (12, 2.0, 5, False),
]


def test_the_formula_has_the_known_ends() -> None:
    """One user never waits; with a server for each none does; many users keep a server busy."""
    assert repairman(1, 3.0, 1.0, 1) == pytest.approx((0.25, 1.0))
    assert repairman(6, 3.0, 1.0, 6)[1] == pytest.approx(1.0)
    assert repairman(60, 3.0, 1.0, 1)[0] == pytest.approx(1.0)
    busy = 1 / sum(math.factorial(4) / math.factorial(4 - k) / 3**k for k in range(5))
    assert repairman(4, 3.0, 1.0, 1)[0] == pytest.approx(1 - busy)


@pytest.mark.parametrize(
    ("users", "think_s", "servers", "constant_think", "asked", "wider"),
    [
        (4, 3.0, 1, False, 400, 1.8),
        (9, 4.0, 2, True, 400, 1.8),
        *(pytest.param(*case, 1_200, 1.0, marks=pytest.mark.long) for case in REPAIRMEN),
    ],
)
def test_machine_repairman(
    users: int, think_s: float, servers: int, constant_think: bool, asked: int, wider: float
) -> None:
    """One slot is closed M/M/1, c slots closed M/M/c. The law of the think time makes no difference."""
    rates, times = [], []
    for seed in SEEDS:
        case = Closed(users, think_s, asked, seed, constant_think)
        requests = run(case, "chunked_prefill", servers).requests  # whose prompts keep no one waiting
        last_s = float(np.sort(requests.last_token_s)[case.requests - users])
        from_s = last_s / 5
        inside = (requests.last_token_s > from_s) & (requests.last_token_s <= last_s)
        rates.append(float(inside.sum()) / (last_s - from_s))
        times.append(float((requests.last_token_s - requests.arrival_s)[inside].mean()))
    throughput, seconds = repairman(users, think_s, SERVICE_S, servers)
    holds(interval(rates), throughput, within=0.05 * wider)
    holds(interval(times), seconds + STEP_S / 2, within=0.08 * wider)  # a request waits for the step under way
