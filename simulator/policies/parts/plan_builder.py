"""A step plan under construction, for policies in which more important requests displace less important ones."""

from collections.abc import Callable, Iterable, Iterator

from simulator.division import cdiv
from simulator.plan import Chunk, Holds, Preemption, StepPlan, View
from simulator.request import RequestView


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
