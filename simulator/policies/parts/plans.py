"""The plans that most steps are, and their chunks: named tuples made without the call of their own constructors."""

from __future__ import annotations

from typing import Final

from simulator.plan import Chunk, Holds, StepPlan
from simulator.request import RequestView

UNTIL_ARRIVAL: Final = StepPlan(holds=Holds.ARRIVAL)
"""All decode, until a request arrives."""

UNTIL_CHANGE: Final = StepPlan(holds=Holds.CHANGE)
"""All decode, and arrivals do not alter that."""

_new: Final = tuple.__new__
_CHUNK: Final = Chunk
_PLAN: Final = StepPlan
_STEP: Final = Holds.STEP


def chunk_of(request: RequestView, num_tokens: int) -> Chunk:
    """A chunk without reservation or padding."""
    return _new(_CHUNK, (request, num_tokens, 0, 0))


def prefill_plan(chunks: list[Chunk], *, decode: bool = True) -> StepPlan:
    """A step that computes these chunks, beside the decodes or without them."""
    return _new(_PLAN, ((), (), tuple(chunks), decode, (), _STEP, None, False, None, None, (), False, None))
