"""Skip-join multi-level feedback queue.

B. Wu et al., Fast Distributed Inference Serving for Large Language Models (arXiv 2305.05920).
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import Annotated

from annotated_types import doc

from simulator.parameters import Count, PositiveSeconds
from simulator.queues.decoding_order import DecodingByLevel, Quanta
from simulator.queues.order import OrderKind
from simulator.request_state import RequestState

MinQuantum = Annotated[Count, doc("output tokens after which a request of the highest level moves one level down")]
PromptQuantum = Annotated[Count, doc("prompt tokens that count as one quantum of the highest level")]
StarveLimit = Annotated[PositiveSeconds, doc("waiting time after which a request is promoted to the highest level")]


class Mlfq:
    """The highest level first, which is 0; within a level the request that has waited there longest.

    A request falls by a level whenever it has been served the quantum of its own: `min_quantum_tokens` output tokens
    on level 0, and twice as many on each level as on the one above. Its prompt counts as `min_quantum_tokens` for
    every full `prompt_tokens_per_quantum`, and counts before it is computed: a long prompt skips the levels whose
    quanta its first iteration would use up, and joins below them. A request that has waited for `starve_limit_s` since
    it arrived or was preempted is promoted: it goes to the front of level 0, and its past service is forgotten.

    The paper measures service in seconds of profiled iterations; here a decode step is a token, whatever it lasts.
    """

    __slots__ = ("_levels", "_places", "_quanta", "_since", "_starve_limit_s", "meter")

    timeless = False

    def __init__(
        self,
        min_quantum_tokens: MinQuantum = 1,
        prompt_tokens_per_quantum: PromptQuantum = 256,
        starve_limit_s: StarveLimit = 3.0,
    ) -> None:
        self._quanta = Quanta(min_quantum_tokens, prompt_tokens_per_quantum)
        self._starve_limit_s = starve_limit_s
        self._levels: list[OrderedDict[RequestState, None]] = [OrderedDict()]  # the promoted, then level by level
        self._places: dict[RequestState, int] = {}  # in `_levels`
        self._since: OrderedDict[RequestState, float] = OrderedDict()  # start of the wait of those not yet promoted
        self.meter = DecodingByLevel(self._quanta)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[RequestState]:
        return chain.from_iterable(self._levels)

    @property
    def head(self) -> RequestState:
        return next(iter(self))

    def at(self, now_s: float) -> None:
        since = self._since
        while since:
            request, since_s = next(iter(since.items()))
            if now_s - since_s < self._starve_limit_s:
                break
            del since[request]
            request.promoted_at_tokens = request.output_tokens_so_far
            del self._levels[self._places[request]][request]
            self._enter(request, _PROMOTED)

    def push(self, request: RequestState) -> None:
        self._since[request] = request.waiting_since_s
        self._enter(request, 1 + self._quanta.level(request))

    put_back = push

    def remove(self, request: RequestState) -> None:
        self._since.pop(request, None)
        del self._levels[self._places.pop(request)][request]

    drop = remove

    def _enter(self, request: RequestState, place: int) -> None:
        while place >= len(self._levels):
            self._levels.append(OrderedDict())
        self._places[request] = place
        self._levels[place][request] = None


_PROMOTED = 0  # in front of level 0


ORDER = OrderKind(Mlfq, is_internal=True)  # `fastserve` preempts by it
