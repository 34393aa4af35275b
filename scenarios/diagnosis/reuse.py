"""The share of each prompt that was seen before, which a prefix cache could have found."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from simulator.request import PromptContent
from simulator.results.records import Ints
from simulator.workload import Workload


def seen_before(workload: Workload, replica: Ints, block_size: int) -> tuple[Ints, Ints]:
    """Count each prompt's tokens, in whole blocks, that an earlier request had: on the same replica, and anywhere.

    A cache without limits would find these, except what is computed at the same time. They are 0 for a prompt of
    unknown content.
    """
    n = len(workload)
    same, anywhere = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    everywhere: dict[Hashable, int] = {}
    of_replica: dict[int, dict[Hashable, int]] = {}
    inputs, answers = workload.input_tokens.tolist(), workload.output_tokens.tolist()
    for row, content in enumerate(workload.content or ()):
        if content is None:
            continue
        parts = list(_parts(content, inputs[row], answers[row], block_size))
        whole = (inputs[row] - 1) // block_size * block_size  # the last token is always computed
        for cache, found in ((of_replica.setdefault(int(replica[row]), {}), same), (everywhere, anywhere)):
            found[row] = min(_known(cache, parts) // block_size * block_size, whole)
            for key, tokens in parts:
                cache[key] = max(cache.get(key, 0), tokens)
    return same, anywhere


def _known(cache: dict[Hashable, int], parts: list[tuple[Hashable, int]]) -> int:
    """Count the tokens of the leading parts that the cache knows."""
    total = 0
    for key, tokens in parts:
        had = min(cache.get(key, 0), tokens)
        total += had
        if had < tokens:
            break
    return total


def _parts(content: PromptContent, inputs: int, answer: int, block_size: int) -> Iterator[tuple[Hashable, int]]:
    """Yield the beginning of a request's tokens, which others may share, as named parts with their lengths.

    `simulator.memory.block_keys` has the same names, block by block; here a part is as long as it can be.
    """
    if tokens := content.prompt_token_ids:
        chain = 0
        for start in range(0, len(tokens) - block_size + 1, block_size):
            chain = hash((chain, tokens[start : start + block_size]))
            yield ("ids", chain), block_size
    elif content.block_hashes:
        size = content.hash_block_size
        for place, key in enumerate(content.block_hashes[: -(-inputs // size)]):
            yield ("hash", key, place), min(size, inputs - place * size)
    else:
        shared = min(content.prefix_tokens, inputs)
        if shared:
            yield ("group", content.prefix_group), shared
        if content.conversation is not None:
            yield ("conversation", content.conversation), inputs - shared + answer
