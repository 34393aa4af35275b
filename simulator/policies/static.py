"""Static batching: a batch runs until its longest request has finished; only then does the next one form."""

from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Final

from annotated_types import doc

from simulator.division import cdiv
from simulator.parameters import Seconds, check_parameters
from simulator.plan import Chunk, StepPlan, Traits, View
from simulator.policies.parts.free_blocks import refuse_reservation
from simulator.policies.parts.plans import UNTIL_CHANGE, chunk_of, step_plan
from simulator.policies.parts.preemption import MaxNumBatchedTokens, MaxNumSeqs, System
from simulator.request import RequestView


@dataclass(frozen=True, slots=True)
class Static:
    """Request-level scheduling as in a naive `generate` loop.

    A batch of up to `max_num_seqs` forms when it is full (of slots or of memory), or `batch_timeout_s` after its
    oldest request arrived. Prompts are padded to the longest; every request reserves KV for the longest prompt and
    the largest `max_tokens` of the batch; a finished request keeps its slot and computes on. With `stream: false` the
    answers come back together when the batch ends. Prompts are computed in steps of at most
    `max_num_batched_tokens`.

    The default timeout is TorchServe's default `maxBatchDelay`, 100 ms.
    """

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 2048
    batch_timeout_s: Annotated[
        Seconds, doc("wait of the oldest request after which a batch starts that is not full")
    ] = 0.1
    stream: Annotated[bool, doc("tokens reach the client one by one; false: all at the end of the batch")] = True

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def traits(self) -> Traits:
        return Traits(keeps_finished=True, streams=self.stream, whole_prompts=True, reserves=True)

    def refuses(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        return refuse_reservation(request, num_blocks, block_size)

    def plan(self, view: View) -> StepPlan:
        slots = min(self.max_num_seqs, self.max_num_batched_tokens)  # a decode step computes a token a slot
        return step(view, slots, self.max_num_batched_tokens, self.batch_timeout_s)


SYSTEM = System(
    name="naive `generate` loops, FasterTransformer",
    batch="when the whole batch has finished",
    prompts="whole, padded to the longest",
    grant="longest prompt + largest `max_tokens` of the batch, for every request",
    order="as they came",
    victim="none",
    preemption="never",
    padding="prompts to the longest; finished requests compute on",
)
STYLE = ("#d55e00", (0, (1.2, 1.3)))


# The plan of a step.

_REST: Final = StepPlan()


def step(view: View, slots: int, max_tokens: int, timeout_s: float) -> StepPlan:
    """The plan of a step of at most `max_tokens`; a batch starts when it is full, or `timeout_s` after it was begun."""
    if view.prefilling:
        return step_plan(prefill=tuple(_continued(view, max_tokens)), decode=False)
    if len(view.running):
        return UNTIL_CHANGE
    if not view.waiting:
        return _REST
    batch, full = _formed(view, slots)
    deadline_s = view.waiting.head.arrival_s + timeout_s
    if not full and view.now_s < deadline_s:
        return StepPlan(wait_until_s=deadline_s)
    return step_plan(prefill=tuple(_begun(batch, max_tokens)), decode=False)


def _formed(view: View, slots: int) -> tuple[list[RequestView], bool]:
    """The heads of the queue that one batch can hold, and whether it is then full."""
    size, num_blocks = view.block_size, view.num_blocks
    batch: list[RequestView] = []
    longest = most_output = 0
    for request in islice(view.waiting, slots):
        longest = max(longest, request.input_tokens)
        most_output = max(most_output, request.max_tokens)
        if (len(batch) + 1) * cdiv(longest + most_output, size) > num_blocks:
            return batch, True
        batch.append(request)
    return batch, len(batch) == slots


def _begun(batch: list[RequestView], max_tokens: int) -> list[Chunk]:
    """Admit the whole batch; compute as many padded prompts as the budget allows."""
    longest = max([request.input_tokens for request in batch])
    reserve = longest + max([request.max_tokens for request in batch])
    budget = max_tokens
    chunks = []
    for request in batch:
        tokens = min(longest, budget)
        budget -= tokens
        chunks.append(Chunk(request, tokens, reserve, longest - request.input_tokens))
    return chunks


def _continued(view: View, max_tokens: int) -> list[Chunk]:
    """Continue the prompts, in order, as far as the budget goes."""
    budget = max_tokens
    chunks = []
    for request in view.prefilling:
        if budget == 0:
            break
        tokens = min(request.num_tokens_to_compute, budget)
        budget -= tokens
        chunks.append(chunk_of(request, tokens))
    return chunks
