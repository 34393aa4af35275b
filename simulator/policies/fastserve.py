"""FastServe: preemption at every iteration by a skip-join multi-level feedback queue, in favour of short answers.

B. Wu et al., Fast Distributed Inference Serving for Large Language Models (arXiv 2305.05920, sections 4.1 and 4.3),
and the authors' `MLFQ` in fastserve/scheduler.py of LLMServe/FastServe, whose STARVE_LIMIT of 3 s is the default.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import ClassVar

from simulator.parameters import check_parameters
from simulator.plan import StepPlan, Traits, View
from simulator.policies.parts.plans import UNTIL_ARRIVAL, PlanBuilder, last_first
from simulator.policies.parts.preemption import MaxNumBatchedTokens, MaxNumSeqs, System
from simulator.queues import Order
from simulator.queues.decoding_order import Quanta
from simulator.queues.mlfq import MinQuantum, PromptQuantum, StarveLimit
from simulator.request import RequestView


@dataclass(frozen=True, slots=True)
class Fastserve:
    """The least served requests run: answer lengths are unknown, and long answers show themselves in service.

    Requests have levels: see `simulator.queues.mlfq`. At every iteration a waiting request of a higher level takes
    the place or the memory of running ones of lower levels, the lowest first (the latest to arrive of equals); equals
    never displace each other. A victim's KV moves to the host at once, ahead of any lack of memory, and comes back
    with it; where the host has no room, or the prompt is not computed yet, it is computed again.

    Prompts are computed whole beside the decodes, as many as `max_num_batched_tokens` allows; only one that does not
    fit what is left of a step takes several. No request passes one that finds no room.
    """

    swaps: ClassVar[bool] = True

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 2048
    min_quantum_tokens: MinQuantum = 1
    prompt_tokens_per_quantum: PromptQuantum = 256
    starve_limit_s: StarveLimit = 3.0

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def traits(self) -> Traits:
        quanta = {key: getattr(self, key) for key in ("min_quantum_tokens", "prompt_tokens_per_quantum")}
        return Traits(order=Order("mlfq", **quanta, starve_limit_s=self.starve_limit_s), displaces=True)

    def plan(self, view: View) -> StepPlan:
        short = view.decode_blocks_needed > view.num_free_blocks
        if not (view.waiting or view.prefilling or short):
            return UNTIL_ARRIVAL
        level = Quanta(self.min_quantum_tokens, self.prompt_tokens_per_quantum).level
        builder = PlanBuilder(
            view,
            self.max_num_batched_tokens,
            lambda: last_first(view, lambda request: (level(request), request.row)),
            lambda request: True,
        )
        builder.fit_decodes()
        builder.fit_prompts(view.prefilling)
        if not builder.preempted:
            self._admit(builder, level)
        return builder.plan()

    def _admit(self, builder: PlanBuilder, level: Callable[[RequestView], int]) -> None:
        """Admit heads of the queue, in place of lower levels if need be."""
        slots = min(self.max_num_seqs, self.max_num_batched_tokens)  # a decode step takes a token a slot
        slots -= len(builder.view.running)
        for request in builder.view.waiting:
            mine = level(request)
            needed = builder.blocks_to_enter(request)
            victims: list[tuple[RequestView, bool]] = []
            if slots <= 0 or needed > builder.free:
                victims = builder.victims(_below(builder, mine, level), needed, slots)
                if not victims:
                    return
            budget = builder.budget + sum([builder.tokens_freed(victim) for victim, _ in victims])
            tokens = 1 if request.is_swapped else request.num_tokens_to_compute
            if budget == 0 or (tokens > budget and builder.prefill):
                return
            for victim, _ in victims:
                builder.preempt(victim)
            slots += len(victims) - 1
            builder.enter(request)


def _below(builder: PlanBuilder, mine: int, level: Callable[[RequestView], int]) -> Iterable[RequestView]:
    """The running requests below level `mine`, the next victim first."""
    return takewhile(lambda other: level(other) > mine, builder.remaining())


SYSTEM = System(
    name="FastServe (skip-join MLFQ)",
    batch="every step, preemptive",
    prompts="in chunks beside the decodes",
    grant="blocks of the whole sequence",
    order="levels by tokens served, a long prompt joining lower",
    victim="the lowest level",
    preemption="swap; recompute when the host is full",
)
