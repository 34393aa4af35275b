"""Plans: made without their constructors, built up where requests displace others, and who gives way to whom."""

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import Final

from simulator.division import cdiv
from simulator.plan import Chunk, Holds, Preemption, StepPlan, View
from simulator.queues.priority import rank
from simulator.request import RequestView

# Plans and chunks made without their constructors, which take three times as long. A test holds them to be equal.

UNTIL_ARRIVAL: Final = StepPlan(holds=Holds.ARRIVAL)  # all decode, until a request arrives
UNTIL_CHANGE: Final = StepPlan(holds=Holds.CHANGE)  # all decode, and arrivals do not alter that
_new: Final = tuple.__new__
_CHUNK: Final = Chunk
_PLAN: Final = StepPlan
_STEP: Final = Holds.STEP


def decodes_on(view: View, slots: int, order: str) -> StepPlan:
    """The plan that only decodes: it holds until an arrival that could enter."""
    if len(view.running) >= slots or (order == "fcfs" and view.waiting):
        return UNTIL_CHANGE  # no slot for an arrival, or it queues behind a head that is stuck
    return UNTIL_ARRIVAL


def chunk_of(request: RequestView, num_tokens: int) -> Chunk:
    """A chunk without reservation or padding."""
    return _new(_CHUNK, (request, num_tokens, 0, 0))


def step_plan(
    *,
    preempt: tuple[Preemption, ...] = (),
    resume: tuple[RequestView, ...] = (),
    prefill: tuple[Chunk, ...] = (),
    decode: bool = True,
    paused: tuple[RequestView, ...] = (),
    holds: Holds = _STEP,
    wait_until_s: float | None = None,
    more: bool = False,
    note: object = None,
    tried: tuple[RequestView, ...] | None = None,
    to_end: tuple[RequestView, ...] = (),
    withheld: bool = False,
    requeue: tuple[RequestView, ...] | None = None,
    hold_steps: int | None = None,
) -> StepPlan:
    """`StepPlan` of the same arguments."""
    fields = (
        preempt, resume, prefill, decode, paused, holds, wait_until_s,
        more, note, tried, to_end, withheld, requeue, hold_steps,
    )  # fmt: skip
    return _new(_PLAN, fields)


# A step plan under construction, for policies in which more important requests displace less important ones.


