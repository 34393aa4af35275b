"""vLLM's v1 scheduler under its own name: `chunked_prefill` is the same policy under a plain one."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.policies.chunked_prefill import SYSTEM, ChunkedPrefill

__all__ = ["SYSTEM", "Vllm"]


@dataclass(frozen=True, slots=True)
class Vllm(ChunkedPrefill):
    """`ChunkedPrefill`, rule for rule and parameter for parameter."""
