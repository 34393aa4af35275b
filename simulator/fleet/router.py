"""The router's protocol, the replicas as a router sees them, and parts that several routers share."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Annotated, Any, Protocol, overload

import numpy as np
from annotated_types import Ge, Le, Unit, doc

from simulator.engine.admission import ReplicaLoad
from simulator.parameters import CountOrZero

if TYPE_CHECKING:
    from simulator.request import ArrivingRequest


# The router's protocol: it chooses a replica for each request at the moment of its arrival; and its random numbers.


class Router(Protocol):
    """Chooses a replica at the moment of arrival, by the request as the client sent it and by the replicas' loads.

    Parameters are the fields of a dataclass or the arguments of `__init__`, annotated as a policy's are. A router is
    made anew for each run, so it may remember. `RouterFeatures` says what else its class may declare. Flow control that
    counts tokens asks a router with `uncached_tokens(request, number)` how many of a prompt the replica that it just
    chose has to compute. A router that draws random numbers has a method `start(draws: simulator.fleet.router.Draws)`,
    called once before the first request: these numbers depend on the scenario's seed alone.
    """

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        """One of `replicas`, a sequence in the order of their numbers; `replicas.least(cost)` finds one by an index."""


@dataclass(frozen=True, slots=True)
class RouterFeatures:
    """Class variables that a router's class may declare, with their defaults.

    `reads_loads`: its choice depends on the state of the replicas. Where it does not, requests are dealt ahead of their
    arrival, which costs no event each. `reads_caches`: it asks what the replicas' prefix caches hold
    (`ReplicaLoad.cached_tokens`), for which every step is executed by itself; what they held `kv_event_lag_s` ago,
    where it has this attribute. `hears_caches`: its method `listen(caches)` is called once, before the first request,
    with what is known of each cache by the number of its replica (`simulator.fleet.signals`). `takes_fewest`: it
    takes, always, the replica with the fewest unfinished requests, the first of equals: then it need not be asked
    (`fleet/run_ahead.py`). `hears_ends`: its method `ended(row)` is called as each of its requests ends, whatever it
    last saw of the loads; the replicas then stay on one clock. `hears_first_tokens`: so is `began(row)` as each has its
    first token. `one_server`: the replicas are ranks behind one server, which has their `ReplicaGroup.queue_caps` once,
    and rejects a request before the router is asked. `usual_interval_s` is the `signal_interval_s` of scenarios that
    give none.

    `reads_loads = False` and `takes_fewest = True` are promises about a `choose`, made by the class that defines it or
    by one that inherits it. A class that defines `choose` has to make them itself: those of a class above say nothing
    of it, and what holds without a word counts. What cannot be seen is a class that changes only what an inherited
    `choose` calls: it declares what has become of the promise.
    """

    reads_loads: bool = True
    reads_caches: bool = False
    hears_caches: bool = False
    takes_fewest: bool = False
    hears_ends: bool = False
    hears_first_tokens: bool = False
    tells_regret: bool = False
    one_server: bool = False
    usual_interval_s: float = 0.0

    @classmethod
    def of(cls, router: Any) -> RouterFeatures:
        """The features of this router or of its class."""
        declared: dict[str, Any] = {each.name: getattr(router, each.name, each.default) for each in fields(cls)}
        interval_s = float(declared.pop("usual_interval_s"))
        found = cls(**{name: bool(value) for name, value in declared.items()}, usual_interval_s=interval_s)
        classes = (router if isinstance(router, type) else type(router)).__mro__
        chooses = _first_with("choose", classes)
        unsaid = {name: word for name, word in _UNSAID.items() if not issubclass(_first_with(name, classes), chooses)}
        return replace(found, **unsaid)


_UNSAID = {"reads_loads": True, "takes_fewest": False}  # the promises, and what holds where they are not made


def _first_with(name: str, classes: tuple[type, ...]) -> type:
    """The class that an attribute comes from; `object` where none of them has it."""
    return next((each for each in classes if name in vars(each)), object)


# Random numbers of a router: few calls of numpy, the same numbers however they are asked for.

_PIECE = 4096  # drawn at a time


class Draws:
    """Uniform random choices from one stream."""

    __slots__ = ("_generator", "_next", "_uniform")

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._uniform: list[float] = []
        self._next = 0

    def below(self, count: int) -> int:
        """A whole number from 0 to before `count`, each as likely as the others."""
        return int(self.uniform() * count)

    def uniform(self) -> float:
        """A number from 0 to before 1."""
        if self._next == len(self._uniform):
            self._uniform = self._generator.random(_PIECE).tolist()
            self._next = 0
        drawn = self._uniform[self._next]
        self._next += 1
        return drawn

    def several(self, wanted: int, count: int) -> list[int]:
        """`wanted` different whole numbers from 0 to before `count`, in random order; all where there are no more."""
        if wanted < count // 2:
            found: list[int] = []
            while len(found) < wanted:
                drawn = self.below(count)
                if drawn not in found:
                    found.append(drawn)
            return found
        left = list(range(count))
        return [left.pop(self.below(len(left)) if len(left) > 1 else 0) for _ in range(min(wanted, count))]


@dataclass(slots=True)
class Drawing:
    """A router that draws random numbers."""

    _draws: Draws = field(init=False, repr=False)

    def start(self, draws: Draws) -> None:
        """The random numbers of the run."""
        self._draws = draws


# The replicas as a router sees them: a sequence of loads, and indexes that find the least of them without a scan.

Cost = Callable[[ReplicaLoad], float]
"""What a router minimises. Of a replica that neither begins a step nor takes a request it must not fall with time."""


class Replicas(Sequence[ReplicaLoad]):
    """The loads of the replicas that take requests, in the order of their numbers."""

    def __init__(self, loads: Sequence[ReplicaLoad]) -> None:
        self._loads = list(loads)
        self._all = tuple(loads)
        self.by_number = {load.index: load for load in loads}
        self.bits = _bits(self.by_number)  # one is set for each number
        self._indexes: dict[Cost, _LeastIndex] = {}
        self.version = 0  # changes when a replica joins or leaves
        self.looks: int | None = None  # taken so far, where loads are those of the last look

    def __len__(self) -> int:
        return len(self._loads)

    @overload
    def __getitem__(self, place: int) -> ReplicaLoad: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[ReplicaLoad]: ...
    def __getitem__(self, place: int | slice) -> ReplicaLoad | Sequence[ReplicaLoad]:
        return self._loads[place]

    def __iter__(self) -> Iterator[ReplicaLoad]:
        return iter(self._loads)

    def named(self, numbers: Iterable[int]) -> list[ReplicaLoad]:
        """Those of these numbers that take requests, in this order."""
        return [self.by_number[number] for number in numbers if number in self.by_number]

    def least(self, cost: Cost) -> ReplicaLoad:
        """The replica of least cost, the first of equals: found by an index, kept for each `cost` that is asked for.

        The work is logarithmic in the replicas and proportional to how many have changed since the last call.
        """
        index = self._indexes.get(cost)
        if index is None:
            index = self._indexes[cost] = _LeastIndex(self.by_number, cost)
        return index.least()

    def take_out(self, number: int) -> None:
        """The replica of this number takes no requests from now on."""
        del self.by_number[number]
        self._follow()

    def bring_in(self, number: int) -> None:
        """The replica of this number takes requests from now on."""
        self.by_number |= {load.index: load for load in self._all if load.index == number}
        self._follow()

    def _follow(self) -> None:
        self._loads = [load for load in self._all if load.index in self.by_number]
        self.bits = _bits(self.by_number)
        self._indexes.clear()
        self.version += 1

    def changed(self, number: int) -> None:
        """The replica of this number begins a step or has taken a request: its costs may differ."""
        if number not in self.by_number:
            return
        for index in self._indexes.values():
            index.touched[number] = None

    def looked(self) -> None:
        """A look has been taken: every cost may differ."""
        assert self.looks is not None
        self.looks += 1
        for load in self._loads:
            self.changed(load.index)


def _bits(numbers: Iterable[int]) -> int:
    return sum([1 << number for number in numbers])


class _LeastIndex:
    """A heap of the costs as they were last worked out: lower bounds, as costs do not fall unseen."""

    __slots__ = ("_cost", "_heap", "_known", "_loads", "touched")

    def __init__(self, loads: Mapping[int, ReplicaLoad], cost: Cost) -> None:
        self._cost = cost
        self._loads = loads
        self._known = {number: cost(load) for number, load in loads.items()}
        self._heap = [(known, number) for number, known in self._known.items()]
        heapify(self._heap)
        self.touched: dict[int, None] = {}  # replicas whose cost may be less than the one known

    def least(self) -> ReplicaLoad:
        heap, known, loads, cost = self._heap, self._known, self._loads, self._cost
        for number in self.touched:
            now = cost(loads[number])
            if now != known[number]:
                known[number] = now
                heappush(heap, (now, number))
        self.touched.clear()
        if len(heap) > 4 * len(loads) + 64:  # most entries are out of date
            heap[:] = [(then, number) for number, then in known.items()]
            heapify(heap)
        while True:
            then, number = heap[0]
            if known[number] != then:
                heappop(heap)
                continue
            load = loads[number]
            now = cost(load)
            if now == then:
                return load
            known[number] = now
            heapreplace(heap, (now, number))


# Parts of several routers: how unequal loads are, scores of replicas, and a ring of hashes.

# How unequal the loads of replicas are, and SGLang's rule for when a known prefix outweighs them.

CacheThreshold = Annotated[
    float, Ge(0), Le(1), doc("share of the prompt that a replica must know, so that the router prefers it")
]
AbsThreshold = Annotated[CountOrZero, Unit("requests"), doc("largest difference of loads that the router accepts")]
RelThreshold = Annotated[float, Ge(1), Le(1e9), doc("largest ratio of loads that the router accepts")]


class Thresholds(Protocol):
    """SGLang's thresholds."""

    cache_threshold: float
    balance_abs_threshold: int
    balance_rel_threshold: float


