"""What policies declare: parameters that many of them have, and their rows of the page of systems."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import doc

from simulator.parameters import Count, Fraction
from simulator.queues import OrderName

# The page of systems: a row a policy, in a few words a question.


@dataclass(frozen=True, slots=True)
class Checked:
    """How a policy's decisions were held against those of the system itself."""

    against: str  # the release, and which parts of it ran
    on: str  # so many cases and steps, of what kind, and how many are equal
    uncovered: str  # what was not compared, or is known to differ


@dataclass(frozen=True, slots=True)
class System:
    """A policy among the others: each field answers one question.

    Policies that share one are one scheduler under several names, each with defaults of its own.
    """

    name: str  # of the system, and where it was published
    batch: str  # when may the batch change?
    prompts: str  # how are prompts computed?
    grant: str  # what memory must be there for a request to enter?
    order: str  # in which order do requests wait?
    victim: str  # which request is preempted when memory runs out?
    preemption: str  # how?
    padding: str = "none"
    checked: Checked | None = None  # None: written from publications and sources alone

    def answer(self, parameter: str) -> str | None:
        """The policy's fixed rule where others have this parameter; None if no field describes it."""
        fixed = {"order": self.order, "victim": self.victim, "preemption_mode": self.preemption}
        return fixed.get(parameter)


# Parameters that many policies have. One that a single policy has stands on that policy.

MaxNumSeqs = Annotated[Count, doc("requests in the batch, at most")]
MaxNumBatchedTokens = Annotated[Count, doc("tokens computed in a step, at most")]
Watermark = Annotated[Fraction, doc("fraction of the KV blocks that an admission leaves free while others run")]
EnableChunkedPrefill = Annotated[
    bool, doc("cut a prompt that does not fit the rest of a step; otherwise the prompt waits")
]
__all__ = ["EnableChunkedPrefill", "MaxNumBatchedTokens", "MaxNumSeqs", "OrderName", "Watermark"]
