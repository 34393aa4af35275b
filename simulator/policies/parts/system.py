"""What makes a serving system's batching policy itself, in the same few words for all of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class System:
    """A policy's place among the others: each field answers one question, in a few words."""

    name: str  # of the system, and where it was published
    batch: str  # when may the batch change?
    prompts: str  # how are prompts computed?
    grant: str  # what memory must be there for a request to enter?
    order: str  # who waits in which order?
    victim: str  # who leaves when memory runs out?
    preemption: str  # and how?
    padding: str = "none"
