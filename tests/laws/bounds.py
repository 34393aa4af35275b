"""Small random cases on which bounds, the optimum and every policy are compared."""

import random
from dataclasses import dataclass, field
from functools import cache
from math import inf

from scenarios.bound.bound import Bounds, at_best
from scenarios.bound.charges import Charges, Server, measured_requests
from simulator.hardware.gpus import custom_gpu
from simulator.hardware.models import find_model
from simulator.metrics.latency import Slo
from simulator.metrics.summary import METRICS, summarize
from simulator.plan import Policy
from simulator.policy_traits import OptionalMembers
from simulator.queues import Order
from simulator.results.records import Status
from simulator.timing.cost import CostModel, StepShape, floors_of
from simulator.timing.formula_cost import Linear, Roofline
from tests.laws.optimum import Case, least_end_s, least_sum
from tests.laws.scenarios import POLICIES, Memory, Scenario, make_policy, make_workload

SCHEDULERS = (*POLICIES, "weighted")
"""The policies, and the default one with an order of random weights."""
MOST_STATES = 140  # of a case: what the optimum has to look at grows with its square
FEW_STATES = 50


@dataclass(frozen=True)
class SmallCase:
    """A case with the SLO that its requests are held to."""

    case: Case
    slo: Slo


@dataclass
class Compared:
    """What was found: bound and optimum by metric, and a sentence for each that is out of order."""

    ratios: dict[str, tuple[float, float]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)


@cache
def _kinked() -> CostModel:
    """A roofline whose weights weigh as much as four tokens' operations, and attention has two sides too."""
    gpu = custom_gpu({"base": "h200", "bf16_tflops": 20.0, "name": "slow", "source": "a test"})
    return Roofline(find_model("gpt2"), gpu, host_s=1e-5, layer_overhead_s=1e-6)


def random_case(seed: int, most_states: int = MOST_STATES) -> SmallCase:
    """A case of up to 8 requests, the smaller the more there are."""
    rng = random.Random(seed)
    count = rng.choice([1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8])
    lengths: list[tuple[int, int]] = []
    states = 1
    for place in range(count):
        left = most_states // states // 2 ** (count - place - 1)
        able = [(p, n) for p in range(1, 7) for n in range(1, 5) if p + n <= left]
        lengths.append(rng.choice(able or [(1, 1)]))
        states *= sum(lengths[-1])
    rng.shuffle(lengths)
    cost = rng.choice(
        [
            Linear(1.0),
            Linear(1.0, 0.25),
            Linear(0.5, 0.5, 0.1),
            Linear(0.0, 1.0, 0.05),
            Linear(1.0, 0.0, 0.3),
            _kinked(),
        ]
    )
    unit = cost.step_s(StepShape(1, 2))
    arrivals, now = [], 0.0
    for _ in range(count):
        now += rng.choice([0.0, 0.0, 0.5, 1.0, 1.7, 4.0]) * unit
        arrivals.append(now)
    largest = max(prompt + answer for prompt, answer in lengths)
    held = sum(prompt + answer for prompt, answer in lengths)
    kv_tokens = rng.choice([largest, largest + 1, largest + 2, held, 10 * held])
    tokens = min(rng.choice([1, 2, 3, 5, 1000]), kv_tokens)
    case = Case(tuple(arrivals), tuple(lengths), rng.choice([1, 2, 3, 8]), tokens, kv_tokens, cost)
    limits = {name: rng.choice([1, 2, 4, 8]) * unit * 1e3 for name in ("ttft_ms", "e2el_ms")}
    return SmallCase(case, Slo(ttft_ms=limits["ttft_ms"], e2el_ms=rng.choice([None, 2 * limits["e2el_ms"]])))


def bounds_of(small: SmallCase) -> Bounds:
    """The bounds of a case."""
    case = small.case
    workload = make_workload(list(case.arrival_s), list(case.lengths))
    floors = tuple(floors_of(case.cost, case.tokens))
    server = Server(1, case.seqs, case.tokens, case.kv_tokens, False, floors)
    return at_best(Charges(server, measured_requests(workload, caches=False)), small.slo, streams=True, cut=False)


