"""The queue orders written to be obvious: every look sorts everybody anew, and counters are sums over all requests."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from simulator.queues import Order, order_parameters
from simulator.request import RequestView

Requests = list[Any]  # of the naive engine: as a `RequestView`, with `token_s` and `scheduled_s`


class NaiveOrder:
    """Waiting requests as a list, sorted when somebody looks. `all_requests` are those that ever came."""

    def __init__(self, order: str, all_requests: Requests) -> None:
        given = order.parameters if isinstance(order, Order) else {}
        self.parameters: dict[str, Any] = {
            **{name: known.default for name, known in order_parameters(order).items()},
            **given,
        }
        self.order = order
        self.all_requests = all_requests
        self.waiting: Requests = []
        self.now_s = 0.0
        self.virtual_now = 0.0
        self.tags: dict[int, tuple[float, float]] = {}
        self.finish: dict[str, float] = {}
        self.lifts: dict[str, float] = {}
        self.newcomers: list[str] = []
        self.last_left: str | None = None
        self.turns: list[Any] = []  # who came to wait, or was promoted, one after the other
        self.promoted: Requests = []
        self.sort: Callable[[Requests], Requests] = getattr(self, "by_" + order.replace("-", "_"))

    # What happens

    def look(self, now_s: float) -> None:
        self.now_s = now_s
        waiting = [name for name in dict.fromkeys(r.class_name for r in self.waiting) if name not in self.newcomers]
        for name in self.newcomers:
            others = [self.counter(other) for other in waiting]
            if not others and self.last_left is not None:
                others = [self.counter(self.last_left)]
            if others and self.counter(name) < min(others):
                self.lifts[name] = self.lifts.get(name, 0.0) + min(others) - self.counter(name)
            waiting.append(name)
        self.newcomers = []
        limit_s = self.parameters.get("starve_limit_s", inf)
        for request in sorted(self.waiting, key=self.turn):
            since_s = request.left_s if request.num_preemptions else request.arrival_s
            if request not in self.promoted and now_s - since_s >= limit_s:
                request.promoted_at_tokens = request.output_tokens_so_far
                self.promoted.append(request)
                self.turns.append(request)

    def push(self, request: Any, *, front: bool = False) -> None:
        name = request.class_name
        if all(other.class_name != name for other in self.waiting):
            self.newcomers.append(name)
        if front:
            self.tags[request.row] = self.virtual_now, 0.0
        else:
            start = max(self.virtual_now, self.finish.get(name, 0.0))
            cost = self.prices(request.input_tokens, self.expected(request)) / self.weight(name)
            self.tags[request.row] = start, cost
            self.finish[name] = start + cost
        self.waiting.insert(0 if front else len(self.waiting), request)
        self.turns.append(request)

    def remove(self, request: Any) -> None:
        self.virtual_now = max(self.virtual_now, self.virtual_finish(request))
        self.last_left = request.class_name
        self.waiting.remove(request)
        self.promoted = [other for other in self.promoted if other is not request]

    def requeue(self, first: Requests) -> None:
        rest = [r for r in self.waiting if r not in first]
        if self.order == "in-turn":
            swapped = [r for r in rest if r.state == "swapped"]
            by_rank = sorted((r for r in rest if r not in swapped), key=lambda r: (r.priority, r.row))
            rest = [*swapped, *by_rank]
        self.waiting = [*first, *rest]

    def ordered(self) -> Sequence[Any]:
        return self.sort(self.waiting)

    # The orders

    def by_fcfs(self, requests: Requests) -> Requests:
        return list(requests)

    def by_in_turn(self, requests: Requests) -> Requests:
        return list(requests)

    def by_priority(self, requests: Requests) -> Requests:
        return sorted(requests, key=lambda r: (r.priority, r.row))

    by_importance = by_priority

    def by_sjf(self, requests: Requests) -> Requests:
        aging_s = self.parameters["aging_s"]
        old = [r for r in requests if aging_s is not None and self.now_s - r.arrival_s > aging_s]
        young = [r for r in requests if r not in old]
        return [*sorted(old, key=lambda r: int(r.row)), *sorted(young, key=lambda r: (self.expected(r), r.row))]

    def by_edf(self, requests: Requests) -> Requests:
        default = self.parameters["deadline_s"]
        limits = {r.row: default if r.deadline_s is None else r.deadline_s for r in requests}
        due = {row: inf if limit is None else limit for row, limit in limits.items()}
        return sorted(requests, key=lambda r: (r.arrival_s + due[r.row], r.row))

    def by_weighted(self, requests: Requests) -> Requests:
        p = self.parameters

        def rank(r: Any) -> tuple[bool, float, int]:
            after_s = p["late_after_s"]
            is_new = not r.num_preemptions
            late = after_s is not None and is_new and r.arrival_s + after_s - p["late_token_s"] * r.input_tokens
            later_s = p["input_token_s"] * r.input_tokens + p["output_token_s"] * self.expected(r)
            later_s += p["priority_s"] * r.priority + p["deadline_weight"] * (r.deadline_s or 0.0)
            later_s += (p["class_s"] or {}).get(r.class_name, 0.0)
            return late is not False and late < self.now_s, r.arrival_s + later_s, r.row

        return sorted(requests, key=rank)

    def by_fair(self, requests: Requests) -> Requests:
        return self.merged(requests, lambda r, _: self.virtual_finish(r))

    def by_vtc(self, requests: Requests) -> Requests:
        def rank(request: Any, before: Requests) -> float:
            mine = [r for r in before if r.class_name == request.class_name and r.num_preemptions == 0]
            tokens = sum(r.input_tokens for r in mine)
            more = self.prices(tokens, 0) / self.weight(request.class_name)
            return self.counter(request.class_name) + more

        return self.merged(requests, rank)

    def by_mlfq(self, requests: Requests) -> Requests:
        return sorted(requests, key=lambda r: (-1 if r in self.promoted else self.level(r), self.turn(r)))

    # What they are made of

    def merged(self, requests: Requests, rank: Callable[[Any, Requests], float]) -> Requests:
        """The earliest of each class compete; the smallest rank wins, then the earliest arrival."""
        rest = list(requests)
        found: Requests = []
        while rest:
            earliest = [r for r in rest if r.row == min(o.row for o in rest if o.class_name == r.class_name)]
            best = min(earliest, key=lambda r: (rank(r, found), r.row))
            rest.remove(best)
            found.append(best)
        return found

    def turn(self, request: Any) -> int:
        return max(turn for turn, other in enumerate(self.turns) if other is request)

    def level(self, request: Any) -> int:
        """Quanta used up, each twice as long as the one before."""
        quantum = self.parameters["min_quantum_tokens"]
        served = request.output_tokens_so_far - (request.promoted_at_tokens or 0)
        if request.promoted_at_tokens is None:
            served += request.input_tokens // self.parameters["prompt_tokens_per_quantum"] * quantum
        level = 0
        while served >= quantum:
            served -= quantum
            quantum *= 2
            level += 1
        return level

    def expected(self, request: RequestView) -> int:
        predicted = request.predicted_output_tokens
        return request.max_tokens if predicted is None else predicted

    def weight(self, class_name: str) -> float:
        return float((self.parameters.get("class_weights") or {}).get(class_name, 1.0))

    def prices(self, input_tokens: int, output_tokens: int) -> float:
        parameters = self.parameters
        return float(parameters.get("w_p", 1.0) * input_tokens + parameters.get("w_q", 2.0) * output_tokens)

    def virtual_finish(self, request: Any) -> float:
        start, length = self.tags[request.row]
        most = self.parameters.get("max_wait_s")
        boost = 0.0 if most is None else min(0.3, (self.now_s - request.arrival_s) / most)
        return start + length * (1.0 - boost)

    def counter(self, class_name: str) -> float:
        """Everything that a class was ever given: prompts of who was admitted, and every token."""
        mine = [r for r in self.all_requests if r.class_name == class_name]
        prompts = sum(r.input_tokens for r in mine if r.scheduled_s == r.scheduled_s)
        outputs = sum(len(r.token_s) for r in mine)
        return self.lifts.get(class_name, 0.0) + self.prices(prompts, outputs) / self.weight(class_name)
