"""`InTime`: chunked prefill that spends no work on requests that are late already while others can still be in time."""

from dataclasses import dataclass, replace

from simulator.policies.chunked_prefill import SYSTEM as CHUNKED_PREFILL
from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.policies.parts.system import System
from simulator.policies.parts.vllm_server import LIKE_VLLM, VLLM_SERVE
from simulator.queues import Order, OrderName

_ORDER = Order("weighted", input_token_s=0.001)


@dataclass(frozen=True, slots=True)
class InTime(ChunkedPrefill):
    """vLLM's scheduler with another order of the queue: who can still have a first token in time, the shorter first.

    The order is `weighted`. A request is late where its first token cannot come within `late_after_s` of its arrival,
    by default the SLO's TTFT; late requests wait behind all others. It is for overload: under it, first come, first
    served makes every request wait as long, so that soon all are late, and nearly all work is spent on requests that
    count for nothing. Where no request waits it decides as `chunked_prefill` does. The price: late requests wait until
    there is a lull, and long prompts are late more often.
    """

    order: OrderName = _ORDER


SYSTEM = System(
    name="requests in time first",
    batch=CHUNKED_PREFILL.batch,
    prompts=CHUNKED_PREFILL.prompts,
    grant=CHUNKED_PREFILL.grant,
    order="in time before late, then arrival and length of the prompt",
    victim=CHUNKED_PREFILL.victim,
    preemption=CHUNKED_PREFILL.preemption,
)
SERVER = replace(
    LIKE_VLLM,
    launch=replace(
        VLLM_SERVE,
        is_own=False,
        remarks=lambda policy, values: ["vLLM has no such order of its own: its order is fcfs or priority"],
    ),
)
