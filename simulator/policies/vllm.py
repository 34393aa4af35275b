"""vLLM's v1 scheduler with the defaults of its server; `chunked_prefill` is the same scheduler with plain ones."""

from dataclasses import dataclass

from simulator.policies.chunked_prefill import SERVER, SYSTEM, ChunkedPrefill

__all__ = ["SERVER", "SYSTEM", "Vllm"]


@dataclass(frozen=True, slots=True)
class Vllm(ChunkedPrefill):
    """`ChunkedPrefill`, rule for rule. A default of the server that is not the plain one is declared here: none is."""
