"""Priority scheduling with preemption: a more important request displaces a less important one at once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import ClassVar

from simulator.parameters import check_parameters
from simulator.plan import Holds, StepPlan, Traits, View
from simulator.policies.chunked_prefill.limits import VllmLimits
from simulator.policies.chunked_prefill.schedule import fast_path
from simulator.policies.parts.plans import UNTIL_ARRIVAL, UNTIL_CHANGE, PlanBuilder, displaces_none, last_first
from simulator.policies.parts.preemption import (
    VICTIMS,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    PreemptionMode,
    System,
    Victim,
    swap_pays,
)
from simulator.queues.priority import rank
from simulator.request import RequestView


@dataclass(frozen=True, slots=True)
class Preemptive:
    """Chunked prefill under one token budget, in order of priority, then arrival.

    A waiting request of higher priority takes the slot or the memory of the lowest-priority running one as soon as it
    arrives; equals never displace each other. Of victims of equal priority the latest to arrive leaves first, or the
    one that `victim` names (`simulator.policies.parts.preemption.VICTIMS`). They return in their order when they fit.

    `preemption_mode` says how victims leave: `recompute` throws their KV away, `swap` moves it to the host while that
    has room, `auto` swaps where that pays (`simulator.policies.parts.preemption.swap_pays`). With `pause` a victim
    whose slot is wanted keeps its KV and its place in the batch and pauses, as long as `max_num_seqs` more important
    ones run. A pause frees no memory: where that is short, victims are recomputed, the paused first. A prompt that is
    not computed yet is recomputed in every mode.
    """

    swaps: ClassVar[bool] = True
    preempts: ClassVar[bool] = True

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 2048
    preemption_mode: PreemptionMode = "recompute"
    victim: Victim | None = None
    _limits: VllmLimits = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_parameters(self)
        limits = VllmLimits(self.max_num_batched_tokens, self.max_num_seqs, order="priority")
        object.__setattr__(self, "_limits", limits)
        if self.preemption_mode == "pause" and self.victim not in (None, "lowest_priority"):
            raise ValueError(
                f"preemption_mode pause needs victim lowest_priority, not {self.victim}: "
                "the paused are the least important, and they leave first"
            )

    @property
    def traits(self) -> Traits:
        return Traits(order="importance", displaces=True)

    def plan(self, view: View) -> StepPlan:
        if len(view.running) <= self.max_num_seqs and not view.num_swapped and displaces_none(view):
            plan = fast_path(view, self._limits)  # as `chunked_prefill` plans it
            if plan is not None:
                return UNTIL_ARRIVAL if plan is UNTIL_CHANGE else plan  # an arrival may displace
        builder = PlanBuilder(
            view, self.max_num_batched_tokens, lambda: self._ranked(view), lambda request: self._swaps(view, request)
        )
        over = max(len(view.running) - self.max_num_seqs, -builder.budget)
        if over > 0:
            decoding = [request for request in view.running if request not in view.prefilling]
            for request in sorted(decoding, key=rank)[-over:]:
                builder.pause(request)
        builder.fit_decodes()
        builder.fit_prompts(sorted(view.prefilling, key=rank))
        if not builder.preempted:
            self._admit(builder)
        return builder.plan(Holds.ARRIVAL)

    def _admit(self, builder: PlanBuilder) -> None:
        """Admit heads of the queue, in place of less important requests if need be; no request is passed over."""
        slots = self.max_num_seqs - len(builder.view.running) + len(builder.paused)
        for request in builder.view.waiting:
            if builder.budget == 0 or (slots <= 0 and not _less_important(builder.next_victim(), request)):
                return
            needed = builder.blocks_to_enter(request)
            if needed > builder.free or slots <= 0:
                pauses = self.preemption_mode == "pause"
                victims = builder.victims(_below(builder, request), needed, slots, pauses=pauses)
                if not victims:
                    return
                for victim, only_slot in victims:
                    slots += victim not in builder.paused
                    (builder.pause if only_slot else builder.preempt)(victim)
            builder.enter(request)
            slots -= 1

    def _ranked(self, view: View) -> Iterable[RequestView]:
        """The running requests, the next victim first."""
        if self.victim not in (None, "lowest_priority"):
            return sorted(view.running, key=self._importance)[::-1]  # of equals the latest admitted first
        return last_first(view, rank)

    def _importance(self, request: RequestView) -> tuple[int, ...]:
        """Priority first; the request of the largest key leaves first."""
        return (request.priority, *VICTIMS[self.victim or "last"](request))

    def _swaps(self, view: View, request: RequestView) -> bool:
        if self.preemption_mode != "auto":
            return self.preemption_mode == "swap"
        return swap_pays(view, request, _ahead(view, request))


def _less_important(other: RequestView | None, request: RequestView) -> bool:
    """True if there is an `other` and it has a lower priority than `request`."""
    return other is not None and other.priority > request.priority


def _below(builder: PlanBuilder, request: RequestView) -> Iterable[RequestView]:
    """The running requests of lower priority than `request`, the next victim first."""
    return takewhile(lambda other: _less_important(other, request), builder.remaining())


def _ahead(view: View, request: RequestView) -> Iterator[RequestView]:
    """The waiting requests that return or enter before a victim does."""
    mine = rank(request)
    return takewhile(lambda other: rank(other) < mine, view.waiting)


SYSTEM = System(
    name="priority scheduling with preemption",
    batch="every step",
    prompts="in chunks beside the decodes",
    grant="blocks of the whole sequence",
    order="priority, then arrival",
    victim="the least important (of equals the latest, or `victim`) when a more important one lacks a slot or blocks",
    preemption="recompute, swap, `auto` (whichever is predicted cheaper), or `pause` for want of a slot",
)
STYLE = ("#cc79a7", (0, (6.0, 1.6, 1.2, 1.6)))