def unfinished(replica: ReplicaLoad) -> int:
    """Requests waiting or running."""
    return replica.num_unfinished


def _busiest(replica: ReplicaLoad) -> int:
    """The fewest unfinished requests, negated."""
    return -replica.num_unfinished


def fewest_and_most(replicas: Replicas) -> tuple[int, int]:
    """The fewest and the most unfinished requests of any replica."""
    return replicas.least(unfinished).num_unfinished, replicas.least(_busiest).num_unfinished


def are_unequal(fewest: int, most: int, most_apart: int, most_ratio: float) -> bool:
    """True if the most is too much more than the fewest, by difference and by ratio."""
    return most - fewest > most_apart and most > most_ratio * fewest


def knowing_enough(
    thresholds: Thresholds,
    request: ArrivingRequest,
    replicas: Replicas,
    known: Callable[[], tuple[int, list[int]]],
) -> tuple[int, list[int]]:
    """The tokens of the prompt that are known at most, and the numbers of the replicas that know them, as `known` says.

    No replica is named while loads are unequal, or where too little of the prompt is known. After `select_worker` in
    sgl-model-gateway/src/policies/cache_aware.rs, sglang-router 0.3.2.
    """
    fewest, most = fewest_and_most(replicas)
    if are_unequal(fewest, most, thresholds.balance_abs_threshold, thresholds.balance_rel_threshold):
        return 0, []
    tokens, numbers = known()
    return (tokens, numbers) if tokens > thresholds.cache_threshold * request.input_tokens else (0, [])


