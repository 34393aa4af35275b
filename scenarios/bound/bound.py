"""Bounds of a scenario: metrics at their best, which no scheduler can improve on its requests and its step costs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from scenarios.assembly.engines import policy_traits
from scenarios.assembly.replica_parts import build
from scenarios.bound.charges import Charges, HeldBlocks, Server, measured_requests
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.metrics.latency import Slo
from simulator.metrics.summary import METRICS
from simulator.policy_traits import OptionalMembers
from simulator.results.records import Records, Status
from simulator.timing.cost import floors_of
from simulator.workload import Workload

# Metrics at their best, from what requests cost at least.
#
# Latencies. If every request takes at least b, the mean takes at least the mean of b, and the k-th smallest at
# least the k-th smallest of b; so do percentiles, which lie between two of them. The machines of `relaxations` give
# a least mean and a least percentile for all requests together. The time to the last token is that to the first and
# the decodes', so the sum of a bound of each is one too.
#
# Rates. All that is measured lies between the first arrival and the last token: a bound of the time until then
# divides the counts. More requests a second than work can be done of them queue without end, however long: the
# largest rate.

# Machines that are at least as good as any server: their optima bound what a scheduler can reach.
#
# A step ends at least as much after its start as the work that is charged to what it computes (`charges`). Let a
# fluid machine do that work during the step. Replicas become one machine that is `replicas` times as fast, and
# shares its time between them. Every schedule of the server is then one of the machine, with preemption at any
# time, in which no request ends later. So the machine's optimum is a bound.

Floats = NDArray[np.float64]


def least_mean_flow_s(arrival_s: Floats, work_s: Floats) -> float:
    """The least mean time from arrival to end on one machine with preemption.

    Serving the shortest remaining work first is optimal (L. Schrage, A proof of the optimality of the shortest
    remaining processing time discipline, Operations Research 16, 1968). `arrival_s` ascends.
    """
    ready: list[float] = []
    now = total = 0.0
    arrivals: list[float] = arrival_s.tolist()
    works: list[float] = work_s.tolist()
    for at, work in zip(arrivals, works, strict=True):
        while ready and now + ready[0] <= at:
            now += heappop(ready)
            total += now
        if ready and now < at:
            heappush(ready, heappop(ready) - (at - now))
        now = max(now, at)
        heappush(ready, work)
    while ready:
        now += heappop(ready)
        total += now
    return (total - sum(arrivals)) / len(arrivals)


def earliest_end_s(arrival_s: Floats, work_s: Floats) -> float:
    """When one machine can have ended all: from any time on, what arrives from then on takes its work.

    The maximum over all arrivals r of r + the work that arrives at r or later. `arrival_s` ascends.
    """
    return float(np.max(arrival_s + np.cumsum(work_s[::-1])[::-1]))


def fewest_late(arrival_s: Floats, due_s: Floats, work_s: Floats) -> int:
    """How many requests at least end after they are due, on one machine with preemption.

    Moore and Hodgson's rule (J. M. Moore, Management Science 15, 1968) for arrivals: take the requests as they arrive;
    when one would end late, drop the one of most work among those that the machine has been busy with since it last was
    idle. `arrival_s` ascends, and with it has to ascend what is due (`agreeable` makes it so).

    Proof. Let E(j, m) be the earliest time at which the machine can be free for requests after the j-th, if m of the
    first j are late and the others are served in order of arrival, which is no loss where dues ascend too (Lawler and
    Moore, Management Science 16, 1969). Either the j-th is served: E(j, m) = max(E(j-1, m), its arrival) + its work, if
    it is not late; or it is not: E(j, m) = E(j-1, m-1). The rule keeps an m, an end C and the works H of a busy time.
    It holds, with top(k) the sum of the k largest of H: no fewer than m can be late, and for every k, E(j, m + k) >=
    C - top(k), from the next arrival on. It holds at an idle machine, where C is the arrival and H is empty. If the
    j-th, of work p, is added: E(j, m + k) is at least the smaller of C - top(k) + p and C - top(k - 1), and both are at
    least C + p - the k largest of H and p. If C + p is too late, E(j, m) is infinite: m grows by one, and taking the
    largest from H and C leaves the claim for all other k. That a server cannot fill the gap before a later arrival by
    dropping an earlier request is left out: the count may be too small, and is never too large.
    """
    ends = _ends(arrival_s, work_s)
    if not np.any(ends > due_s):
        return 0
    late = 0
    free, taken = -np.inf, list[float]()
    for arrival, due, work in zip(arrival_s.tolist(), due_s.tolist(), work_s.tolist(), strict=True):
        if free <= arrival:
            free, taken = arrival, []
        free += work
        heappush(taken, -work)
        if free > due:
            free += heappop(taken)
            late += 1
    return late


def _ends(arrival_s: Floats, work_s: Floats) -> Floats:
    """When each ends, served in order of arrival."""
    done = np.cumsum(work_s)
    return np.asarray(done + np.maximum.accumulate(arrival_s - (done - work_s)))


def agreeable(arrival_s: Floats, due_s: Floats) -> list[tuple[Floats, Floats, NDArray[np.int64]]]:
    """Relax arrivals and dues so that both ascend: later dues, or earlier arrivals. Each with the order of its entries.

    Whoever meets the given ones meets these.
    """
    by_due = np.argsort(due_s, kind="stable")
    earlier = np.minimum.accumulate(arrival_s[by_due][::-1])[::-1]
    as_given = np.arange(len(arrival_s))
    return [(arrival_s, np.maximum.accumulate(due_s), as_given), (earlier, due_s[by_due], by_due)]


def least_percentile_s(
    arrival_s: Floats, work_s: Floats, alone_s: Floats, share: float, *, close: float = 0.01
) -> float:
    """A flow that more than so large a share of the requests exceed, as nearly as `close`; of `numpy.percentile`.

    By `fewest_late`, where every request is due so long after its arrival. A request that takes longer alone is late
    for certain, and takes no time here.
    """
    count = len(arrival_s)
    above = count - 1 - int(np.floor((count - 1) * share))  # so many order statistics lie above the percentile's
    low = float(np.sort(alone_s)[count - 1 - above])

    def is_exceeded(flow_s: float) -> bool:
        possible = alone_s <= flow_s
        certain = count - int(possible.sum())
        arrivals = arrival_s[possible]
        return certain > above or certain + fewest_late(arrivals, arrivals + flow_s, work_s[possible]) > above

    high = max(low, 1e-9)
    while is_exceeded(high):
        low, high = high, 4 * high
    while high - low > close * high and high > 1e-9:
        middle = (low * high) ** 0.5 if low > 0 else high / 4
        if is_exceeded(middle):
            low = middle
        else:
            high = middle
    return low


Bools = NDArray[np.bool_]

ALONE, SHORTEST, LATE, FLUID, MEMORY = "alone", "shortest remaining work", "Moore-Hodgson", "fluid", "memory"
ROUNDING = 1e-9  # by so large a share a run may come out better, as it adds up other numbers
PERCENTILES = {"median": 0.5, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_MOVING = "arrivals follow answers: the only bound on latency is that of each request alone"
_WHOLE = "answers come whole: there is no time between tokens"


@dataclass(frozen=True, slots=True)
class Bound:
    """A metric's value that no run betters, the relaxation that says so, and what it assumes."""

    value: float
    by: str
    assumes: str

    def entry(self) -> dict[str, object]:
        """The bound as JSON has it."""
        return {"value": self.value, "by": self.by, "assumes": self.assumes}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds by metric of summary.json, the largest rate, and why others are missing."""

    metrics: Mapping[str, Bound]
    rate: Bound | None = None
    why_not: tuple[str, ...] = ()

    def values(self) -> dict[str, float]:
        """The entry `bound` of summary.json."""
        return {key: bound.value for key, bound in self.metrics.items()}


def largest_rate(charges: Charges) -> Bound:
    """Bound the rate that a mix of such requests can have for ever: see `_AtBest.largest_rate`."""
    return _AtBest(charges, streams=True).largest_rate()


def at_best(charges: Charges, slo: Slo | None, *, streams: bool, cut: bool) -> Bounds:
    """Bound every metric for which there is a proof. `streams`: tokens come one by one. `cut`: not all is measured."""
    best = _AtBest(charges, streams)
    metrics: dict[str, Bound] = {}
    metrics |= best.latency("ttft_ms", charges.first_token_alone_s, best.prompts)
    if streams:
        metrics |= best.gaps(cut=cut)
    metrics |= best.latency("e2el_ms", charges.first_token_alone_s + charges.decode_alone_s, best.totals)
    metrics |= best.rates()
    if slo is not None and slo.limits:
        share, rate = best.attainment(slo), metrics["request_throughput"]
        names = ", ".join(dict.fromkeys((share.by, rate.by)))
        metrics["slo_attainment"] = share
        metrics["request_goodput"] = Bound(share.value * rate.value, names, rate.assumes)
    why_not = (*(() if best.fixed else (_MOVING,)), *(() if streams else (_WHOLE,)))
    return Bounds(metrics, best.largest_rate(), why_not)


@dataclass(frozen=True)  # no slots: what several metrics need is worked out once
class _Work:
    """Work of each request on the one machine, and what limits the sharing of steps."""

    limit: str
    seconds: Floats

    def by(self, name: str) -> str:
        return MEMORY if self.limit == "memory" else name


@dataclass(frozen=True)  # no slots, likewise
class _AtBest:
    """The bounds of one set of requests on one server."""

    charges: Charges
    streams: bool

    @cached_property
    def fixed(self) -> bool:
        return self.charges.requests.fixed

    @cached_property
    def prompts(self) -> _Work:
        """The prompts' work by the prices under which there is most of it."""
        return self._most(lambda prompt, decode: prompt)

    @cached_property
    def totals(self) -> _Work:
        """The whole requests' work, likewise."""
        return self._most(lambda prompt, decode: prompt + decode)

    def _most(self, of: Callable[[Floats, Floats], Floats]) -> _Work:
        limit, prompt, decode = max(self.charges.works, key=lambda work: float(of(work[1], work[2]).sum()))
        return _Work(limit, of(prompt, decode) / self.charges.server.replicas)

    def assumes(self, *limits: str) -> str:
        """What a bound rests on: that all are served, the prices, and these limits."""
        server = self.charges.server
        held = f"{server.kv_tokens or 0:,} KV tokens" if server.held is None else f"{server.held.pool:,} KV blocks"
        known = {
            "slots": f"at most {server.seqs:,} requests in a step",
            "tokens": f"at most {server.tokens:,} tokens in a step",
            "memory": f"at most {held} in memory",
        }
        parts = ["every request is served", "steps cost what the cost model says", *(known[each] for each in limits)]
        if limits and server.replicas > 1:
            parts.append(f"{server.replicas:,} replicas share all work")
        if server.caches:
            parts.append("the prefix cache holds all that any other request has")
        return "; ".join(parts)

    def latency(self, name: str, alone_s: Floats, work: _Work) -> dict[str, Bound]:
        """Bounds of a latency's mean and percentiles."""
        alone = self.assumes("tokens")
        found = {f"mean_{name}": Bound(float(alone_s.mean()), ALONE, alone)}
        for statistic, share in PERCENTILES.items():
            found[f"{statistic}_{name}"] = Bound(float(np.percentile(alone_s, 100 * share)), ALONE, alone)
        if self.fixed:
            arrival_s = self.charges.requests.arrival_s
            later = (
                [self._mean_first_token]
                if work is self.prompts
                else [self._mean_flow(work), self._first_then_decodes()]
            )
            found[f"mean_{name}"] = max(found[f"mean_{name}"], *later, key=lambda one: one.value)
            known: dict[float, Bound] = {}
            for statistic, share in PERCENTILES.items():
                if share not in known:
                    seconds = least_percentile_s(arrival_s, work.seconds, alone_s, share)
                    known[share] = Bound(seconds, work.by(LATE), self.assumes(work.limit))
                found[f"{statistic}_{name}"] = max(
                    found[f"{statistic}_{name}"], known[share], key=lambda one: one.value
                )
        return {key: Bound(_ms(one.value), one.by, one.assumes) for key, one in found.items()}

    def _mean_flow(self, work: _Work) -> Bound:
        found = least_mean_flow_s(self.charges.requests.arrival_s, work.seconds)
        return Bound(found, work.by(SHORTEST), self.assumes(work.limit))

    @cached_property
    def _mean_first_token(self) -> Bound:
        return self._mean_flow(self.prompts)

    def _first_then_decodes(self) -> Bound:
        """The mean time to the last token by that to the first, and the decodes alone."""
        first = self._mean_first_token
        value = first.value + float(self.charges.decode_alone_s.mean())
        return Bound(value, f"{first.by}, then {ALONE}", first.assumes)

    def gaps(self, *, cut: bool) -> dict[str, Bound]:
        """Bounds of the times between tokens: each gap is at least a step with the request in it."""
        gaps = self.charges.requests.outputs - 1
        several = gaps > 0
        if not several.any():
            return {}
        alone_s = self.charges.decode_alone_s[several]
        each_s, assumes = alone_s / gaps[several], self.assumes()
        found = {"mean_tpot_ms": Bound(_ms(float(each_s.mean())), ALONE, assumes)}
        for statistic, share in PERCENTILES.items():
            found[f"{statistic}_tpot_ms"] = Bound(_ms(float(np.percentile(each_s, 100 * share))), ALONE, assumes)
        if not cut:
            found["mean_itl_ms"] = Bound(_ms(float(alone_s.sum() / gaps.sum())), ALONE, assumes)
        return found

    def rates(self) -> dict[str, Bound]:
        """Bounds of the throughputs: counts by the least time from the first arrival to the last token."""
        requests, work = self.charges.requests, self.totals
        alone_s = self.charges.first_token_alone_s + self.charges.decode_alone_s
        if self.fixed:
            first_s = float(requests.arrival_s[0])
            longest = float(np.max(requests.arrival_s + alone_s)) - first_s
            busy = earliest_end_s(requests.arrival_s, work.seconds) - first_s
        else:
            longest, busy = requests.longest_chain_s(alone_s), float(work.seconds.sum())
        seconds, by, assumes = max(
            (longest, ALONE, self.assumes("tokens")), (busy, work.by(FLUID), self.assumes(work.limit))
        )
        seconds *= 1 - ROUNDING
        inputs, outputs = int(requests.prompt.sum()), int(requests.outputs.sum())
        counts = {
            "request_throughput": len(requests),
            "output_throughput": outputs,
            "total_token_throughput": inputs + outputs,
        }
        return {key: Bound(count / seconds, by, assumes) for key, count in counts.items()}

    def largest_rate(self) -> Bound:
        """Requests of this mix a second that the work allows for ever."""
        work = self.totals
        value = (1 + ROUNDING) / float(work.seconds.mean())
        return Bound(value, work.by(FLUID), f"a mix of requests like this one; {self.assumes(work.limit)}")

    def attainment(self, slo: Slo) -> Bound:
        """The largest share of requests within the limits of TTFT, TPOT and E2E; other limits are left out.

        Late for certain is what is late alone. Of the rest, the prompts' work is due by the limit of TTFT, all work by
        that of E2E, and by those of TTFT and TPOT together.
        """
        charges, requests = self.charges, self.charges.requests
        limits_s = {name: np.full(len(requests), np.inf) for name in ("ttft", "tpot", "e2el")}
        for index, class_name in enumerate(requests.class_names):
            for name, limit_ms in slo.per_request(class_name).items():
                if name in limits_s:
                    limits_s[name][requests.class_index == index] = limit_ms / 1e3 * (1 + ROUNDING)
        first_s, decode_s, gaps = charges.first_token_alone_s, charges.decode_alone_s, requests.outputs - 1
        whole_s = limits_s["e2el"]
        if self.streams:
            whole_s = np.minimum(whole_s, limits_s["ttft"] + np.where(gaps > 0, limits_s["tpot"], 0.0) * gaps.clip(1))
        possible = (first_s <= limits_s["ttft"]) & (first_s + decode_s <= whole_s)
        if self.streams:
            possible &= decode_s <= limits_s["tpot"] * gaps.clip(1)
        certain = len(requests) - int(possible.sum())
        found = [(certain, ALONE, self.assumes("tokens"))]
        if self.fixed and possible.any():
            for work, limit_s in ((self.prompts, limits_s["ttft"]), (self.totals, whole_s)):
                late = self._late(work.seconds[possible], limit_s[possible], possible)
                found.append((certain + late, work.by(LATE), self.assumes(work.limit)))
        late, by, assumes = max(found, key=lambda one: one[0])
        return Bound(1 - late / len(requests), by, assumes.removeprefix("every request is served; "))

    def _late(self, work_s: Floats, limit_s: Floats, possible: Bools) -> int:
        """How many of these are late at least."""
        arrival_s = self.charges.requests.arrival_s[possible]
        due_s = (arrival_s + limit_s) * (1 + ROUNDING)
        return max(fewest_late(arrivals, dues, work_s[order]) for arrivals, dues, order in agreeable(arrival_s, due_s))


