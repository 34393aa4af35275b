"""The policy's contract: what a policy sees (`View`) and what it plans (`StepPlan`).

A policy of your own has `max_num_seqs` and `plan(view)`, and names some of seven fields of a `StepPlan`: `preempt`,
`resume`, `prefill`, `decode`, `paused`, `holds`, `wait_until_s`. What else it may say of itself stands in
`simulator.policy_traits`.

A batch persists: most of it stays as it is from one step to the next. So a `StepPlan` is a change to the batch:
requests that leave it and how, requests that return, prompt chunks to compute, and whether the others decode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from simulator.division import cdiv as cdiv  # users' policies import it from here too
from simulator.policy_traits import Traits as Traits
from simulator.request import RequestView
from simulator.speculative import Drafting


class Holds(Enum):
    """How long a plan that changes nothing remains the policy's answer.

    It always ends when a request finishes, when the next step would lack a block, or when a decode fills a block that
    the head of the queue would find in the prefix cache.
    """

    STEP = "step"  # for this step alone
    ARRIVAL = "arrival"  # until a request arrives
    CHANGE = "change"  # arrivals do not alter it


class Chunk(NamedTuple):
    """`num_tokens` of a request's prompt (after a preemption: of prompt and output) to compute in this step.

    A chunk of a waiting request admits it; one of 0 tokens gives it slot and memory now, and its prompt later. Two
    grants are made at admission only. `reserve_tokens` is KV room that must cover padding, prompt and `max_tokens` but
    for the last, whose KV is never computed; without it a request owns the blocks of the tokens that it has.
    `padding_tokens` precede the prompt and are computed like it; they need a reservation.
    """

    request: RequestView
    num_tokens: int
    reserve_tokens: int = 0
    padding_tokens: int = 0


class Preemption(NamedTuple):
    """A request that leaves the batch, its KV thrown away or moved to the host.

    `scheduled_tokens`: the step gave it these before it became a victim. A prefix cache keeps their full blocks.
    """

    request: RequestView
    swap: bool = False
    scheduled_tokens: int = 0


class StepPlan(NamedTuple):
    """One step, by the names of its fields: changes to the batch in this order, then what is computed.

    `preempt` and `resume` (swapped requests that return) free and take blocks before anything else does. `prefill` are
    the prompt chunks, also of requests that enter. With `decode`, every decoding request that is not in `paused`
    computes one token. `holds` says how long the answer stands if nothing changes. A plan that computes nothing lets
    the engine rest until the next arrival, or until `wait_until_s`.

    The other fields say what the schedulers of real servers do beside it:

    With `more`, the policy is asked again for the same step when this part has been applied (`View.step_tokens` then
    counts the step's tokens so far): what a prefix cache holds depends on what was just scheduled. Later parts may
    only admit requests; `holds` of the last part counts.

    The next view shows the `note` of a plan. It must not depend on how often the policy is asked while a plan holds.

    `tried` are the waiting requests whose prefixes were looked up for this plan, in order, or None where the queue was
    not looked at: SGLang's radix tree and its queue orders change by being looked at (`Traits.ranks_when_tried`).
    `to_end` are running requests that move to the end of the batch, in this order, behind those that are admitted.
    `withheld`: the decodes were to be computed and lack memory, for which a radix tree has evicted all it could.

    `requeue` reorders the queue when all else is done, for systems that do so while they schedule: these waiting
    requests, this step's victims included, go to the front in this order; a queue that sorts only when told
    (`simulator.queues.in_turn`) sorts the others. Only that and an fcfs queue let themselves be reordered. Such a plan
    holds for one step; of a plan in parts, the last part's counts.

    `hold_steps`, at least 1, are the most steps that a plan holds for, where it is the answer for so long only.
    """

    preempt: tuple[Preemption, ...] = ()
    resume: tuple[RequestView, ...] = ()
    prefill: tuple[Chunk, ...] = ()
    decode: bool = True
    paused: tuple[RequestView, ...] = ()
    holds: Holds = Holds.STEP
    wait_until_s: float | None = None
    # Beside it, for the schedulers of real servers:
    more: bool = False
    note: object = None
    tried: tuple[RequestView, ...] | None = None
    to_end: tuple[RequestView, ...] = ()
    withheld: bool = False
    requeue: tuple[RequestView, ...] | None = None
    hold_steps: int | None = None


class WaitingView(Protocol):
    """The waiting requests in the queue's order. Iteration is lazy: the head alone is cheap."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[RequestView]: ...

    @property
    def head(self) -> RequestView: ...


class BatchView(Protocol):
    """Requests of the batch, in order of admission."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[RequestView]: ...

    def __reversed__(self) -> Iterator[RequestView]: ...

    def __contains__(self, request: object) -> bool: ...


class View(Protocol):
    """A policy's view of the replica when it plans a step: its requests and its memory. Reading it changes nothing.

    What stands behind `prefix_hits` is for policies of real servers.
    """

    @property
    def now_s(self) -> float: ...

    @property
    def waiting(self) -> WaitingView: ...

    @property
    def running(self) -> BatchView:
        """Requests in the batch that have not finished."""

    @property
    def prefilling(self) -> BatchView:
        """Running requests whose prompt is not computed yet."""

    @property
    def num_decoding(self) -> int:
        """Running requests that decode."""

    @property
    def num_swapped(self) -> int:
        """Waiting requests whose KV lies in host memory."""

    @property
    def block_size(self) -> int:
        """Tokens in a block."""

    @property
    def num_blocks(self) -> int:
        """Usable blocks of the device."""

    @property
    def num_free_blocks(self) -> int: ...

    @property
    def num_free_host_blocks(self) -> int: ...

    @property
    def decode_blocks_needed(self) -> int:
        """Blocks that one more token for every decoding request takes, paused requests included."""

    def blocks_freed(self, requests: Sequence[RequestView]) -> int:
        """Device blocks that come free when all of these running requests leave; shared ones may not."""

    def block_takers(self) -> Sequence[RequestView]:
        """The decoding requests whose next token takes a block, in order of admission."""

    @property
    def caches_prefixes(self) -> bool: ...

    def prefix_hits(self, request: RequestView) -> tuple[int, int]:
        """Leading blocks of a waiting request that are cached, and how many of them count as free now."""

    # For policies of real servers: their notes, counts of steps, and parts.

    @property
    def running_loras(self) -> Mapping[str, int]:
        """Running requests by adapter, for a policy that has `Traits.max_loras`."""

    @property
    def note(self) -> object:
        """`StepPlan.note` of the previous plan; None at first."""

    @property
    def decode_steps(self) -> int:
        """Steps with decodes so far."""

    @property
    def decode_steps_since_admission(self) -> int:
        """Steps with decodes since the step of the last admission, that step not counted."""

    @property
    def executed_steps(self) -> int:
        """Steps so far that computed tokens."""

    @property
    def prefills_throttled(self) -> bool | None:
        """Whether ranks in lockstep hold prompts back in this step, by their common count; None for a rank alone."""

    @property
    def late_blocks(self) -> tuple[int, ...]:
        """Blocks of finished requests that come free with the next plan, the one after, ... (`Traits.frees_late`)."""

    @property
    def step_tokens(self) -> int | None:
        """Tokens planned so far, when a further part of the step's plan is asked for (`StepPlan.more`); else None."""

    @property
    def drafting(self) -> Drafting | None:
        """Speculative decoding, or None. The plan has a `Chunk` for each request that computes, decodes too, unless
        the policy `takes_ahead`."""

    @property
    def groups(self) -> KVGroups | None:
        """KV memory of several groups, whose blocks are asked for there; None for memory of one kind."""

    def decoding_last_first(self) -> Iterator[RequestView] | None:
        """The decoding requests in the order of the queue, the last first, or None.

        Only a queue whose policy displaces running requests keeps it, without the paused: None where some are.
        """

    def recompute_s(self, request: RequestView, *, mixed: bool = True) -> float | None:
        """Predicted seconds that computing its prompt and its answer so far adds to a step of the present decodes.

        Without `mixed`, the seconds of a step of its own. None without a prediction: on a device, in a recorded run.
        """

    def swap_s(self, request: RequestView) -> float | None:
        """Predicted seconds that moving the blocks of a running request out and in adds to two such steps, or None."""

    def prefix_matches(self) -> PrefixMatches:
        """`prefix_hits` for several requests that one plan admits."""

    def known_outputs(self, request: RequestView) -> int:
        """`output_tokens_so_far` without the token that the running step computes (`Traits.async_scheduling`)."""


class Policy(Protocol):
    """A batching policy: parameters are the fields of a dataclass, decisions come from `plan` alone.

    `plan` is pure: the same view gives the same plan, and nothing changes. The members of `OptionalMembers` and the
    class variables that `Traits` names (`simulator.policy_traits`) may be left out. A policy with a parameter
    `max_num_batched_tokens` is held to it: a step that computes more tokens, padding included, is an error.
    """

    @property
    def max_num_seqs(self) -> int:
        """Slots of the batch."""

    def plan(self, view: View) -> StepPlan: ...


# What policies of real servers ask beside it: prefixes of several requests at once, and memory of several KV groups.


class PrefixMatches(NamedTuple):
    """Prefixes in a radix tree, of waiting requests that one plan looks up; nothing is changed by it.

    `look(request)` gives its leading cached blocks, and how many of them neither a running request nor a kept one
    uses. `keep(request)`: the plan admits it.
    """

    look: Callable[[RequestView], tuple[int, int]]
    keep: Callable[[RequestView], None]


class StateRules(NamedTuple):
    """Where chunks of prompts end for the sake of states that a memory keeps.

    They end at multiples of `stop_size`. Hits end at multiples of `unit`, with `has_tails` inside blocks. A kernel that
    can save a state inside a chunk does it at multiples of `alignment` behind its start; None: none can.
    """

    stop_size: int
    unit: int
    hash_size: int
    has_tails: bool
    alignment: int | None


class GroupsTrial(Protocol):
    """Blocks as they would be after running requests had taken and left some; nothing is changed by it."""

    def take(self, request: RequestView, num_tokens: int) -> bool:
        """Take the blocks of a running request's next tokens, if there are so many; returns whether there are."""

    def leave(self, request: RequestView) -> None:
        """Free all blocks of a running request."""


class KVGroups(Protocol):
    """KV memory of several groups of layers, which keep different things of a request."""

    @property
    def states(self) -> StateRules | None:
        """None where no state is kept for other requests."""

    def hit(self, request: RequestView) -> tuple[int, int]:
        """Cached leading tokens of a waiting request, and its junction: the longest prefix that some group has."""

    def junction(self, request: RequestView) -> int:
        """The junction of a running request, as it was admitted; 0 for none."""

    def blocks_needed(self, request: RequestView, num_tokens: int, loaded: int = 0, *, whole: bool = False) -> int:
        """Free blocks that a request which does not run takes with so many tokens; `whole`: for all of it.

        They lie behind what it holds, or behind its hit and the `loaded` tokens which a connector has.
        """

    def blocks_lacking(self, request: RequestView) -> int:
        """Blocks that a request which holds some lacks to be whole, at most."""

    def trial(self) -> GroupsTrial: ...

    def quiet_steps(self) -> int:
        """Decode steps, from this one on, before another may take or free blocks."""
