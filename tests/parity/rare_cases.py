"""Cases made by hand, or cut down from random ones: what small random cases hardly meet."""

from typing import Any

from tests.parity.cases import Case

Row = tuple[int, int, int, int]  # arrival_step, prompt, output, priority


def _case(rows: list[Row], budget: int, block_size: int, num_gpu_blocks: int, **settings: Any) -> Case:
    names = ("arrival_step", "prompt_len", "output_len", "priority")
    config = {
        "max_num_seqs": len(rows),
        "max_num_batched_tokens": budget,
        "block_size": block_size,
        "num_gpu_blocks": num_gpu_blocks,
        "enable_chunked_prefill": True,
        "long_prefill_token_threshold": 0,
        "policy": "priority",
        "watermark": 0.0,
        "scheduler_reserve_full_isl": True,
    }
    return {
        "config": config | settings,
        "requests": [{"id": f"r{i}", **dict(zip(names, row, strict=True))} for i, row in enumerate(rows)],
    }


def _crowd(rows: list[Row], budget: int, block_size: int, num_gpu_blocks: int, threshold: int) -> Case:
    """Prompts in chunks, the later the more urgent, none of them reserved."""
    settings = {"long_prefill_token_threshold": threshold, "scheduler_reserve_full_isl": False}
    return _case(rows, budget, block_size, num_gpu_blocks, **settings)


RARE_CASES: list[Case] = [
    # A victim that has been scheduled in this very step: the blocks it had just been given go to those behind it.
    _crowd(
        [(2, 13, 1, 9), (2, 13, 1, 8), (2, 15, 1, 7), (3, 7, 1, 6), (3, 11, 1, 5), (3, 11, 1, 4), (3, 11, 1, 3)],
        37, 2, 38, 6,
    ),
    _crowd([(0, 9, 1, 7), (0, 9, 1, 6), (0, 8, 2, 5), (1, 5, 1, 4), (1, 5, 1, 3), (1, 4, 2, 2)], 21, 4, 13, 4),
    # And so do its tokens.
    _crowd([(0, 11, 4, 9), (1, 5, 1, 8), (1, 10, 1, 7), (1, 10, 1, 6), (1, 10, 1, 5)], 8, 1, 42, 2),
    _crowd([(2, 1, 9, 10), (3, 11, 3, 9), (7, 8, 1, 8), (6, 10, 1, 7), (8, 6, 1, 6), (9, 3, 1, 5)], 9, 2, 22, 2),
    # Without chunks, a head that does not fit the budget is not passed over by one that would.
    _case([(0, 12, 3, 0), (0, 12, 3, 0), (0, 3, 3, 0)], 20, 4, 40, policy="fcfs", enable_chunked_prefill=False),
    # While the head waits for blocks and the batch only decodes, a more urgent request arrives and fits.
    _case([(0, 8, 16, 0), (1, 36, 1, 5), (6, 4, 2, 1), (9, 4, 2, 9)], 64, 4, 11),
]  # fmt: skip


def _caching(case: Case, prefixes: dict[str, str]) -> Case:
    """With prefix caching; the prompts named are wholly those of a group, as far as they go."""
    case["config"]["enable_prefix_caching"] = True
    for request in case["requests"]:
        if request["id"] in prefixes:
            request["prefix_group"], request["prefix_len"] = prefixes[request["id"]], request["prompt_len"]
    return case


RARE_CACHING_CASES: list[Case] = [
    # A victim that has been scheduled in this very step leaves blocks in the cache that were never computed.
    _caching(_crowd([(0, 29, 1, 9), (1, 4, 3, 0)], 12, 4, 9, 8), {}),
    # The same among others, who find the blocks too.
    _caching(
        _crowd([(0, 29, 1, 9), (1, 4, 3, 0), (2, 29, 2, 8), (3, 28, 1, 1)], 12, 4, 9, 8),
        {"r0": "a", "r2": "a", "r3": "a"},
    ),
    # Who runs takes its block just before the head of the queue would have hit it.
    _caching(
        _case([(0, 8, 1, 0), (0, 5, 4, 0), (0, 8, 4, 0), (0, 8, 1, 0), (1, 9, 1, 0)], 64, 4, 8, policy="fcfs"),
        {"r0": "a", "r1": "a", "r4": "a"},
    ),
    # Cached whole, again and again: the last block is computed each time, and duplicates pile up.
    _caching(_case([(step, 12, 3, 0) for step in range(8)], 64, 4, 14), {f"r{i}": "a" for i in range(8)}),
    # What a victim leaves counts as free, and two come back to it in the same step.
    _caching(_case([(0, 4, 5, 0), (0, 12, 4, 0), (2, 13, 1, 0)], 64, 4, 6, policy="fcfs"), {"r1": "a", "r2": "a"}),
    # Without chunks, what is left of a prompt fits the budget only because of its hits.
    _caching(
        _case([(0, 20, 2, 0), (1, 28, 2, 0), (1, 32, 2, 0)], 34, 4, 30, policy="fcfs", enable_chunked_prefill=False),
        {"r0": "a", "r1": "a", "r2": "a"},
    ),
]
