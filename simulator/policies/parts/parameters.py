"""Parameters that many policies have. One that a single policy has stands on that policy."""

from typing import Annotated

from annotated_types import doc

from simulator.parameters import Count, Fraction
from simulator.queues import OrderName

MaxNumSeqs = Annotated[Count, doc("requests in the batch, at most")]
MaxNumBatchedTokens = Annotated[Count, doc("tokens computed in a step, at most")]
Watermark = Annotated[Fraction, doc("fraction of the KV blocks that an admission leaves free while others run")]
EnableChunkedPrefill = Annotated[
    bool, doc("cut a prompt that does not fit the rest of a step; otherwise the prompt waits")
]
__all__ = ["EnableChunkedPrefill", "MaxNumBatchedTokens", "MaxNumSeqs", "OrderName", "Watermark"]