def optima_of(small: SmallCase) -> dict[str, float]:
    """The optimum of each metric for which there is a search, over all schedules of a case."""
    case, count = small.case, len(small.case.lengths)
    arrivals, answers = case.arrival_s, [answer for _, answer in case.lengths]

    def first(row: int, got: int, at: float) -> float:
        return at - arrivals[row] if got == 1 else 0.0

    def last(row: int, got: int, at: float) -> float:
        return at - arrivals[row] if got == answers[row] else 0.0

    def gaps(row: int, got: int, at: float) -> float:
        if answers[row] == 1:
            return 0.0
        return (-at if got == 1 else at if got == answers[row] else 0.0) / (answers[row] - 1)

    def gap_owed(row: int, got: int, at: float) -> float:
        return at / (answers[row] - 1) if 0 < got < answers[row] else 0.0

    ttft_s = inf if small.slo.ttft_ms is None else small.slo.ttft_ms / 1e3
    e2el_s = inf if small.slo.e2el_ms is None else small.slo.e2el_ms / 1e3

    several = [answer for answer in answers if answer > 1]
    found = {
        "mean_ttft_ms": 1e3
        / count
        * least_sum(case, first, lambda row, got, at: 0.0 if got else max(0.0, at - arrivals[row])),
        "mean_e2el_ms": 1e3
        / count
        * least_sum(case, last, lambda row, got, at: 0.0 if got == answers[row] else max(0.0, at - arrivals[row])),
        "request_throughput": count / (least_end_s(case) - arrivals[0]),
    }
    if several:
        found["mean_tpot_ms"] = 1e3 / len(several) * least_sum(case, gaps, gap_owed)
    if e2el_s == inf:
        late = least_sum(
            case,
            lambda row, got, at: float(got == 1 and at - arrivals[row] > ttft_s),
            lambda row, got, at: float(not got and at - arrivals[row] > ttft_s),
        )
        found["slo_attainment"] = 1 - late / count
    return found


def check_case(small: SmallCase, names: tuple[str, ...] = SCHEDULERS) -> Compared:
    """Compare bounds, optima and the policies that keep to the case's limits."""
    found = Compared()
    bounds, optima = bounds_of(small).metrics, optima_of(small)
    for key, optimum in optima.items():
        found.ratios[key] = bounds[key].value, optimum
        if _is_better(key, optimum, bounds[key].value):
            found.broken.append(f"the optimum of {key} is {optimum}, the bound {bounds[key].value} by {bounds[key].by}")
    for name in names:
        summary = _summary(small, name)
        for key, value in summary.items():
            if key in optima and _is_better(key, value, optima[key]):
                found.broken.append(f"{key} of {name} is {value}, the optimum {optima[key]}")
            if key in bounds and _is_better(key, value, bounds[key].value):
                found.broken.append(f"{key} of {name} is {value}, the bound {bounds[key].value} by {bounds[key].by}")
    return found


def _is_better(key: str, value: float, than: float) -> bool:
    """Whether a value is better than another by more than rounding."""
    return METRICS[key].better * (value - than) > 1e-7 * abs(than)


def _policy(case: Case, name: str) -> Policy:
    if name != "weighted":
        return make_policy(name, case.seqs, case.tokens)
    unit, rng = case.cost.step_s(StepShape(1, 2)), random.Random(repr(case.arrival_s) + repr(case.lengths))
    weights = {key: unit * rng.choice([0.0, 0.25, 1.0, 8.0]) for key in ("input_token_s", "output_token_s")}
    late_after_s = rng.choice([None, 0.0, unit, 4 * unit])
    order = Order(name, **weights, late_after_s=late_after_s, late_token_s=unit * rng.choice([0.0, 0.5]))
    return make_policy("chunked_prefill", case.seqs, case.tokens, order=order)


def _summary(small: SmallCase, name: str) -> dict[str, float]:
    """The metrics of a policy's run; none where it does not keep to the limits, or leaves requests unserved."""
    case = small.case
    policy = _policy(case, name)
    budget = OptionalMembers.of(policy).max_num_batched_tokens
    if min(budget, case.kv_tokens) > case.tokens or policy.max_num_seqs > case.seqs:
        return {}
    workload = make_workload(list(case.arrival_s), list(case.lengths))
    memory = Memory(case.kv_tokens + 1, 1)
    run = Scenario(workload, policy, memory, case.cost).run()  # type: ignore[arg-type] # any policy
    requests = run.records.requests
    if (requests.status != Status.FINISHED).any() or (requests.output_tokens != workload.output_tokens).any():
        return {}
    summary = summarize(run.records, slo=small.slo)
    return {
        key: float(value)
        for key, value in summary.items()
        if key in METRICS and METRICS[key].better and value is not None
    }