# Scores from 0 to 1 of replicas, one a replica in order, and the pick of the highest sum, as in llm-d-router.
#
# Before, it was the Gateway API Inference Extension. Files are below pkg/epp/framework/plugins/scheduling/ there,
# as of commit 683100dc or the one that is named; the cases of its own tests are ours
# (tests/simulator/fleet/test_deployed_routers.py).

_THERE, _ROOM = 1.0, 0.8


def queue_scores(loads: Sequence[ReplicaLoad]) -> list[float]:
    """The shortest queue scores 1, the longest 0, others in proportion (scorer/queuedepth/queue.go)."""
    queues = [load.num_waiting for load in loads]
    longest = max(queues)
    span = longest - min(queues)
    return [(longest - waiting) / span if span else 1.0 for waiting in queues]


def kv_scores(loads: Sequence[ReplicaLoad]) -> list[float]:
    """The free share of the KV blocks (scorer/kvcacheutilization)."""
    return [1.0 - load.kv_utilization for load in loads]


def lora_scores(lora: str | None, loads: Sequence[ReplicaLoad]) -> list[float]:
    """1 where the adapter is in use, 0.8 where there is room for another, else 0.

    There is room where the adapters that run and those that wait, together, are fewer than `max_loras`
    (scorer/loraaffinity/lora_affinity.go, 533a218d). vLLM's metric `vllm:lora_requests_info` names each adapter that
    has a request as both (0.33, v1/metrics/stats.py:703), so each counts twice, and none is known only to wait.
    """
    return [_THERE if lora in load.loras else _ROOM if 2 * len(load.loras) < load.max_loras else 0.0 for load in loads]


