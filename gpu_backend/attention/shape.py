"""The shape that a backend of attention over pages is made for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads of a model, and tokens of a page."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    fp8_kv: bool = False  # pages in fp8
