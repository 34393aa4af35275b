"""Memory that answers may still come to need: SGLang's estimate, a ratio of their `max_tokens`.

`NewTokenRatioTracker` and `PrefillAdder` beside python/sglang/srt/managers/scheduler.py (SGLang 0.5), whose names the
constants have.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    """`ratio` after so many decode steps, a linear decay to its lowest value."""
    first = first_ratio(schedule_conservativeness)
    lowest = first * MIN_NEW_TOKEN_RATIO_FACTOR
    return max(lowest, ratio - (first - lowest) / NEW_TOKEN_RATIO_DECAY_STEPS * decode_steps)


def ratio_after_retraction(stay: Sequence[RequestView]) -> float:
    """The ratio after a retraction: what those that stay have decoded, and 20 tokens each, of their `max_tokens`."""
    decoded = sum([request.output_tokens_so_far for request in stay])
    most = sum([request.max_tokens for request in stay])
    return min(1.0, (decoded + RETRACT_DECODE_STEPS * len(stay)) / (most + 1))


def tokens_to_come(request: RequestView) -> int:
    """What is left of its `max_tokens`, clipped."""
    return min(max(0, request.max_tokens - request.output_tokens_so_far), CLIP_MAX_NEW_TOKENS)