def prefix_scores(known_blocks: Mapping[int, int], blocks: int, loads: Sequence[ReplicaLoad]) -> list[float]:
    """The share of the prompt's blocks that went to each replica before, by its number (scorer/prefix/plugin.go)."""
    return [known_blocks.get(load.index, 0) / blocks if blocks else 0.0 for load in loads]


class HighestInTurn:
    """Picks a replica of the highest score; equals take turns (picker/maxscore/picker.go, picker/common.go).

    One counter serves all ties. A tie of n takes the place counter mod n, and then the counter goes on by one, or back
    to 0 if it is n or more by then (`RotateScoredEndpoints`).
    """

    def __init__(self) -> None:
        self._turn = 0

    def pick(self, scores: Sequence[float], loads: Sequence[ReplicaLoad]) -> ReplicaLoad:
        best = max(scores)
        equals = [load for load, score in zip(loads, scores, strict=True) if score == best]
        if len(equals) == 1:
            return equals[0]
        chosen = equals[self._turn % len(equals)]
        self._turn = self._turn + 1 if self._turn + 1 < len(equals) else 0
        return chosen


def weighted_sum(weighted: Sequence[tuple[float, Sequence[float]]]) -> list[float]:
    """The sum of weight x score, replica by replica."""
    return [
        sum(each) for each in zip(*([weight * score for score in scores] for weight, scores in weighted), strict=True)
    ]


# A ring of hashes: each replica owns points of it, and a name belongs to the next point after its own.
#
# D. Karger et al., Consistent Hashing and Random Trees, STOC 1997: when a replica joins or leaves, only the names
# next to its points move.


class HashRing:
    """The ring of the replicas that take requests now, with so many points each."""

    def __init__(self, virtual_nodes: int) -> None:
        self._virtual_nodes = virtual_nodes
        self._ring: list[tuple[int, int]] = []  # (point, number)
        self._seen: object = None
        self._version = -1

    def after(self, name: str, replicas: Replicas) -> Iterator[ReplicaLoad]:
        """All replicas, in the order of their first points after that of `name`."""
        if replicas is not self._seen or replicas.version != self._version:
            self._seen, self._version = replicas, replicas.version
            points = range(self._virtual_nodes)
            self._ring = sorted((_point(f"replica {load.index}.{i}"), load.index) for load in replicas for i in points)
        ring = self._ring
        start = bisect_right(ring, (_point(name), -1))
        met = set()
        for place in range(start, start + len(ring)):
            number = ring[place % len(ring)][1]
            if number not in met:
                met.add(number)
                yield replicas.by_number[number]


def _point(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
