"""Priority scheduling with preemption: who matters more takes the place of who matters less, at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.plan import Chunk, Holds, Preemption, StepPlan, Traits, View, cdiv
from simulator.request import RequestView
from simulator.system import System
from simulator.victims import rank


@dataclass(frozen=True, slots=True)
class Preemptive:
    """Chunked prefill under one token budget, in order of priority, then arrival.

    A waiting request of higher priority takes the slot or the memory of the lowest-priority running one (the latest
    to arrive among equals) as soon as it arrives; equals never displace each other. Victims are recomputed later, or
    with `preemption_mode: swap` moved to host memory while there is room, and return in their order when they fit.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    preemption_mode: str = "recompute"

    @property
    def traits(self) -> Traits:
        return Traits(order="priority")

    def plan(self, view: View) -> StepPlan:
        quiet = not view.prefilling and not view.waiting
        fits = view.decode_blocks_needed <= view.num_free_blocks and view.num_decoding <= self.max_num_batched_tokens
        if quiet and fits:
            return _DECODE
        draft = _Draft.of(view, self)
        draft.fit_decodes()
        draft.fit_prompts()
        if not draft.preempt:
            draft.admit()
        return draft.plan()


@dataclass(slots=True)
class _Draft:
    """A plan in the making. `free` is what is left of the blocks when everything drafted so far is done."""

    view: View
    policy: Preemptive
    free: int
    free_host: int
    budget: int
    preempt: list[Preemption] = field(default_factory=list)
    resume: list[RequestView] = field(default_factory=list)
    prefill: list[Chunk] = field(default_factory=list)
    paused: list[RequestView] = field(default_factory=list)
    decodes_paid: bool = False  # the budget has been charged for the decodes
    _stays: list[RequestView] | None = None

    @classmethod
    def of(cls, view: View, policy: Preemptive) -> _Draft:
        """An empty draft: everybody who decodes is meant to go on."""
        free = view.num_free_blocks - view.decode_blocks_needed
        return cls(view, policy, free, view.num_free_host_blocks, policy.max_num_batched_tokens)

    @property
    def stays(self) -> list[RequestView]:
        """The running requests that are not to leave, most important first. Sorted when first asked for."""
        if self._stays is None:
            self._stays = sorted(self.view.running, key=rank)
        return self._stays

    def fit_decodes(self) -> None:
        """Everybody who decodes gets a token, unless blocks (the last lose theirs) or budget (they wait) run out."""
        while self.free < 0:
            self._evict(self.stays[-1])
        if self.view.num_decoding > self.budget:
            decoding = [request for request in self.stays if request.is_decoding]
            self.paused = decoding[self.budget :]
            for request in self.paused:
                self.free += self._grows(request)
            self.budget -= len(decoding) - len(self.paused)
        else:
            self.budget -= self.view.num_decoding - sum(p.request.is_decoding for p in self.preempt)
        self.decodes_paid = True

    def fit_prompts(self) -> None:
        """Prompts under way go on, the most important first; one that finds no block displaces the least important."""
        for request in sorted(self.view.prefilling, key=rank):
            tokens = min(request.num_tokens_to_compute, self.budget)
            needed = cdiv(request.num_computed_tokens + tokens, self.view.block_size) - request.num_blocks
            if tokens == 0 or self._leaves(request):
                continue
            while needed > self.free and not self._leaves(request):
                self._evict(self.stays[-1])
            if not self._leaves(request):
                self.prefill.append(Chunk(request, tokens))
                self.free -= needed
                self.budget -= tokens

    def admit(self) -> None:
        """The heads of the queue enter, at the expense of less important ones if need be; nobody is passed over."""
        size = self.view.block_size
        running = len(self.view.running)
        for request in self.view.waiting:
            if self.budget == 0:
                return
            if request.is_swapped:
                needed = cdiv(request.num_computed_tokens + 1, size)  # it decodes at once
            else:
                needed = cdiv(request.num_tokens_to_compute, size)
            if needed > self.free or running >= self.policy.max_num_seqs:
                victims = self._victims(request, needed, self.policy.max_num_seqs - running)
                if not victims:
                    return
                for victim in victims:
                    self._evict(victim)
                running -= len(victims)
            running += 1
            if request.is_swapped:
                self.resume.append(request)
                self.free -= needed
                self.budget -= 1
            else:
                tokens = min(request.num_tokens_to_compute, self.budget)
                self.prefill.append(Chunk(request, tokens))
                self.free -= cdiv(tokens, size)
                self.budget -= tokens

    def plan(self) -> StepPlan:
        changes = self.preempt or self.resume or self.prefill
        return StepPlan(
            preempt=tuple(self.preempt),
            resume=tuple(self.resume),
            prefill=tuple(self.prefill),
            paused=tuple(self.paused),
            holds=Holds.STEP if changes else Holds.ARRIVAL,
        )

    def _victims(self, request: RequestView, needed: int, slots: int) -> list[RequestView]:
        """Who must leave for `request`, the least important first; nobody if all whom it outranks do not suffice."""
        if self._stays is None and not any(other.priority > request.priority for other in self.view.running):
            return []
        victims: list[RequestView] = []
        free = self.free
        for candidate in reversed(self.stays):
            if candidate.priority <= request.priority:
                break
            victims.append(candidate)
            free += self._frees(candidate)
            slots += 1
            if needed <= free and slots > 0:
                return victims
        return []

    def _leaves(self, request: RequestView) -> bool:
        return any(preemption.request is request for preemption in self.preempt)

    def _frees(self, request: RequestView) -> int:
        """Blocks that come free when `request` leaves: its own, and what this step was to give it."""
        chunk = self._chunk(request)
        if chunk is not None:
            return cdiv(request.num_computed_tokens + chunk.num_tokens, self.view.block_size)
        if request.is_decoding and request not in self.paused:
            return request.num_blocks + self._grows(request)
        return request.num_blocks

    def _evict(self, request: RequestView) -> None:
        """`request` leaves: to the host if it may and can, else to be recomputed."""
        self.stays.remove(request)
        self.free += self._frees(request)
        chunk = self._chunk(request)
        if chunk is not None:
            self.prefill.remove(chunk)
            self.budget += chunk.num_tokens
        elif request in self.paused:
            self.paused.remove(request)
        elif request.is_decoding and self.decodes_paid:
            self.budget += 1
        swap = self.policy.preemption_mode == "swap" and request.is_decoding and request.num_blocks <= self.free_host
        if swap:
            self.free_host -= request.num_blocks
        self.preempt.append(Preemption(request, swap))

    def _chunk(self, request: RequestView) -> Chunk | None:
        return next((chunk for chunk in self.prefill if chunk.request is request), None)

    def _grows(self, request: RequestView) -> bool:
        """Whether its next token needs a new block."""
        return request.num_computed_tokens % self.view.block_size == 0


_DECODE = StepPlan(holds=Holds.ARRIVAL)


SYSTEM = System(
    name="priority scheduling with preemption",
    batch="every step",
    prompts="in chunks beside the decodes",
    grant="blocks of the whole sequence",
    order="priority, then arrival",
    victim="the least important, as soon as a more important one lacks a slot or blocks",
    preemption="recompute or swap",
)
