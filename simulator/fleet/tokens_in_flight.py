"""Prompt tokens that a gateway has sent to each replica, until their request has a first token.

After llm-d-router's `inflight-load-producer` (pkg/epp/framework/plugins/requestcontrol/dataproducer/inflightload/
producer.go, 003369e0), without estimated output tokens (its default): a request counts with the tokens of its prompt
that are not known to be cached on the replica it goes to, from the choice to its first token, or to its end where the
answer does not stream. What is cached a router says that knows: `uncached_tokens(request, number)`; under any other the
whole prompt counts. Prefill and decode apart, a prompt counts where it is prefilled (its README, 2f1de8c0).
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from simulator.engine.replica import Replica
from simulator.front_end import FirstTokens, FrontEnd
from simulator.request import ArrivingRequest
from simulator.request_state import RequestState
from simulator.results.recorder import Recorder
from simulator.results.records import Status


class TokensInFlight:
    """Tokens by replica, in `by_number`."""

    def __init__(self, router: Any, replicas: Iterable[Replica], recorder: Recorder) -> None:
        self._uncached = getattr(router, "uncached_tokens", None)
        self._sent: dict[int, tuple[int, int]] = {}  # replica and tokens, by row
        self.by_number: Counter[int] = Counter()
        for replica in replicas:
            replica.first_tokens = _Streamed(self, replica.first_tokens)
        recorder.watch(self._recorded)

    def sent(self, request: ArrivingRequest, number: int) -> None:
        """The router has just chosen this replica for a request."""
        tokens = request.input_tokens if self._uncached is None else self._uncached(request, number)
        self._sent[request.row] = number, tokens
        self.by_number[number] += tokens

    def release(self, row: int) -> None:
        """A request has its first token, or has ended; it may have before."""
        number, tokens = self._sent.pop(row, (-1, 0))
        self.by_number[number] -= tokens

    def _recorded(self, live: RequestState, replica: int, status: Status) -> None:
        self.release(live.row)


class _Streamed(FirstTokens):
    """Tells of the first tokens that clients get at once, and then whoever else is told of all."""

    __slots__ = ("_others", "_tokens")

    def __init__(self, tokens: TokensInFlight, others: FirstTokens | None) -> None:
        super().__init__(FrontEnd())
        self._tokens = tokens
        self._others = others

    def sampled(self, row: int, running: int, at_s: float, *, streams: bool) -> None:
        if streams:
            self._tokens.release(row)
        if self._others is not None:
            self._others.sampled(row, running, at_s, streams=streams)
