"""Memory that answers may still come to need: SGLang's estimate, a ratio of their `max_tokens`.

`NewTokenRatioTracker` and `PrefillAdder` beside python/sglang/srt/managers/scheduler.py (SGLang 0.5.23).
"""

from collections.abc import Sequence
from functools import lru_cache

from simulator.division import cdiv
from simulator.request import RequestView

INIT_NEW_TOKEN_RATIO = 0.7
MIN_NEW_TOKEN_RATIO_FACTOR = 0.14
NEW_TOKEN_RATIO_DECAY_STEPS = 600
RETRACT_DECODE_STEPS = 20
CLIP_MAX_NEW_TOKENS = 4096


def first_ratio(schedule_conservativeness: float) -> float:
    """The ratio of an idle server."""
    return min(1.0, INIT_NEW_TOKEN_RATIO * schedule_conservativeness)


def fallen_ratio(ratio: float, decode_steps: int, schedule_conservativeness: float) -> float:
    """`ratio` after so many decode steps: a linear decay to its lowest value, rounded as one subtraction a step is."""
    if decode_steps <= 0:
        return ratio
    values = _decay(ratio, schedule_conservativeness)
    return values[min(decode_steps, len(values)) - 1]


@lru_cache(maxsize=64)
def _decay(ratio: float, schedule_conservativeness: float) -> tuple[float, ...]:
    """The ratio after 1, 2, ... decode steps, until it falls no more."""
    first = first_ratio(schedule_conservativeness)
    lowest = first * MIN_NEW_TOKEN_RATIO_FACTOR
    fall = (first - lowest) / NEW_TOKEN_RATIO_DECAY_STEPS
    values = [max(ratio - fall, lowest)]
    while fall and values[-1] > lowest:
        values.append(max(values[-1] - fall, lowest))
    return tuple(values)


def ratio_after_retraction(stay: Sequence[RequestView], outputs: int) -> float:
    """The ratio after a retraction: the `outputs` of those that stay, and 20 tokens each, of their `max_tokens`."""
    most = sum([request.max_tokens for request in stay])
    return min(1.0, (outputs + RETRACT_DECODE_STEPS * len(stay)) / (most + 1))


def tokens_to_come(request: RequestView) -> int:
    """Tokens left of its `max_tokens`, clipped."""
    return min(max(0, request.max_tokens - request.output_tokens_so_far), CLIP_MAX_NEW_TOKENS)


def allowed_tokens(request: RequestView, num_blocks: int, block_size: int) -> int:
    """`max_tokens` as memory allows it to a lone request: scheduler.py:2712 and mem_cache/allocator/base.py:88."""
    size, tokens = num_blocks * block_size, request.input_tokens
    paged = cdiv(tokens, block_size) * block_size
    return min(request.max_tokens, size - tokens - 2, size - paged - block_size - 1)
