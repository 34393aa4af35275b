"""Prefill and decode apart: a request is prefilled by one replica, its KV moves, and another decodes.

Both are chosen as the request arrives (as llm-d's endpoint picker does), each by the router among its own. The first
token is the prefilling replica's, so TTFT ends there (DistServe, Splitwise; vLLM's own proxy has the decoding server
sample it again). The prefilling replica keeps the KV until its transfer has ended; that begins when the decoding one
has taken blocks, so where decoding lacks memory, prefilling comes to lack it too. An abort during a transfer lets the
transfer end, and then frees both sides. A request of a single token has no second half.

Where the decoding server sends the first token (`TakesOver`: SGLang and TensorRT-LLM), TTFT ends as the request joins
the batch there. One that takes memory first is asked for it as the request arrives, and its prompt is computed after
that: so SGLang does, whose prefilling server leaves a
request in its bootstrap queue until the other has told where its KV goes (`pop_bootstrapped`, SGLang 0.5.23,
python/sglang/srt/disaggregation/prefill.py:497). Its chunks' KV moves chunk by chunk; here it moves as one.

Decoding replicas with a pull connector (`simulator.engine.parts.pull`) do as vLLM's do: they queue the whole
request, load what their own prefix cache lacks of the prompt, and sample the first token again: TTFT ends there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from simulator.division import cdiv
from simulator.engine.aborts import computed_tokens
from simulator.engine.clock import FOLLOW_UP, Clock
from simulator.engine.completion import OnEnd
from simulator.engine.intake import Intake
from simulator.engine.parts.imports import Imports
from simulator.engine.replica import Replica
from simulator.fleet.dispatch import Dispatch, Link
from simulator.fleet.router import Replicas
from simulator.goes_with import DECODE, OFFLOAD, between
from simulator.request import ArrivingRequest, Request
from simulator.request_state import RequestState
from simulator.results.recorder import Recorder
from simulator.results.records import Status
from simulator.speculative import Loader

if TYPE_CHECKING:
    from simulator.fleet.dispatch import TokensInFlight


@dataclass(slots=True)
class _Half:
    """A request between its two replicas."""

    request: Request
    source: int
    target: int
    begun: bool = True  # the prefilling replica has it, or had it
    prefilled: RequestState | None = None
    blocks: int = 0  # that it holds on the prefilling replica
    ready_s: float = 0.0
    sending: bool = False
    is_gone: bool = False  # its client has left
    pulled: bool = False  # the decoding replica has the request, and loads its KV by itself


class Disaggregation:
    """Gives requests to pairs of replicas: the `Servers` of clients.

    `prefill` and `decode` choose among the replicas of their side; `block_bytes` is the size of a block by replica;
    `fails` says of which requests the load fails, where replicas pull; `prefills_apart` whether a request is prefilled
    elsewhere than on the replica that decodes it: each, where it is None.
    """

    def __init__(
        self,
        clock: Clock,
        prefill: Dispatch,
        decode: Dispatch,
        replicas: Sequence[Replica],
        intakes: Sequence[Intake],
        link: Link,
        block_bytes: Sequence[int],
        recorder: Recorder,
        on_end: OnEnd | None,
        fails: Callable[[int], bool] = lambda row: False,
        prefills_apart: Callable[[ArrivingRequest, int], bool] | None = None,
    ) -> None:
        self._clock = clock
        self._prefill = prefill
        self._decode = decode
        self._sides = {load.index: side for side in (prefill, decode) for load in side.replicas}
        self._replicas = replicas
        self._intakes = intakes
        self._link = link
        self._block_bytes = block_bytes
        self._recorder = recorder
        self._on_end = on_end
        self.on_prefilled: Callable[[int, float], None] | None = None  # told the row of each first half, and the time
        self.replicas = prefill.replicas
        self._between: dict[int, _Half] = {}  # by row, until it joins the decoding batch or ends
        self._imports: dict[int, Imports] = {}
        self._fails = fails
        self._prefills_apart = prefills_apart
        self._pulls: dict[int, Loader] = {}
        for load in prefill.replicas:
            replicas[load.index].hand_over_to(self._hand_over)
        for load in decode.replicas:
            replica = replicas[load.index]
            if replica.connector is not None:
                if not replica.connector.attach(self._pull):
                    raise between(OFFLOAD, DECODE).error(f"replica {load.index}")
                self._pulls[load.index] = replica.connector
            else:
                joined = partial(self._joined, replica)
                imports = Imports(replica.state, replica.new_request, self._has_room, joined)
                replica.imports = self._imports[load.index] = imports

    @property
    def sides(self) -> Sequence[Replicas]:
        """The replicas that prefill, and those that decode."""
        return self._prefill.replicas, self._decode.replicas

    @property
    def in_flight(self) -> "TokensInFlight | None":
        """The prompts that were sent, where they are counted: where they are prefilled."""
        return self._prefill.in_flight

    def count_tokens(self, in_flight: "TokensInFlight") -> None:
        """See `Dispatch.count_tokens`."""
        self._prefill.count_tokens(in_flight)

    # Servers

    def submit(self, request: Request) -> int:
        """`request` arrives now; returns the replica that decodes it."""
        target = self._decode.choose(request)
        taken = self._replicas[target].takes(request)
        if taken is None:
            return target
        request = taken
        if self._prefills_apart is not None and not self._prefills_apart(request.arriving(), target):
            self._intakes[target].submit(request)
            return target
        if request.output_tokens == 1:
            return self._prefill.submit(request)
        source = self._prefill.choose(request)
        half = self._between[request.row] = _Half(request, source, target)
        self._expect(target, 1)
        if self._is_room_first(target):
            half.begun = False
            self._expect(source, 1)
            self._imports[target].offer(request, None)
            self._intakes[target].wake()
        else:
            self._begin(half)
        return target

    def _is_room_first(self, target: int) -> bool:
        return target in self._imports and self._imports[target].rule.room_first

    def _begin(self, half: _Half) -> None:
        """The prompt of a request goes to the replica that computes it."""
        if half.is_gone:
            return
        request = half.request
        if not half.begun:
            half.begun = True
            self._expect(half.source, -1)
            self._imports[half.target].begun(request.row)
        self._intakes[half.source].submit(request._replace(output_tokens=1, max_tokens=1))

    def abort(self, replica: int, row: int) -> None:
        """The client of a request leaves now; without effect if the request has ended."""
        half = self._between.get(row)
        if half is None:
            self._abort_late(replica, row)
        elif not half.begun:
            half.is_gone = True
            self._expect(half.source, -1)
            self._forget(row)
            self._end_in(half.target, self._imports[half.target], row)
        elif half.prefilled is None:
            self._intakes[half.source].abort(row)
        elif half.pulled:
            self._intakes[half.target].abort(row)
        elif not half.is_gone:
            self._abort(half, half.prefilled)

    def has_begun(self, replica: int, row: int) -> bool:
        """True if the client of a request got its first token before now."""
        half = self._between.get(row)
        if half is not None and not half.pulled:
            return half.prefilled is not None and self._first_is_sent(half)
        return self._intakes[replica].has_begun(row)

    # From one to the other

    def _hand_over(self, live: RequestState, blocks: int) -> bool:
        """A request has been prefilled; whether it decodes elsewhere, so that its blocks are kept."""
        half = self._between.get(live.row)
        if half is None:
            return False
        half.prefilled, half.blocks, half.ready_s = live, blocks, self._clock.now
        if self.on_prefilled is not None and self._first_is_sent(half):
            self.on_prefilled(live.row, live.last_token_s)
        self._clock.call(self._clock.now, partial(self._offer, half, live), FOLLOW_UP)
        return True

    def _first_is_sent(self, half: _Half) -> bool:
        """Whether the replica that prefills sends the first token."""
        return half.target not in self._pulls and not self._imports[half.target].rule.sends_first

    def _joined(self, replica: Replica, live: RequestState) -> None:
        """A request decodes from now on; it may send its first token."""
        if not self._imports[replica.index].rule.sends_first:
            return
        if replica.first_tokens is not None:
            running, streams = len(replica.state.running), replica.state.traits.streams
            replica.first_tokens.sampled(live.row, running, live.first_token_s, streams=streams)
        if self.on_prefilled is not None:
            self.on_prefilled(live.row, live.first_token_s)

    def _offer(self, half: _Half, live: RequestState) -> None:
        if half.target in self._pulls and not half.is_gone:
            half.pulled = True
            self._expect(half.target, -1)
            self._pulls[half.target].offer(live.row, fails=self._fails(live.row))
            self._intakes[half.target].submit(half.request)
        elif not half.is_gone and self._is_room_first(half.target):
            self._imports[half.target].prefilled(live.row, live)
            self._send(half)
        elif not half.is_gone:
            self._imports[half.target].offer(half.request, live)
            self._intakes[half.target].wake()

    def _has_room(self, row: int) -> None:
        """There are blocks for a request's KV: it moves, or its prompt is computed now."""
        half = self._between[row]
        if half.begun:
            self._send(half)
        else:
            self._clock.call(self._clock.now, partial(self._begin, half), FOLLOW_UP)

    def _send(self, half: _Half) -> None:
        """A request's KV moves."""
        row = half.request.row
        half.sending = True
        assert half.prefilled is not None
        moved = cdiv(half.prefilled.base_computed, self._replicas[half.source].state.batch.block_size)
        size = moved * self._block_bytes[half.source]
        start_s, end_s = self._link.send(size, partial(self._arrive, half))
        entry = (row, half.source, half.target, moved, size, half.ready_s, start_s, end_s)
        self._recorder.transfers.add(entry)

    def _arrive(self, half: _Half) -> None:
        row = half.request.row
        self._intakes[half.source].free_blocks(row, half.blocks)
        imports = self._imports[half.target]
        imports.arrived(row)
        self._forget(row)
        if half.is_gone:
            self._end_in(half.target, imports, row)
        self._intakes[half.target].wake()

    def _pull(self, row: int, blocks: int) -> float:
        """A decoding replica loads so many blocks, the last of the request's; returns when they are there."""
        half = self._between[row]
        if not blocks:
            self._leave(half)
            return self._clock.now
        half.sending = True
        size = blocks * self._block_bytes[half.target]
        start_s, end_s = self._link.send(size, partial(self._leave, half))
        entry = (row, half.source, half.target, blocks, size, half.ready_s, start_s, end_s)
        self._recorder.transfers.add(entry)
        return end_s

    def _leave(self, half: _Half) -> None:
        """What is needed of a request's KV has left the replica that prefilled it."""
        del self._between[half.request.row]
        self._intakes[half.source].free_blocks(half.request.row, half.blocks)

    def _left(self, half: _Half) -> None:
        """A request has ended at its decoding replica before it asked for its KV."""
        if half.request.row in self._between:
            self._leave(half)

    def _forget(self, row: int) -> None:
        self._expect(self._between.pop(row).target, -1)

    def _expect(self, replica: int, more: int) -> None:
        self._replicas[replica].load.expected += more
        self._sides[replica].replicas.changed(replica)

    # Ends before the second half

    def request_ended(self, row: int) -> None:
        """A request has ended at a replica; if that was the first half, there is no second."""
        half = self._between.get(row)
        if half is None:
            return
        if not half.pulled:
            self._forget(row)
            if self._is_room_first(half.target):
                self._imports[half.target].cancel(row)
                self._leave_unused(half.target, row)
        elif not half.sending:
            self._clock.call(self._clock.now, partial(self._left, half), FOLLOW_UP)

    def _abort(self, half: _Half, prefilled: RequestState) -> None:
        half.is_gone = True
        if half.sending:
            return
        row = half.request.row
        if self._is_room_first(half.target):
            self._imports[half.target].prefilled(row, prefilled)
        self._intakes[half.source].free_blocks(row, half.blocks)
        self._forget(row)
        if row not in self._replicas[half.target].state.lives:
            self._record(prefilled, half.source)  # not offered yet
        else:
            self._end_in(half.target, self._imports[half.target], row)

    def _abort_late(self, replica: int, row: int) -> None:
        """Abort a request that decodes, or whose KV is there and which is about to."""
        imports = self._imports.get(replica)
        live = None if imports is None else imports.drop(row)
        if live is None:
            self._intakes[replica].abort(row)
        else:
            self._end_at(replica, live)

    def _end_in(self, target: int, imports: Imports, row: int) -> None:
        live = imports.cancel(row)
        assert live is not None
        self._end_at(target, live)

    def _end_at(self, target: int, live: RequestState) -> None:
        self._leave_unused(target, live.row)
        self._record(live, target)

    def _leave_unused(self, target: int, row: int) -> None:
        """A request leaves a decoding replica without having decoded there."""
        state = self._replicas[target].state
        del state.requests[row], state.lives[row]
        self._intakes[target].wake()

    def _record(self, live: RequestState, replica: int) -> None:
        live.set_back().aborted_tokens = computed_tokens(live)
        self._recorder.request(live, replica, Status.ABORTED, self._clock.now)
        if self._on_end is not None:
            self._on_end(live.row, Status.ABORTED, self._clock.now, None)
