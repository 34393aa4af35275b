"""Skip-join multi-level feedback queue.

B. Wu et al., Fast Distributed Inference Serving for Large Language Models (arXiv 2305.05920).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Annotated

from annotated_types import doc
from sortedcontainers import SortedDict

from simulator.parameters import Count, PositiveSeconds
from simulator.queues.order import OrderKind
from simulator.request import RequestView
from simulator.request_state import RequestState

MinQuantum = Annotated[Count, doc("output tokens after which a request of the highest level falls by one")]
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

    __slots__ = ("_keys", "_levels", "_min_quantum_tokens", "_prompt_tokens", "_since", "_starve_limit_s", "_turn")

    timeless = False
    meter = None

    def __init__(
        self,
        min_quantum_tokens: MinQuantum = 1,
        prompt_tokens_per_quantum: PromptQuantum = 256,
        starve_limit_s: StarveLimit = 3.0,
    ) -> None:
        self._min_quantum_tokens = min_quantum_tokens
        self._prompt_tokens = prompt_tokens_per_quantum
        self._starve_limit_s = starve_limit_s
        self._levels: SortedDict[tuple[int, int], RequestState] = SortedDict()  # by level and turn
        self._keys: dict[RequestState, tuple[int, int]] = {}
        self._since: OrderedDict[RequestState, float] = OrderedDict()  # start of the wait of those not yet promoted
        self._turn = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._levels.values())

    @property
    def head(self) -> RequestState:
        return self._levels.peekitem(0)[1]

    def at(self, now_s: float) -> None:
        since = self._since
        while since:
            request, since_s = next(iter(since.items()))
            if now_s - since_s < self._starve_limit_s:
                break
            del since[request]
            request.promoted_at_tokens = request.output_tokens_so_far
            del self._levels[self._keys[request]]
            self._enter(request, _PROMOTED)

    def push(self, request: RequestState) -> None:
        self._since[request] = request.waiting_since_s
        self._enter(request, level(request, self._min_quantum_tokens, self._prompt_tokens))

    put_back = push

    def remove(self, request: RequestState) -> None:
        self._since.pop(request, None)
        del self._levels[self._keys.pop(request)]

    drop = remove

    def _enter(self, request: RequestState, place: int) -> None:
        self._turn += 1
        self._keys[request] = key = place, self._turn
        self._levels[key] = request


_PROMOTED = -1  # in front of level 0


def level(request: RequestView, min_quantum_tokens: int, prompt_tokens_per_quantum: int) -> int:
    """The level of a request, 0 being the highest: see `Mlfq`."""
    return next(levels((request,), min_quantum_tokens, prompt_tokens_per_quantum))


def levels(requests: Iterable[RequestView], min_quantum_tokens: int, prompt_tokens_per_quantum: int) -> Iterator[int]:
    """The level of each of these.

    With quanta of q, 2q, 4q, ... the first n levels are used up by q (2^n - 1) tokens.
    """
    for request in requests:
        served = request.output_tokens_so_far
        promoted_at = request.promoted_at_tokens
        if promoted_at is None:
            quanta = request.input_tokens // prompt_tokens_per_quantum + served // min_quantum_tokens
        else:
            quanta = (served - promoted_at) // min_quantum_tokens
        yield (quanta + 1).bit_length() - 1


ORDER = OrderKind(Mlfq, is_internal=True)  # `fastserve` preempts by it
