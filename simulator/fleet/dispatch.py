"""From an arrival to a replica: the router's choice, its regret, the replica's intake, prompts and KV on their way."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.engine.admission import Admission, ReplicaLoad
from simulator.engine.clock import URGENT, Clock
from simulator.engine.intake import Intake
from simulator.engine.replica import Replica
from simulator.errors import RouterError
from simulator.fleet.router import Replicas, Router, RouterFeatures
from simulator.front_end import FirstTokens, FrontEnd
from simulator.request import ArrivingRequest, Request
from simulator.request_state import RequestState
from simulator.results.recorder import Recorder
from simulator.results.records import Status

# Regret of a router: for each request, what the replica that would have been best for it had, beside the chosen
# one.
#
# Two things are told, each against the best of all replicas at that moment: how much of the prompt lies in the
# prefix cache, and how many unfinished requests are there. No router can have both at once, so the sum is a bound
# of what a better choice could gain, request by request, as long as earlier choices stay as they were.


class WithRegret:
    """A router that chooses as another does, and of whose choices the regret is told.

    The prefix caches are asked at every arrival, so every step is executed by itself.
    """

    reads_caches = True
    tells_regret = True

    def __init__(self, router: Router) -> None:
        self._router = router
        features = RouterFeatures.of(router)
        self.hears_ends = features.hears_ends
        self.hears_first_tokens = features.hears_first_tokens
        self.one_server = features.one_server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._router, name)

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        return self._router.choose(request, replicas)


class Regret:
    """Told of each choice; `tell` gets a row of `simulator.results.records.RegretColumns`."""

    def __init__(self, replicas: Sequence[Replica], tell: Callable[[tuple[int, ...]], None]) -> None:
        self._replicas = {replica.index: replica for replica in replicas}
        self._tell = tell

    def chosen(self, request: ArrivingRequest, replicas: Replicas, number: int) -> None:
        """A request goes to the replica of this number, one of `replicas`."""
        here = [self._replicas[load.index] for load in replicas]
        cached = {replica.index: replica.state.cached_tokens(request) for replica in here}
        fewest = min([replica.load.num_unfinished for replica in here])
        unfinished = self._replicas[number].load.num_unfinished
        self._tell((request.row, cached[number], max(cached.values()), unfinished, fewest))


# Prompt tokens that a gateway has sent to each replica, until their request has a first token.
#
# After llm-d-router's `inflight-load-producer` (pkg/epp/framework/plugins/requestcontrol/dataproducer/inflightload/
# producer.go, 003369e0), without estimated output tokens (its default): a request counts with the tokens of its
# prompt that are not known to be cached on the replica it goes to, from the choice to its first token, or to its
# end where the answer does not stream. What is cached a router says that knows: `uncached_tokens(request, number)`;
# under any other the whole prompt counts. Prefill and decode apart, a prompt counts where it is prefilled (its
# README, 2f1de8c0).


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


# From an arrival to a replica: the router chooses at the moment of the arrival, the replica's intake takes it.


class Dispatch:
    """Gives requests to replicas, each to the one that the router chooses as it arrives.

    `sent` is told the replica that a request went to, for signals that are not live.
    """

    def __init__(
        self,
        router: Router,
        replicas: Replicas,
        intakes: Sequence[Intake],
        sent: Callable[[ReplicaLoad], None] | None = None,
    ) -> None:
        self._router = router
        self.replicas = replicas
        self._intakes = intakes
        self._sent = sent
        self.regret: Regret | None = None  # is told of each choice
        self.admission: Admission | None = None  # of the one server that all replicas are behind
        self.in_flight: TokensInFlight | None = None  # likewise told

    @property
    def sides(self) -> Sequence[Replicas]:
        """All that requests may go to."""
        return (self.replicas,)

    def count_tokens(self, in_flight: TokensInFlight) -> None:
        """Let it be told of the prompts that are sent."""
        self.in_flight = in_flight

    def abort(self, replica: int, row: int) -> None:
        """The client of a request that this replica has leaves now; without effect if the request has ended."""
        self._intakes[replica].abort(row)

    def has_begun(self, replica: int, row: int) -> bool:
        """True if the client of a request on this replica got its first token before now."""
        return self._intakes[replica].has_begun(row)

    def choose(self, request: Request) -> int:
        """The number of the replica that the router chooses. RouterError where it chooses none of them.

        Where the server will reject the request, the router is not asked: the first replica tells of it.
        """
        if self.admission is not None and self.admission.refusal_of(request) is not None:
            return self.replicas[0].index
        chosen = self._router.choose(request.arriving(), self.replicas)
        if not isinstance(chosen, ReplicaLoad):
            raise RouterError(f"the router chose {chosen!r} for request {request.request_id}, which is no replica")
        if self.regret is not None:
            self.regret.chosen(request.arriving(), self.replicas, chosen.index)
        if self.in_flight is not None:
            self.in_flight.sent(request.arriving(), chosen.index)
        if self._sent is not None:
            self._sent(chosen)
        return chosen.index

    def submit(self, request: Request) -> int:
        """`request` arrives now; returns the replica that it went to."""
        chosen = self.choose(request)
        self._intakes[chosen].submit(request)
        return chosen


# The link that KV goes over from prefilling to decoding replicas: shared by all, one transfer after the other.
#
# Transfers are whole: a request's KV leaves when it is computed and there are blocks for it. So do DistServe (Zhong
# et al., OSDI 2024, section 4.3: decoding instances pull when they have memory, and prefilling ones keep the KV
# meanwhile) and vLLM's NIXL connector; Splitwise (Patel et al., ISCA 2024) also sends layer by layer behind the
# computation, which hides most of the time of a long prompt's transfer and is not modelled.


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """`latency_s` is added to each transfer and does not keep the link busy.

    `fails` says of which requests, by row, a load by a pull connector fails.
    """

    bytes_per_s: float = 50e9  # one port of 400 Gbit/s
    latency_s: float = 0.0
    fails: Callable[[int], bool] | None = None


class Link:
    """First come, first served."""

    def __init__(self, clock: Clock, speed: LinkSpeed) -> None:
        self._clock = clock
        self._speed = speed
        self._free_s = 0.0

    def send(self, size: float, then: Callable[[], None]) -> tuple[float, float]:
        """Send so many bytes after all before; `then` is called when they are there. Returns start and end."""
        start_s = max(self._clock.now, self._free_s)
        self._free_s = start_s + size / self._speed.bytes_per_s
        end_s = self._free_s + self._speed.latency_s
        self._clock.call(end_s, then, URGENT)
        return start_s, end_s
