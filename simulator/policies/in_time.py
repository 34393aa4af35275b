"""`InTime`: chunked prefill that spends no work on late requests while others can still be in time."""

from dataclasses import dataclass

from simulator.policies.chunked_prefill import SYSTEM as CHUNKED_PREFILL
from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.policies.parts.preemption import MaxNumBatchedTokens, System
from simulator.queues import Order, OrderName

_ORDER = Order("weighted", input_token_s=0.001)


@dataclass(frozen=True, slots=True)
class InTime(ChunkedPrefill):
    """vLLM's scheduler with small steps and another order of the queue: who can still be in time, the shorter first.

    It is for overload. First come, first served makes all requests wait as long there, so that soon all are late, and
    nearly all work goes to requests that count for nothing. Here the order is `weighted`: a request whose first token
    has not come within `late_after_s` of its arrival, by default the SLO's TTFT, waits behind all others; of the others
    the shorter prompts go first, a thousand tokens counting as a second. Steps of at most 512 tokens (Sarathi-Serve's
    size, A. Agrawal et al., OSDI 2024) keep the time per output token low while the queue is never empty.

    The order was found by `batchlab search` on the first halves of public traces; see docs/search.md for what it is
    worth on the second. The price: late requests wait for a lull, and long prompts are late more often. Below
    saturation there is little to win, and small steps make a prompt that is alone a little slower.
    """

    order: OrderName = _ORDER
    max_num_batched_tokens: MaxNumBatchedTokens = 512


SYSTEM = System(
    name="requests in time first",
    batch=CHUNKED_PREFILL.batch,
    prompts=CHUNKED_PREFILL.prompts,
    grant=CHUNKED_PREFILL.grant,
    order="in time before late, then arrival and length of the prompt",
    victim=CHUNKED_PREFILL.victim,
    preemption=CHUNKED_PREFILL.preemption,
)
