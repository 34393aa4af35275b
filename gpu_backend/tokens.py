"""Invented tokens of prompts, equal wherever the trace says that content is equal.

A prefix cache shares blocks by what the trace tells of their content (`simulator.memory.block_keys`). For the pages
shared to be the right ones, prompts must really have equal tokens there: they are drawn from a hash of what is known.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from simulator.request import Request

Tokens = NDArray[np.int64]


def prompt_tokens(request: Request, vocab: int, seed: int = 0) -> Tokens:
    """The request's prompt: token ids below `vocab`, as the trace gives them or as its hashes and prefixes demand."""
    count = request.input_tokens
    place = np.arange(count, dtype=np.uint64)
    key = np.full(count, _key("own", request.row, seed), dtype=np.uint64)
    content = request.content
    if content is not None:
        if content.prompt_token_ids:
            return np.asarray(content.prompt_token_ids, dtype=np.int64) % vocab
        if content.block_hashes:
            size = content.hash_block_size
            for block, value in enumerate(content.block_hashes):
                key[block * size : (block + 1) * size] = _key("hash", value, seed)
        elif content.prefix_tokens:
            key[: content.prefix_tokens] = _key(f"group {content.prefix_group}", 0, seed)
    return (_mixed(key ^ _mixed(place)) % np.uint64(vocab)).astype(np.int64)


def answer_tokens(request: Request, vocab: int) -> Tokens | None:
    """The answer's tokens in the trace; None where the model's own tokens are fed back.

    Blocks of a recorded answer are cached under the recorded tokens, so these must be what is computed.
    """
    content = request.content
    if content is None or not content.output_token_ids:
        return None
    return np.asarray(content.output_token_ids, dtype=np.int64) % vocab


def _key(word: str, number: int, seed: int) -> np.uint64:
    return np.uint64(crc32(f"{word} {number} {seed}".encode()))


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser: every bit of the input reaches every bit of the output (Steele et al., OOPSLA 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
