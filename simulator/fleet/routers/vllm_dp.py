"""vLLM's own balancer of data-parallel ranks, which its API servers have.

In vLLM 0.33 it is `DPLBAsyncMPClient` (v1/engine/core_client.py). An API server knows two things of a rank. One is what
it has sent there itself and has not ended: it knows that at once. The other is what the coordinator last published of
all ranks: waiting, running and the use of KV, every 100 ms (v1/engine/coordinator.py), the usual `signal_interval_s`
here. What is published replaces what the server has added to its copy since. A call goes to whichever API server the
kernel gives it to: here to one at random.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, Le, doc

from simulator.errors import RouterError
from simulator.fleet.router import Drawing
from simulator.parameters import check_parameters

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas
    from simulator.request import ArrivingRequest

_KV_WEIGHT, _KV_FREE = 6.0, 0.5  # a waiting request counts more by so much for each share of KV above this


class ApiServer:
    """The view that one of `count` API servers has of the ranks, by their numbers."""

    def __init__(self, index: int, count: int) -> None:
        self._index = index
        self._count = count
        self.in_flight: Counter[int] = Counter()  # its own requests that have not ended
        self._added: Counter[int] = Counter()  # to `waiting` in its copy of what was published
        self._looks: int | None = None
        self._chosen = 0

    def choose(self, ranks: Replicas) -> ReplicaLoad:
        """The rank of least score; of equals the first, counted from a start that moves on with every choice."""
        if ranks.looks is None or ranks.looks != self._looks:
            self._added.clear()
            self._looks = ranks.looks
        start = len(ranks) * self._index // self._count + self._chosen
        best = min((ranks[(start + place) % len(ranks)] for place in range(len(ranks))), key=self._score)
        self._added[best.index] += self._count  # the other servers are taken to do the same
        self._chosen += 1
        return best

    def _score(self, rank: ReplicaLoad) -> float:
        waiting = rank.num_waiting + self._added[rank.index]
        score: float = max(self._count * self.in_flight[rank.index], waiting + rank.num_running)
        if waiting:
            score += waiting * _KV_WEIGHT * max(0.0, rank.kv_utilization - _KV_FREE)
        return score


@dataclass(slots=True)
class VllmDp(Drawing):
    """Give a request to the rank of least score, as vLLM's own data-parallel balancer does; ties go round.

    The score is the larger of the requests that wait or run there, as last published, and the server's own unfinished
    ones x the API servers. Each waiting request adds 6 x the share of KV in use above one half. A request with a
    `data_parallel_rank` goes there, and moves no start and no copy.
    """

    hears_ends: ClassVar = True
    one_server: ClassVar = True
    usual_interval_s: ClassVar = 0.1

    api_server_count: Annotated[
        int, Ge(1), Le(1000), doc("API servers, each with a balancer of its own that knows its own requests")
    ] = 1
    _servers: list[ApiServer] = field(init=False, repr=False)
    _sent: dict[int, tuple[ApiServer, int]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        check_parameters(self)
        self._servers = [ApiServer(index, self.api_server_count) for index in range(self.api_server_count)]

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        server = self._draws.below(self.api_server_count)
        rank = request.data_parallel_rank
        if rank is None:
            chosen = self._servers[server].choose(replicas)
        elif 0 <= rank < len(replicas):
            chosen = replicas[rank]
        else:
            raise RouterError(
                f"request {request.request_id} asks for data_parallel_rank {rank} of {len(replicas)} ranks"
            )
        self.sent(request.row, server, chosen.index)
        return chosen

    def sent(self, row: int, server: int, rank: int) -> None:
        """A request goes to a rank through an API server, chosen or given."""
        taken_by = self._servers[server]
        taken_by.in_flight[rank] += 1
        self._sent[row] = taken_by, rank

    def ended(self, row: int) -> None:
        """A request has ended: finished, aborted, or rejected, perhaps before it was sent anywhere."""
        if row in self._sent:
            server, rank = self._sent.pop(row)
            server.in_flight[rank] -= 1
