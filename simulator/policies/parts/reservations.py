"""KV memory that a request must find free in order to enter, and the requests that can never find it."""

from simulator.division import cdiv
from simulator.request import RequestView


def most_tokens(request: RequestView) -> int:
    """KV tokens that a request may come to need, as far as a server knows: its prompt and `max_tokens`."""
    return request.input_tokens + request.max_tokens


def refuse_reservation(
    request: RequestView, num_blocks: int, block_size: int, granted_tokens: int | None = None
) -> str | None:
    """Why a request that reserves `granted_tokens` (None: `most_tokens`) can never enter, or None if it can."""
    needed = cdiv(most_tokens(request) if granted_tokens is None else granted_tokens, block_size)
    if needed <= num_blocks:
        return None
    return (
        f"{request.input_tokens} input tokens and max_tokens = {request.max_tokens} reserve {needed} KV blocks; "
        f"there are {num_blocks}"
    )


def watermark_blocks(watermark: float, num_blocks: int) -> int:
    """Blocks that an admission leaves free, a fraction `watermark` of all: vLLM's rounding."""
    return int(watermark * num_blocks)


def refuse_beyond_watermark(request: RequestView, num_blocks: int, block_size: int, watermark: float) -> str | None:
    """Why a prompt can never enter above the watermark, or None if it can."""
    needed, keep = cdiv(request.input_tokens, block_size), watermark_blocks(watermark, num_blocks)
    if needed + keep <= num_blocks:
        return None
    return (
        f"{request.input_tokens} input tokens need {needed} KV blocks, and the watermark keeps {keep} free; "
        f"there are {num_blocks}"
    )


def refuse_beyond_budget(request: RequestView, max_num_batched_tokens: int) -> str | None:
    """Why a prompt that is computed whole, and after a preemption with its output, can never be computed, or None."""
    if most_tokens(request) <= max_num_batched_tokens + 1:
        return None
    return (
        f"{request.input_tokens} input and up to {request.max_tokens} output tokens exceed "
        f"max_num_batched_tokens = {max_num_batched_tokens}, and enable_chunked_prefill is false"
    )
