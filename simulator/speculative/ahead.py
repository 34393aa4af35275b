"""Speculative decoding (v2) of SGLang: how much memory it takes ahead, and what a step verifies.

`get_alloc_len_per_decode` and its neighbours in python/sglang/srt/mem_cache/allocation_sizing.py, limits in
arg_groups/speculative_hook.py (SGLang 0.5.23). `num_speculative_tokens` is its `speculative_num_steps`: the drafts of
the longest branch, all of which may be accepted.
"""

from simulator.division import cdiv
from simulator.speculative.config import SpeculativeConfig

_IN_MIXED_STEPS = ("eagle", "eagle3", "mtp")


def verified_tokens(config: SpeculativeConfig) -> int:
    """Return the tokens of a request that a decode step computes: its tree, or the sampled token and the chain."""
    return config.num_draft_tokens or config.num_speculative_tokens + 1


def most_accepted(config: SpeculativeConfig) -> int:
    """Return how many drafts of a request a step accepts at most."""
    return min(config.num_speculative_tokens, verified_tokens(config) - 1)


def tokens_ahead(config: SpeculativeConfig, page_size: int) -> int:
    """Return the tokens behind its committed ones for which a request owns memory in a decode step.

    Twice what one step may write, since with overlap the committed tokens are those of a step before (:65). In a tree
    each branch writes whole pages of its own where pages hold several tokens (:49).
    """
    steps, branches, verified = config.num_speculative_tokens, config.eagle_topk, verified_tokens(config)
    if page_size == 1 or branches == 1:
        return 2 * max(steps * branches, verified)
    return 2 * max(cdiv(page_size - 1 + steps, page_size) * page_size * branches, verified)


def check_server(config: SpeculativeConfig, *, mixes: bool, max_num_seqs: int, max_num_batched_tokens: int) -> None:
    """Raise ValueError, which begins with the parameter's name, for what SGLang does not do or is not modelled."""
    for name in ("num_speculative_tokens_per_batch_size", "parallel_drafting", "disable_lookahead_block_hashes",
                 "disable_eagle_block_drop"):  # fmt: skip
        if getattr(config, name):
            raise ValueError(f"{name} is vLLM's: SGLang does not have it")
    if mixes and config.method not in _IN_MIXED_STEPS:
        raise ValueError(f"method {config.method} turns enable_mixed_chunk off in SGLang: set it to false")
    if not config.num_speculative_tokens:
        return
    tokens = max_num_seqs * verified_tokens(config)
    if tokens > max_num_batched_tokens:
        raise ValueError(
            f"num_speculative_tokens makes steps of up to {tokens:,} tokens with max_num_seqs = {max_num_seqs:,}: "
            f"max_num_batched_tokens must be as large, not {max_num_batched_tokens:,}"
        )