def _ms(seconds: float) -> float:
    return seconds * (1 - ROUNDING) * 1e3


_SAME = "and others may serve more requests: the share within the SLO alone is comparable"


def bound(scenario: Scenario, workload: Workload, *, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> Bounds:
    """Bound the metrics of all runs of these requests, under the limits of the scenario's engine and its step costs.

    The cuts are those of the measured window.
    """
    try:
        charges = _charges(scenario, workload, warmup_s, cooldown_s)
    except InputError as error:
        return Bounds({}, None, (error.message,))
    streams = policy_traits(scenario).streams
    found = at_best(charges, scenario.resolve_slo(), streams=streams, cut=warmup_s + cooldown_s > 0)
    engine = scenario.engine
    caps = (engine.max_queued_requests, engine.max_num_queued_reqs, engine.max_num_queued_tokens)
    if any(cap is not None for cap in caps):
        return Bounds(_share(found.metrics), None, (f"the queue is capped, {_SAME}",))
    return found


def bound_rate(scenario: Scenario, workload: Workload) -> Bound | None:
    """Bound the requests of this mix a second that the scenario's replicas can serve for ever; None without a proof."""
    try:
        return largest_rate(_charges(scenario, workload))
    except InputError:
        return None


def _charges(scenario: Scenario, workload: Workload, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> Charges:
    """What the measured requests cost at least. Raises InputError with the reason where no proof holds."""
    server = _server(scenario)
    requests = measured_requests(workload, caches=server.caches, warmup_s=warmup_s, cooldown_s=cooldown_s)
    if not len(requests):
        raise InputError("there is no request")
    return Charges(replace(server, kv_tokens=None) if requests.shares else server, requests)


def _server(scenario: Scenario) -> Server:
    """The limits of the scenario's replicas. Raises InputError with the reason where there are none to reckon with."""
    if scenario.fleet is not None:
        raise InputError("a fleet has replicas of several kinds, or a number of them that changes")
    if scenario.hardware.enable_expert_parallel:
        raise InputError("the replicas step together, so the price of a step is not that of one replica")
    if scenario.hardware.pipeline_parallel > 1:
        raise InputError("a pipeline has several steps in flight, of which each stage computes a part")
    if scenario.engine.speculative_config is not None:
        raise InputError("with drafts, a step may give a request several tokens")
    parts = build(scenario)
    if parts.connector is not None:
        raise InputError("KV that lies on the host is loaded there, and not computed")
    policy = parts.make_policy()
    tokens = int(min(OptionalMembers.of(policy).max_num_batched_tokens, parts.kv.tokens))
    floors = floors_of(parts.cost, tokens)
    if not floors:
        raise InputError("nothing is known of the cost model's steps but their seconds, one by one")
    caches = scenario.engine.enable_prefix_caching
    held = None if parts.kv_plan is None else HeldBlocks.of(parts.kv_plan, parts.kv.usable)
    return Server(scenario.replicas, policy.max_num_seqs, tokens, parts.kv.tokens, caches, tuple(floors), held)


def weakest(each: Sequence[Bounds]) -> Bounds:
    """The bounds that hold for all of several scenarios: of each metric the weakest, where all have one."""
    shared = [key for key in each[0].metrics if all(key in other.metrics for other in each)]
    metrics = {
        key: min((other.metrics[key] for other in each), key=lambda one: -(METRICS[key].better or -1) * one.value)
        for key in shared
    }
    rates = [other.rate for other in each]
    known = [rate for rate in rates if rate is not None]
    rate = max(known, key=lambda one: one.value) if len(known) == len(rates) else None
    return Bounds(metrics, rate, tuple(dict.fromkeys(why for other in each for why in other.why_not)))


def of_run(bounds: Bounds, records: Records, workload: Workload) -> Bounds:
    """The bounds that hold for this run: of one that left requests unserved, the share within the SLO alone."""
    requests = records.requests
    lost = int((requests.status != Status.FINISHED).sum())
    if lost:
        return Bounds(_share(bounds.metrics), None, (*bounds.why_not, f"{lost:,} requests were not served, {_SAME}"))
    asked = np.minimum(workload.output_tokens, workload.max_tokens)
    if not workload.loops and int(requests.output_tokens.sum()) != int(asked.sum()):
        return Bounds({}, None, (*bounds.why_not, "the server cut answers short"))
    return bounds


def _share(metrics: Mapping[str, Bound]) -> dict[str, Bound]:
    return {key: one for key, one in metrics.items() if key == "slo_attainment"}
