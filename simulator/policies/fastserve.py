"""FastServe: preemption at every iteration by a skip-join multi-level feedback queue, for short answers' sake.

B. Wu et al., Fast Distributed Inference Serving for Large Language Models (arXiv 2305.05920, sections 4.1 and 4.3),
and the authors' `MLFQ` in fastserve/scheduler.py of LLMServe/FastServe, whose STARVE_LIMIT of 3 s is the default.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.plan import Chunk, Holds, Preemption, StepPlan, Traits, View, cdiv
from simulator.queues import Order
from simulator.queues.mlfq import Mlfq, level
from simulator.request import RequestView
from simulator.system import System


@dataclass(frozen=True, slots=True)
class Fastserve:
    """Who was served least runs; nobody's answer length is known, so long ones are found out by being served.

    Requests have levels: see `simulator.queues.mlfq`. At every iteration a waiting request of a higher level takes
    the place or the memory of running ones of lower levels, the lowest first (the latest to arrive of equals); equals
    never displace each other. A victim's KV moves to the host at once, ahead of any lack of memory, and comes back
    with it; where the host has no room, or the prompt is not computed yet, it is computed again.

    Prompts are computed whole beside the decodes, as many as `max_num_batched_tokens` allows; only one that does not
    fit what is left of a step takes several. Who finds no room is passed by nobody.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    min_quantum_tokens: int = 1
    prompt_tokens_per_quantum: int = 256
    starve_limit_s: float = 3.0

    def __post_init__(self) -> None:
        Mlfq(self.min_quantum_tokens, self.prompt_tokens_per_quantum, self.starve_limit_s)  # checks them

    @property
    def traits(self) -> Traits:
        quanta = {key: getattr(self, key) for key in ("min_quantum_tokens", "prompt_tokens_per_quantum")}
        return Traits(order=Order("mlfq", **quanta, starve_limit_s=self.starve_limit_s))

    def level(self, request: RequestView) -> int:
        """0 is the highest."""
        return level(request, self.min_quantum_tokens, self.prompt_tokens_per_quantum)

    def plan(self, view: View) -> StepPlan:
        short = view.decode_blocks_needed > view.num_free_blocks
        if not (view.waiting or view.prefilling or short):
            return _UNTIL_ARRIVAL
        draft = _Draft(view, self)
        draft.fit_decodes()
        draft.fit_prompts()
        if not draft.preempt:
            draft.admit()
        return StepPlan(tuple(draft.preempt), tuple(draft.resume), tuple(draft.prefill.values()))


class _Draft:
    """A plan in the making. `free` and `budget` are what is left when everything drafted so far is done."""

    def __init__(self, view: View, policy: Fastserve) -> None:
        self.view = view
        self.policy = policy
        self.free = view.num_free_blocks - view.decode_blocks_needed
        self.free_host = view.num_free_host_blocks
        self.budget = policy.max_num_batched_tokens - view.num_decoding
        self.preempt: list[Preemption] = []
        self.resume: list[RequestView] = []
        self.prefill: dict[RequestView, Chunk] = {}
        self._ranked: list[tuple[int, int, RequestView]] | None = None

    @property
    def ranked(self) -> list[tuple[int, int, RequestView]]:
        """Those who run with level and row, the first to leave at the end. Sorted when first asked for."""
        if self._ranked is None:
            level_of = self.policy.level
            self._ranked = sorted([(level_of(request), request.row, request) for request in self.view.running])
        return self._ranked

    def fit_decodes(self) -> None:
        """The lowest leave until the others can decode."""
        while self.free < 0:
            self._evict()

    def fit_prompts(self) -> None:
        """Prompts under way go on, in order of admission; where one finds no block the lowest leaves."""
        for request in self.view.prefilling:
            tokens = min(request.num_tokens_to_compute, self.budget)
            needed = cdiv(request.num_computed_tokens + tokens, self.view.block_size) - request.num_blocks
            gone = any(preemption.request is request for preemption in self.preempt)
            while needed > self.free and not gone:
                gone = self._evict() is request
            if tokens and not gone:
                self.prefill[request] = Chunk(request, tokens)
                self.free -= needed
                self.budget -= tokens

    def admit(self) -> None:
        """The heads of the queue enter, at the expense of lower levels if need be."""
        slots = min(self.policy.max_num_seqs, self.policy.max_num_batched_tokens)  # a decode step takes a token a slot
        slots -= len(self.view.running)
        size = self.view.block_size
        for request in self.view.waiting:
            swapped = request.is_swapped
            tokens = 1 if swapped else request.num_tokens_to_compute
            needed = cdiv(request.num_computed_tokens + tokens, size)
            victims, budget = 0, self.budget
            if slots <= 0 or needed > self.free:
                found = self._victims(self.policy.level(request), needed, slots)
                if found is None:
                    return
                victims, budget = found
            if budget == 0 or (tokens > budget and self.prefill):
                return
            for _ in range(victims):
                self._evict()
            slots += victims - 1
            tokens = min(tokens, self.budget)
            self.free -= needed if swapped else cdiv(tokens, size)
            self.budget -= tokens
            if swapped:
                self.resume.append(request)
            else:
                self.prefill[request] = Chunk(request, tokens)

    def _victims(self, above: int, needed: int, slots: int) -> tuple[int, int] | None:
        """How many of the lowest must leave for a request of level `above`, and the budget then; None if it waits."""
        free, budget = self.free, self.budget
        for count, (lowest, _, request) in enumerate(reversed(self.ranked), start=1):
            if lowest <= above:
                return None
            free += self._frees(request)
            budget += self.prefill[request].num_tokens if request in self.prefill else request.is_decoding
            slots += 1
            if needed <= free and slots > 0:
                return count, budget
        return None

    def _frees(self, request: RequestView) -> int:
        """Blocks that come free when `request` leaves: its own, and what this step was to give it."""
        size = self.view.block_size
        if request in self.prefill:
            return cdiv(request.num_computed_tokens + self.prefill[request].num_tokens, size)
        return request.num_blocks + (request.is_decoding and request.num_computed_tokens % size == 0)

    def _evict(self) -> RequestView:
        """The lowest leaves: to the host if it may and can, else to be computed again."""
        _, _, request = self.ranked.pop()
        self.free += self._frees(request)
        chunk = self.prefill.pop(request, None)
        self.budget += request.is_decoding if chunk is None else chunk.num_tokens
        swap = request.is_decoding and request.num_blocks <= self.free_host
        if swap:
            self.free_host -= request.num_blocks
        self.preempt.append(Preemption(request, swap))
        return request


_UNTIL_ARRIVAL = StepPlan(holds=Holds.ARRIVAL)


SYSTEM = System(
    name="FastServe (skip-join MLFQ)",
    batch="every step, preemptive",
    prompts="in chunks beside the decodes",
    grant="blocks of the whole sequence",
    order="levels by tokens served, a long prompt joining lower",
    victim="the lowest level",
    preemption="swap; recompute when the host is full",
)
