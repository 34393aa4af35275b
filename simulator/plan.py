"""What a policy is asked, and what it answers.

A batch persists: most of it stays as it is from one step to the next. So a `StepPlan` is a change to it: who leaves
and how, who comes back, whose prompt is computed and how much of it, and whether the others decode. Plans and their
parts are named tuples: values that are cheap to make.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from simulator.request import RequestView


class Holds(Enum):
    """How long a plan that changes nothing stays the policy's answer, as far as the policy knows.

    It always ends when a request finishes or when the next step would lack a block.
    """

    STEP = "step"  # ask again for the next step
    ARRIVAL = "arrival"  # until somebody arrives
    CHANGE = "change"  # arrivals cannot alter it


class Chunk(NamedTuple):
    """`num_tokens` of a request's prompt (after a recomputation: of prompt and output) to compute in this step.

    Naming a waiting request admits it, with 0 tokens too: slot and memory now, its prompt later. Two grants come with
    admission only. `reserve_tokens` is KV room that must cover padding, prompt and `max_tokens`; without it a request
    owns just the blocks of the tokens it has. `padding_tokens` are put before the prompt and computed like it; they
    need a reservation.
    """

    request: RequestView
    num_tokens: int
    reserve_tokens: int = 0
    padding_tokens: int = 0


class Preemption(NamedTuple):
    """A request that leaves the batch: its KV thrown away, or moved to the host.

    `scheduled_tokens` is what the step had given it before it became a victim: a prefix cache keeps their full blocks.
    """

    request: RequestView
    swap: bool = False
    scheduled_tokens: int = 0


class StepPlan(NamedTuple):
    """One step: changes to the batch in the order of the fields, then what is computed.

    `preempt` and `resume` (swapped requests that come back) free and take blocks before anything else does. With
    `decode`, every decoding request that is not in `paused` computes one token. A plan that computes nothing lets
    the engine rest until somebody arrives, or until `wait_until_s`.

    With `more`, the policy is asked again for the same step when this much is done (`View.step_tokens` then says how
    many tokens the step has): what a prefix cache holds depends on what was just scheduled. Later instalments may
    only admit; the last one's `holds` counts.

    What a policy has to remember it writes into the `note` of each plan, and finds it in the next view. The note must
    not depend on how often the policy is asked while its plan holds.
    """

    preempt: tuple[Preemption, ...] = ()
    resume: tuple[RequestView, ...] = ()
    prefill: tuple[Chunk, ...] = ()
    decode: bool = True
    paused: tuple[RequestView, ...] = ()
    holds: Holds = Holds.STEP
    wait_until_s: float | None = None
    more: bool = False
    note: object = None


class WaitingView(Protocol):
    """The waiting requests in the queue's order. Iteration is lazy: looking at the head costs the head."""

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
    """What a policy sees when it plans a step. Looking changes nothing."""

    @property
    def now_s(self) -> float: ...

    @property
    def waiting(self) -> WaitingView: ...

    @property
    def running(self) -> BatchView:
        """Requests in the batch that have not finished."""

    @property
    def prefilling(self) -> BatchView:
        """Of these, those whose prompt is not computed yet."""

    @property
    def num_decoding(self) -> int:
        """Of these, those that decode."""

    @property
    def num_held(self) -> int:
        """Finished requests that keep their slot (`Traits.keeps_finished`)."""

    @property
    def note(self) -> object:
        """What the plan before left as its `StepPlan.note`; None at first."""

    @property
    def decode_steps(self) -> int:
        """Steps with decodes up to now."""

    @property
    def decode_steps_since_admission(self) -> int:
        """Steps with decodes since the step in which somebody last entered the batch, that step not counted."""

    @property
    def num_swapped(self) -> int:
        """Requests among the waiting whose KV lies in host memory."""

    @property
    def num_free_blocks(self) -> int: ...

    @property
    def num_blocks(self) -> int:
        """Usable blocks of the device."""

    @property
    def num_free_host_blocks(self) -> int: ...

    @property
    def block_size(self) -> int:
        """Tokens in a block."""

    @property
    def step_tokens(self) -> int | None:
        """Tokens that the step computes already, when the rest of its plan is asked for (`StepPlan.more`)."""

    @property
    def caches_prefixes(self) -> bool: ...

    def blocks_freed(self, requests: Sequence[RequestView]) -> int:
        """Device blocks that come free when all of these running requests leave: others may share some of theirs."""

    def recompute_s(self, request: RequestView, *, mixed: bool = True) -> float | None:
        """Predicted seconds that computing its prompt and its answer so far adds to a step of those who decode now.

        Without `mixed`, the seconds of a step of its own. None where nothing predicts: on a device, in a recorded run.
        """

    def swap_s(self, request: RequestView) -> float | None:
        """Predicted seconds that moving the blocks of a running request out and in adds to two such steps, or None."""

    def prefix_hits(self, request: RequestView) -> tuple[int, int]:
        """Leading blocks of a waiting request that are cached, and how many of these count as free now."""

    @property
    def decode_blocks_needed(self) -> int:
        """Blocks that one token more for every decoding request takes, nobody paused."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What the engine has to know of a policy beyond its plans."""

    order: str = "fcfs"  # of the waiting queue: a name of simulator.queues
    keeps_finished: bool = False  # finished requests keep slot and KV until the whole batch has finished
    streams: bool = True  # tokens reach the client one by one; otherwise all at once when the slot is released
    victims_last: bool = False  # who is preempted queues as if it had just arrived, and not where the order puts it
    async_scheduling: bool = False  # a step is planned while the one before it runs, whose results are not known yet
    unknown_blocks_first: bool = True  # of free blocks, those that no prefix cache knows are taken before the oldest


class Policy(Protocol):
    """A batching policy: parameters are the fields of a dataclass, decisions come from `plan` alone.

    `plan` is pure: the same view gives the same plan, and nothing changes. Two members are optional: `traits`, a
    `Traits` (its defaults where absent), and `refuses(request, num_blocks, block_size) -> str | None`, the reason
    why a request can never be served with so much memory. A policy whose admissions reckon with `View.prefix_hits`
    says so by a class variable `caches_prefixes = True`; only such a policy may have a prefix cache. One that may
    swap says so by `swaps = True`.
    """

    @property
    def max_num_seqs(self) -> int:
        """Slots of the batch."""

    def plan(self, view: View) -> StepPlan: ...


def cdiv(a: int, b: int) -> int:
    """Ceiling of a / b, for integers."""
    return -(-a // b)
