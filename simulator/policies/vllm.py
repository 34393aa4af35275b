"""vLLM's v1 scheduler with the defaults of its server; `chunked_prefill` is the same scheduler with plain ones."""

from dataclasses import dataclass
from typing import ClassVar

from simulator.policies.chunked_prefill import SYSTEM, ChunkedPrefill

__all__ = ["SYSTEM", "Vllm"]


@dataclass(frozen=True, slots=True)
class Vllm(ChunkedPrefill):
    """`ChunkedPrefill`, rule for rule; keys that are left out are as `vllm serve` of that version has them on that GPU
    (`defaults` in scenarios/servers/vllm.py), unless the cost of steps is one's own."""

    is_server: ClassVar[bool] = True
