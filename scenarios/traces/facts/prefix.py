"""Tokens of a trace that a prefix cache could reuse."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simulator.request import PromptContent

MOST_BLOCKS = 1_500_000
"""Different blocks that are remembered, at about 100 bytes each; a trace with more has no prefix facts."""


@dataclass(frozen=True, slots=True)
class PrefixFacts:
    """The reuse that a prefix cache without a limit could have, from the block hashes; only earlier requests count.

    `token_hit_ratio` counts prompt tokens in leading blocks that were seen before, `hit_share_quartiles` is that
    share per request, `top_block_requests` how many requests hold the block that most requests hold.
    """

    requests: int
    blocks: int
    distinct_blocks: int
    distinct_reused_share: float
    block_hit_ratio: float
    token_hit_ratio: float
    hit_share_quartiles: tuple[float, float, float]
    requests_without_hit: int
    top_block_requests: int


@dataclass(slots=True)
class PrefixHits:
    """The hits that the block hashes promise, summed up over requests in the order of their arrival."""

    _holders: dict[int, int] = field(default_factory=dict)  # block -> requests that hold it
    _blocks: int = 0
    _tokens: int = 0
    _hit_blocks: int = 0
    _hit_tokens: int = 0
    _without_hit: int = 0
    _shares: array[float] = field(default_factory=lambda: array("f"))
    too_many: bool = False

    def add(self, input_tokens: Sequence[int], contents: Sequence[PromptContent | None]) -> None:
        """The next requests."""
        if self.too_many:
            return
        holders = self._holders
        for length, content in zip(input_tokens, contents, strict=True):
            if content is None or not content.block_hashes:
                continue
            hits = self._leading_hits(content)
            tokens = min(hits * content.hash_block_size, length)
            self._blocks += len(content.block_hashes)
            self._tokens += length
            self._hit_blocks += hits
            self._hit_tokens += tokens
            self._without_hit += hits == 0
            self._shares.append(tokens / length)
            for block in dict.fromkeys(content.block_hashes):
                holders[block] = holders.get(block, 0) + 1
        if len(holders) > MOST_BLOCKS:
            self.too_many = True
            holders.clear()

    def _leading_hits(self, content: PromptContent) -> int:
        hits = 0
        for block in content.block_hashes:
            if block not in self._holders:
                break
            hits += 1
        return hits

    def facts(self) -> PrefixFacts | None:
        """The hits so far; None without hashes, or with too many different ones."""
        if self.too_many or not self._holders:
            return None
        low, middle, high = np.percentile(np.asarray(self._shares), (25, 50, 75)).tolist()
        return PrefixFacts(
            requests=len(self._shares),
            blocks=self._blocks,
            distinct_blocks=len(self._holders),
            distinct_reused_share=sum(number > 1 for number in self._holders.values()) / len(self._holders),
            block_hit_ratio=self._hit_blocks / self._blocks,
            token_hit_ratio=self._hit_tokens / self._tokens,
            hit_share_quartiles=(low, middle, high),
            requests_without_hit=self._without_hit,
            top_block_requests=max(self._holders.values()),
        )

    def notes(self) -> list[str]:
        """Return the note for a trace whose facts are left out."""
        return [f"no prefix figures: more than {MOST_BLOCKS:,} different blocks"] if self.too_many else []