class PlanBuilder:
    """A step in which every request decodes that is neither paused nor preempted.

    `free`, `free_host` and `budget` are the device blocks, host blocks and tokens left under the plan so far.
    `ranked` gives the running requests, the next victim first; it is called late and read no further than needed.
    `to_host` says whether a victim's KV is to be swapped; it is, if its prompt is computed and the host has room.
    """

    def __init__(
        self,
        view: View,
        budget: int,
        ranked: Callable[[], Iterable[RequestView]],
        to_host: Callable[[RequestView], bool],
    ) -> None:
        self.view = view
        self.free = view.num_free_blocks - view.decode_blocks_needed
        self.free_host = view.num_free_host_blocks
        self.budget = budget - view.num_decoding
        self.preempted: dict[RequestView, Preemption] = {}
        self.resume: list[RequestView] = []
        self.prefill: dict[RequestView, Chunk] = {}
        self.paused: dict[RequestView, None] = {}
        self._ranked = ranked
        self._to_host = to_host
        self._unseen: Iterator[RequestView] | None = None  # of the ranked, those not yet looked at
        self._seen: dict[RequestView, None] = {}  # the others, without the preempted

    def next_victim(self) -> RequestView | None:
        """The first of the running requests that are not preempted; None if there are none."""
        for request in self._seen:
            return request
        return self._look()

    def remaining(self) -> Iterator[RequestView]:
        """The running requests that are not preempted, the next victim first; none may be preempted meanwhile."""
        yield from self._seen
        while (request := self._look()) is not None:
            yield request

    def _look(self) -> RequestView | None:
        if self._unseen is None:
            self._unseen = iter(self._ranked())
        request = next(self._unseen, None)
        if request is not None:
            self._seen[request] = None
        return request

    def fit_decodes(self) -> None:
        """Preempt victims until the remaining decodes fit."""
        while self.free < 0:
            self._preempt_next()

    def fit_prompts(self, prompts: Iterable[RequestView]) -> None:
        """Continue prompts, in this order; preempt victims where one lacks a block."""
        for request in prompts:
            tokens = min(request.num_tokens_to_compute, self.budget)
            if tokens == 0 or request in self.preempted:
                continue
            needed = cdiv(request.num_computed_tokens + tokens, self.view.block_size) - request.num_blocks
            while needed > self.free and request not in self.preempted:
                self._preempt_next()
            if request not in self.preempted:
                self._compute(request, tokens, needed)

    def blocks_to_enter(self, request: RequestView) -> int:
        """Blocks that a waiting request must find: of all its tokens, and of the next one where it was swapped."""
        tokens = 1 if request.is_swapped else request.num_tokens_to_compute
        return cdiv(request.num_computed_tokens + tokens, self.view.block_size)

    def enter(self, request: RequestView) -> None:
        """Admit or resume a waiting request, with as much of its prompt as the budget has left."""
        if request.is_swapped:
            self.resume.append(request)
            self.free -= self.blocks_to_enter(request)
            self.budget -= 1
        else:
            tokens = min(request.num_tokens_to_compute, self.budget)
            self._compute(request, tokens, cdiv(tokens, self.view.block_size))

    def victims(
        self, below: Iterable[RequestView], needed: int, slots: int, *, pauses: bool = False
    ) -> list[tuple[RequestView, bool]]:
        """The requests of `below` that must make room for `needed` blocks and a slot, `slots` being free.

        None, if all of them do not suffice. They leave in the order given, each with a flag that it need only pause:
        with `pauses`, where just its slot is lacking.
        """
        if pauses and slots <= 0:
            below = list(below)
            active = next((request for request in below if request not in self.paused), None)
            if active is None:
                return []
            if active.is_decoding and needed <= self.free + self._needs_block(active):
                return [(active, True)]
        found = []
        free = self.free
        for request in below:
            is_paused = request in self.paused
            spares = 0
            only_slot = False
            if pauses and request.is_decoding:
                spares = 0 if is_paused else self._needs_block(request)
                only_slot = needed <= free + spares
            if only_slot and is_paused:
                continue  # it holds none
            found.append((request, only_slot))
            free += spares if only_slot else self._blocks_freed(request)
            slots += not (pauses and is_paused)
            if needed <= free and slots > 0:
                return found
        return []

    def preempt(self, request: RequestView) -> None:
        """Preempt one of the `remaining` that were looked at: its KV goes to the host, or is computed again."""
        del self._seen[request]
        self.free += self._blocks_freed(request)
        self.budget += self.tokens_freed(request)
        self.prefill.pop(request, None)
        self.paused.pop(request, None)
        swap = request.is_decoding and request.num_blocks <= self.free_host and self._to_host(request)
        if swap:
            self.free_host -= request.num_blocks
        self.preempted[request] = Preemption(request, swap)

    def _preempt_next(self) -> None:
        victim = self.next_victim()
        assert victim is not None  # memory is short: requests run
        self.preempt(victim)

    def pause(self, request: RequestView) -> None:
        self.paused[request] = None
        self.free += self._needs_block(request)
        self.budget += 1

    def tokens_freed(self, request: RequestView) -> int:
        """Tokens of the budget that come free when `request` leaves."""
        if request in self.prefill:
            return self.prefill[request].num_tokens
        return int(request.is_decoding and request not in self.paused)

    def plan(self, holds: Holds = Holds.STEP) -> StepPlan:
        """The finished plan; `holds` counts where it changes nothing."""
        if self.preempted or self.resume or self.prefill:
            holds = Holds.STEP
        return StepPlan(
            preempt=tuple(self.preempted.values()),
            resume=tuple(self.resume),
            prefill=tuple(self.prefill.values()),
            paused=tuple(self.paused),
            holds=holds,
        )

    def _compute(self, request: RequestView, tokens: int, blocks: int) -> None:
        self.prefill[request] = Chunk(request, tokens)
        self.free -= blocks
        self.budget -= tokens

    def _blocks_freed(self, request: RequestView) -> int:
        """Blocks that come free when `request` leaves: its own, and those planned for it in this step."""
        if request in self.prefill:
            tokens = request.num_computed_tokens + self.prefill[request].num_tokens
            return cdiv(tokens, self.view.block_size)
        if request.is_decoding and request not in self.paused:
            return request.num_blocks + self._needs_block(request)
        return request.num_blocks

    def _needs_block(self, request: RequestView) -> bool:
        return request.num_computed_tokens % self.view.block_size == 0


# Which running requests give way to waiting ones, without a walk over the batch.


def last_first(view: View, key: Callable[[RequestView], tuple[int, int]]) -> Iterable[RequestView]:
    """The running requests by the key of the queue's order, the largest first; no two keys are equal.

    A list that the queue keeps spares the sorting: it is read only as far as it is asked for.
    """
    decoding = view.decoding_last_first()
    if decoding is None:
        return sorted(view.running, key=key, reverse=True)
    if not view.prefilling:
        return decoding
    return merge(decoding, sorted(view.prefilling, key=key, reverse=True), key=key, reverse=True)


def displaces_none(view: View) -> bool:
    """True if no waiting request has a higher priority than a running one."""
    if not view.waiting:
        return True
    least = next(iter(last_first(view, rank)), None)
    return least is None or least.priority <= view.waiting.head.priority
