"""Prefill and decode apart: what a decoding server asks of requests that another has prefilled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple, Protocol

from simulator.request import Request, RequestView


class TakesOver(NamedTuple):
    """How a server decodes requests that another has prefilled.

    `reserves`: a request takes memory for all of its `max_tokens` at once. `reserved_tokens` of memory are left for
    each request that is here or on its way, and found free for the next. At most `max_num_seqs` and `extra_slots` are
    here or on their way; None: any number. `sends_first`: a request's first token is sent from here, as it begins to
    decode. `room_first`, which needs that: its prompt is computed elsewhere once there is room for it here.
    """

    reserves: bool = False
    reserved_tokens: int = 0
    extra_slots: int | None = None
    sends_first: bool = False
    room_first: bool = False


@dataclass(frozen=True, slots=True)
class Traits:
    """What a policy is, beside its plans, as it is configured. The engine, diagnosis and plans of fleets ask it.

    The `ABILITIES` are the same however it is configured: its class has each as a class variable, so that they are
    known before there is a policy.
    """

    order: str = "fcfs"  # of the waiting queue: a name of simulator.queues
    keeps_finished: bool = False  # finished requests keep slot and KV until the whole batch has finished
    streams: bool = True  # tokens reach the client one by one; otherwise all at once when the slot is released
    victims_last: bool = False  # a preempted request queues as if it had just arrived, wherever the order puts it
    async_scheduling: bool = False  # a step is planned while the previous one runs, before its results are known
    overlap_scheduling: bool = False  # the asynchronous scheduling is SGLang's: `simulator.engine.late_results`
    ranks_when_tried: bool = False  # the queue keeps its order but where a plan says `tried`, as in SGLang
    unknown_blocks_first: bool = True  # free blocks unknown to the prefix cache are taken before the oldest cached
    takes_whole_prompt: bool = False  # a request takes the blocks of its whole prompt as it enters
    asks_below_blocks: int = 0  # no plan holds for a further step that would leave fewer blocks free
    skips_empty_steps: bool = False  # a step that computes nothing takes no time: the next is planned at once
    frees_late: int = 0  # so many further steps are planned before the blocks of a finished request come free
    encodes_images: bool = False  # its notes say what the encoder computes (`EncoderNote`)
    max_loras: int | None = None  # adapters that the batch may use at once; None: none is known
    takes_over: TakesOver | None = None  # None: by the rules of vLLM's connectors, if it `preempts`
    slots_by_step: bool = False  # running requests that compute nothing in a step hold no slot in it
    whole_prompts: bool = False  # prompts are not cut into chunks that fit into a step beside the decodes
    pauses_decodes: bool = False  # prompts are computed in steps of their own, for which running requests wait
    reserves: bool = False  # a request takes memory for all of its `max_tokens` as it enters
    prefill_schedule_interval: int = 1  # of ranks in lockstep, one common step of so many may compute prompts
    dp_sync_interval: int | None = None  # such ranks look so often whether any has work; None: after every step
    displaces: bool = False  # a more important waiting request takes the place of a running one

    caches_prefixes: bool = False  # its admissions reckon with `View.prefix_hits`: it may have a prefix cache
    has_radix_tree: bool = False  # that cache is SGLang's
    swaps: bool = False  # it may move KV to the host
    preempts: bool = False  # it makes room where decodes lack blocks, so it may decode what others have prefilled
    verifies_drafts: bool = False  # it plans with drafts where there are any (`View.drafting`)
    takes_ahead: bool = False  # as SGLang: it names no draft, and its requests own memory ahead of their tokens
    fills_pipelines: bool = False  # it plans a step while others are in flight, each request that computes in a `Chunk`
    asks_groups: bool = False  # it asks `View.groups` for blocks
    is_server: bool = False  # keys that a scenario leaves out are as its server starts without them

    @classmethod
    def of(cls, policy: object) -> Traits:
        """Those of a policy, or of a class of policies, of which the abilities alone are known."""
        given = cls() if isinstance(policy, type) else getattr(policy, "traits", cls())
        return replace(given, **{name: True for name in ABILITIES if getattr(policy, name, False)})


ABILITIES = (
    "caches_prefixes", "has_radix_tree", "swaps", "preempts", "verifies_drafts", "takes_ahead", "fills_pipelines",
    "asks_groups", "is_server",
)  # fmt: skip


class Companion(Protocol):
    """A scheduler outside that keeps requests of its own, and from which a policy takes its plans.

    It is told what a server's engine core would be, tokens included, before the next plan; no policy sees them. A
    policy with a companion is asked once for each step.
    """

    def arrived(self, request: Request, view: RequestView) -> None:
        """A request has entered the queue; `view` is what plans name."""

    def ended(self, row: int, *, aborted: bool) -> None:
        """A request has left the replica: its answer is whole, or its client has given up."""


Refusal = Callable[[RequestView, int, int], str | None]
Cap = Callable[[RequestView, int, int], int]


@dataclass(frozen=True, slots=True)
class OptionalMembers:
    """Members that a policy may have, and the defaults of those that it leaves out.

    `refuses(request, num_blocks, block_size)` gives the reason why a request can never be served with so much memory,
    or None. `caps(request, num_blocks, block_size)` gives the `max_tokens` that the server allows it; it has no say
    where that is less than 1. `max_num_batched_tokens` bounds the tokens of a step; infinity is no bound. `companion`
    is told of arrivals and ends.
    """

    traits: Traits
    refuses: Refusal | None
    caps: Cap | None
    max_num_batched_tokens: float
    companion: Companion | None = None

    @classmethod
    def of(cls, policy: object) -> OptionalMembers:
        budget = getattr(policy, "max_num_batched_tokens", None)
        return cls(
            traits=Traits.of(policy),
            refuses=getattr(policy, "refuses", None),
            caps=getattr(policy, "caps", None),
            max_num_batched_tokens=budget if isinstance(budget, int) else inf,
            companion=getattr(policy, "companion", None),
        )
