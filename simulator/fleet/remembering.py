"""What routers that remember prompts, or know of prefix caches, have in common: parameters, and a way to choose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Le, Unit, doc

from simulator.fleet.draws import Drawing
from simulator.fleet.prompt_table import PromptTable, Stretch
from simulator.parameters import check_parameters

if TYPE_CHECKING:
    from simulator.engine.replica_load import ReplicaLoad
    from simulator.fleet.replicas import Replicas
    from simulator.request import ArrivingRequest

CHARACTERS = 4  # of a token, about: some gateways count a prompt's text

Knowledge = Annotated[
    Literal["approximate", "exact"],
    doc("approximate: the router remembers what it sent where; exact: it knows what each prefix cache holds"),
]
EventLag = Annotated[
    float, Ge(0), Le(1e9), Unit("s"), doc("exact: the router knows what the caches held so many seconds ago")
]
BlockSize = Annotated[int, Ge(1), Le(2**20), Unit("tokens"), doc("tokens in a block of the router's own memory")]
MaxBlocks = Annotated[int, Ge(1), Le(10**9), Unit("blocks"), doc("blocks that the router remembers of each replica")]


def check_lag(kv_event_lag_s: float, *, hears: bool) -> None:
    """Raise ValueError for a lag of events that the router does not hear."""
    if kv_event_lag_s and not hears:
        raise ValueError("kv_event_lag_s is of knowledge: exact")


@dataclass(slots=True)
class Remembering(Drawing):
    """A router that remembers what it sent where, and draws where that does not decide."""

    block_size: BlockSize = 16
    max_blocks: MaxBlocks = 1_000_000
    _table: PromptTable = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_parameters(self)
        self._table = PromptTable(self.block_size, self.max_blocks)
        self._prepare()

    def _prepare(self) -> None:
        """Make what else a router remembers, once its parameters have been checked."""

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        prompt = self._table.stretches(request)
        chosen = self._chosen(request, prompt, replicas)
        self._table.add(prompt, chosen.index)
        return chosen

    def _chosen(self, request: ArrivingRequest, prompt: list[Stretch], replicas: Replicas) -> ReplicaLoad:
        """One of `replicas` for a request with these blocks."""
        raise NotImplementedError
