"""A step as a device executes it: the tokens that each request computes, and its pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.lockstep.lockstep_run import HELD, digest
from simulator.timing.cost import StepShape

if TYPE_CHECKING:
    from torch import Tensor

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ScheduledPart:
    """One request's part of a step: `tokens` (ids), behind `computed` KV tokens, in the pages `table`.

    The first `padding` KV tokens are padding, which no token attends to. `samples`: the last token's logits are wanted.
    A table may be shorter than the context: what lies beyond it goes to the null block 0. That is for `is_held`, a
    finished request that computes on in its slot.
    """

    row: int
    computed: int
    tokens: Sequence[int]
    table: Sequence[int]
    padding: int = 0
    samples: bool = True
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class Swap:
    """Pages to move: `source[i]` to `target[i]`, to the host or from it."""

    source: tuple[int, ...] = ()
    target: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a step, in order: pages to the host, pages from the host, then decodes and prompt chunks together."""

    decodes: tuple[ScheduledPart, ...] = ()
    chunks: tuple[ScheduledPart, ...] = ()
    swap_out: Swap = Swap()
    swap_in: Swap = Swap()

    @property
    def parts(self) -> tuple[ScheduledPart, ...]:
        return self.decodes + self.chunks

    @property
    def shape(self) -> StepShape:
        """The step's counts, from the work itself: the engine's own must be equal."""
        tokens = context = pairs = 0
        for part in self.chunks:
            n = len(part.tokens)
            tokens += n
            context += part.computed + n
            pairs += n * part.computed + n * (n + 1) // 2
        contexts = [part.computed + 1 for part in self.decodes]
        squares = sum([context * context for context in contexts])
        longest = max([part.computed + len(part.tokens) for part in self.chunks], default=0)
        prefill = len(self.chunks), tokens, context, pairs
        return StepShape(len(contexts), sum(contexts), *prefill, max(contexts, default=0), squares, longest)

    @property
    def digest(self) -> str:
        """The digest of the work, which must equal that of the plan (`simulator.lockstep.lockstep_run`)."""
        decodes = [(part.row, HELD if part.is_held else part.computed) for part in self.decodes]
        chunks = [(part.row, part.computed, len(part.tokens)) for part in self.chunks]
        return digest(decodes, chunks, len(self.swap_out.source), len(self.swap_in.source))


def null_work(decodes: int, context: int, chunk: int, behind: int, block_size: int) -> Work:
    """Make a step on the null block alone: so many decodes of `context` KV tokens, and a chunk if it has tokens.

    It reads and writes what means nothing, so it may be done at any time.
    """
    table = (0,) * -(-context // block_size)
    parts = [ScheduledPart(row, context - 1, [0], table) for row in range(decodes)]
    wide = (0,) * -(-(behind + chunk) // block_size)
    return Work(tuple(parts), (ScheduledPart(decodes, behind, [0] * chunk, wide),) if chunk else ())


@dataclass(frozen=True, slots=True)
class StepArrays:
    """A step's parts as arrays of the host, decodes first: S parts of T tokens together.

    `tables` is padded with the null block. `slot` is where a token's key and value go: block * block_size + offset.
    `position` counts real tokens only. `sampled` are the tokens whose logits are wanted.
    """

    decodes: int
    token: Int64s  # [T]
    position: Int64s  # [T]
    slot: Int64s  # [T]
    query_start: Int32s  # [S + 1]
    context: Int32s  # [S], KV tokens after the step
    first: Int32s  # [S], leading ones that are padding
    tables: Int32s  # [S, most pages]
    sampled: Int64s

    def __len__(self) -> int:
        return len(self.context)

    def first_rows(self, count: int) -> StepArrays:
        """Return the first `count` decodes alone; each has one token, whose logits are wanted."""
        arrays = (getattr(self, field.name)[:count] for field in fields(self)[1:])
        return replace(StepArrays(count, *arrays), query_start=self.query_start[: count + 1])


def step_arrays(parts: Sequence[ScheduledPart], decodes: int, block_size: int) -> StepArrays:
    """Turn parts into arrays; the first `decodes` of them are decodes of one token each."""
    lengths = np.array([len(part.tokens) for part in parts], dtype=np.int64)
    computed = np.array([part.computed for part in parts], dtype=np.int64)
    padding = np.array([part.padding for part in parts], dtype=np.int64)
    starts = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    owner = np.repeat(np.arange(len(parts)), lengths)
    place = np.arange(starts[-1]) - starts[owner] + computed[owner]
    context = computed + lengths
    pages = -(-context // block_size)
    tables = np.zeros((len(parts), int(pages.max(initial=1))), dtype=np.int32)
    for index, part in enumerate(parts):
        held = min(len(part.table), int(pages[index]))
        tables[index, :held] = part.table[:held]
    slot = tables[owner, place // block_size].astype(np.int64) * block_size + place % block_size
    token = np.fromiter((t for part in parts for t in part.tokens), dtype=np.int64, count=int(starts[-1]))
    samples = np.array([part.samples for part in parts], dtype=np.bool_)
    return StepArrays(
        decodes=decodes,
        token=token,
        position=np.maximum(place - padding[owner], 0),
        slot=slot,
        query_start=starts.astype(np.int32),
        context=context.astype(np.int32),
        first=padding.astype(np.int32),
        tables=tables,
        sampled=starts[1:][samples] - 1,
    )


class KVScales(NamedTuple):
    """Factors of a layer's cached keys and values in fp8, applied when they are read."""

    key: float = 1.0
    value: float = 1.0


UNSCALED = KVScales()


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The shape that attention is made for: a model's heads, and tokens of a page."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    fp8_kv: bool = False  # pages in fp8


class AttentionImpl(Protocol):
    """Attention over pages. What depends on the step alone is prepared once, untimed, in a form of its own (`Any`)."""

    def prepare(self, rows: StepArrays) -> Any:
        """Prepare the step's data that `attend` needs, on the device."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, kv: Tensor, prepared: Any, *, scales: KVScales = UNSCALED
    ) -> Tensor:
        """Write the step's keys and values [T, kv_heads, head_dim] into their slots of one layer's pages, then attend.

        `kv` is [block, 2, kv_head, block_size, head_dim]; `query` and the answer are [T, heads, head_dim]. Pages in fp8
        hold keys and values over `scales`.
        """
