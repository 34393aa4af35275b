"""What a router is: the choice of a replica for each request at the moment of its arrival."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from simulator.engine.load import ReplicaLoad
    from simulator.fleet.replicas import Replicas
    from simulator.request import ArrivingRequest


class Router(Protocol):
    """Chooses a replica at the moment of arrival, by the request as the client sent it and by the replicas' loads.

    Parameters are the fields of a dataclass or the arguments of `__init__`, annotated as a policy's are. A router is
    made anew for each run, so it may remember. `RouterFeatures` says what else its class may declare. A router that
    draws random numbers has a method `start(draws: simulator.fleet.draws.Draws)`, called once before the first request:
    these numbers depend on the scenario's seed alone.
    """

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        """One of `replicas`, a sequence in the order of their numbers; `replicas.least(cost)` finds one by an index."""


@dataclass(frozen=True, slots=True)
class RouterFeatures:
    """What a router's class may declare by class variables, with what holds where it does not.

    `reads_loads`: its choice depends on the state of the replicas. Where it does not, requests are dealt ahead of their
    arrival, which costs no event each. `reads_caches`: it asks what the replicas' prefix caches hold
    (`ReplicaLoad.cached_tokens`), for which every step is executed by itself. `takes_fewest`: it takes, always, the
    replica with the fewest unfinished requests, the first of equals: then it need not be asked (`fleet/run_ahead.py`).
    That is said of a `choose` by its own class: it does not hold of a subclass that chooses otherwise.
    """

    reads_loads: bool = True
    reads_caches: bool = False
    takes_fewest: bool = False

    @classmethod
    def of(cls, router: Any) -> RouterFeatures:
        """Those of this router or of its class."""
        found = cls(**{field.name: bool(getattr(router, field.name, field.default)) for field in fields(cls)})
        classes = (router if isinstance(router, type) else type(router)).__mro__
        chooses = next((each for each in classes if "choose" in vars(each)), object)
        said = next((each for each in classes if "takes_fewest" in vars(each)), object)
        return found if issubclass(said, chooses) else replace(found, takes_fewest=False)
