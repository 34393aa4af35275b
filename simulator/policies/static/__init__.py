"""Static batching: a batch runs until its longest request has finished; only then does the next one form."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import doc

from simulator.parameters import Seconds, check_parameters
from simulator.plan import StepPlan, Traits, View
from simulator.policies.parts.parameters import MaxNumBatchedTokens, MaxNumSeqs
from simulator.policies.parts.reservations import refuse_reservation
from simulator.policies.parts.system import System
from simulator.policies.static.step import step
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
