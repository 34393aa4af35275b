"""The router's protocol: it chooses a replica for each request at the moment of its arrival; and its random numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from simulator.engine.replica_load import ReplicaLoad
    from simulator.fleet.replicas import Replicas
    from simulator.request import ArrivingRequest


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
