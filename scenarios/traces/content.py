"""The content of a trace's prompts, as a prefix cache sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scenarios.traces.columns import Columns
from scenarios.traces.options import TraceOptions
from scenarios.traces.rows import Tally
from simulator.errors import InputError
from simulator.request import PromptContent
from simulator.workload import Ints

USUAL_BLOCK_SIZES = (512, 16, 64)  # Mooncake, Bailian, Weka
OTHER_BLOCK_SIZES = (8, 32, 128, 256, 1024, 2048, 4096, 1, 2, 4)


@dataclass(frozen=True, slots=True)
class Contents:
    """One content a request (None where nothing is known), in the order of the columns."""

    rows: list[PromptContent | None]
    notes: list[str]


def contents(columns: Columns, inputs: Ints, options: TraceOptions, file: str) -> Contents | None:
    """Return `part_contents` for all rows of a trace, with the notes about its block hashes."""
    inferred, dropped = BlockSizes(), Tally(file, options.strict)
    inferred.add_rows(columns.inputs, columns.extra)
    found = part_contents(columns, inputs, options, file, inferred, dropped)
    if found is None:
        return None
    return Contents(found.rows, [*block_notes(inferred, dropped), *found.notes])


def block_notes(inferred: BlockSizes, dropped: Tally) -> list[str]:
    """Return the notes about the block hashes of a whole trace."""
    size = [f"block hashes of {inferred.size} tokens each"] if inferred.rows else []
    return size + [f"dropped the hashes of {text}" for text in dropped.texts()]


def part_contents(
    columns: Columns, inputs: Ints, options: TraceOptions, file: str, inferred: BlockSizes, dropped: Tally
) -> Contents | None:
    """The contents of requests whose (scaled) prompts are `inputs` tokens long; None where they have none.

    Block hashes must be as many as the prompt has blocks, the last one perhaps partial. Those that are not are
    dropped and counted, and so is all content that scaling the lengths makes meaningless.
    """
    extra = columns.extra
    count = len(columns.inputs)
    empty: list[None] = [None] * count
    names = ("block_hashes", "prefix_group", "prompt_token_ids", "output_token_ids")
    if not any(name in extra for name in names):
        return None
    notes: list[str] = []
    hashes: Sequence[tuple[int, ...] | None] = extra.get("block_hashes", empty)
    sizes: Sequence[int] = [0] * count
    if "block_hashes" in extra:
        hashes, sizes = _blocks(columns, inputs, options, file, inferred, dropped, notes)
    one_each = OneEach()
    prompts = _token_ids(extra.get("prompt_token_ids", empty), options.input_scale, "prompt_token_ids", notes, one_each)
    answers = _token_ids(
        extra.get("output_token_ids", empty), options.output_scale, "output_token_ids", notes, one_each
    )
    groups = extra.get("prefix_group", empty)
    prefixes = extra.get("prefix_tokens", empty)
    lengths = inputs.tolist()
    rows: list[PromptContent | None] = []
    for place in range(count):
        blocks, group, prompt, answer = hashes[place], groups[place], prompts[place], answers[place]
        if blocks or group is not None or prompt or answer:
            shared = min(round((prefixes[place] or 0) * options.input_scale), lengths[place])
            size = sizes[place] if blocks else 0
            rows.append(PromptContent(blocks or (), size, group, shared, prompt or (), answer or ()))
        else:
            rows.append(None)
    return Contents(rows, notes)


class BlockSizes:
    """The size of the blocks that hashes name, inferred from rows that do not say it: count == ceil(input / size)."""

    def __init__(self) -> None:
        self._least, self._most = 1, 2**63 - 1  # the sizes between them fit every row
        self._fits = dict.fromkeys((*USUAL_BLOCK_SIZES, *OTHER_BLOCK_SIZES), 0)
        self.rows = 0

    def add(self, inputs: Ints, counts: Ints) -> None:
        """More rows: the tokens of their prompts, and how many hashes each has (at least one)."""
        if not len(inputs):
            return
        self.rows += len(inputs)
        self._least = max(self._least, int(np.max(-(-inputs // counts))))
        many = counts > 1
        if many.any():
            self._most = min(self._most, int(np.min(-(-inputs[many] // (counts[many] - 1)))) - 1)
        for size in self._fits:
            self._fits[size] += int(np.count_nonzero(-(-inputs // size) == counts))

    @property
    def size(self) -> int | None:
        """The size that fits every row, or else the most; None where it fits not even half of them.

        Usual sizes come first, then powers of two, then the smallest size that no row contradicts.
        """
        best = max(self._fits, key=lambda size: self._fits[size])
        if self._fits[best] == self.rows:
            return best
        if self._least <= self._most:
            return self._least
        return best if 2 * self._fits[best] >= self.rows else None

    def add_rows(self, inputs: Sequence[int], extra: Mapping[str, Sequence[Any]]) -> None:
        """More rows, by their native columns."""
        hashes = extra.get("block_hashes")
        if hashes is None:
            return
        given = extra.get("hash_block_size") or [None] * len(hashes)
        rows = [
            (tokens, len(each))
            for tokens, each, size in zip(inputs, hashes, given, strict=True)
            if each and size is None
        ]
        if rows:
            self.add(*(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))


def no_block_size(file: str) -> InputError:
    """The hashes of a trace cannot be told."""
    return InputError(
        "the numbers of block hashes fit no block size: each should be ceil(input tokens / block size)",
        file=file,
        hint="512 in Mooncake's traces; native traces may give hash_block_size",
    )


def _blocks(
    columns: Columns,
    inputs: Ints,
    options: TraceOptions,
    file: str,
    inferred: BlockSizes,
    dropped: Tally,
    notes: list[str],
) -> tuple[Sequence[tuple[int, ...] | None], list[int]]:
    """Checked hashes and their block sizes, scaled as the prompts are."""
    hashes: list[tuple[int, ...] | None] = columns.extra["block_hashes"]
    given = columns.extra.get("hash_block_size", [None] * len(hashes))
    original = np.asarray(columns.inputs, dtype=np.int64)
    counts = np.array([0 if h is None else len(h) for h in hashes], dtype=np.int64)
    sizes = np.array([s or 0 for s in given], dtype=np.int64)
    has = np.array([h is not None for h in hashes])
    bad = has & (counts == 0)
    open_ = has & (sizes == 0) & ~bad
    if open_.any():
        size = inferred.size
        if size is None:
            raise no_block_size(file)
        bad |= open_ & (-(-original // size) != counts)
        sizes[open_] = size
    bad |= has & ~bad & (counts > -(-original // np.maximum(sizes, 1)))
    for place in np.flatnonzero(bad):
        dropped.add(
            columns.line[place], "block hashes do not fit the prompt's length; the prompt shares no block with others"
        )
    kept: list[tuple[int, ...] | None] = [None if wrong else h for h, wrong in zip(hashes, bad.tolist(), strict=True)]
    if options.input_scale != 1.0:
        return _scaled(kept, sizes, inputs, options.input_scale, notes)
    return kept, sizes.tolist()


def _scaled(
    hashes: list[tuple[int, ...] | None], sizes: Ints, inputs: Ints, scale: float, notes: list[str]
) -> tuple[list[tuple[int, ...] | None], list[int]]:
    """Blocks scaled with the prompts, which keeps shared prefixes; none where a block is then no whole number."""
    scaled = sizes * scale
    if np.any((scaled != np.rint(scaled)) | ((sizes > 0) & (scaled < 1))):
        notes.append(
            f"dropped all block hashes: input_scale {scale:g} gives blocks that are not a whole number of tokens"
        )
        return [None] * len(hashes), [0] * len(hashes)
    whole = scaled.astype(np.int64)
    blocks = (-(-inputs // np.maximum(whole, 1))).tolist()
    return [None if h is None else h[:n] for h, n in zip(hashes, blocks, strict=True)], whole.tolist()


class OneEach:
    """Makes equal numbers one object each, so that a token takes a pointer, and equal texts are compared by those."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of(self, ids: Sequence[int]) -> tuple[int, ...]:
        """The same numbers."""
        return tuple(map(self._known.setdefault, ids, ids))


def _token_ids(
    ids: Sequence[tuple[int, ...] | None], scale: float, name: str, notes: list[str], one_each: OneEach
) -> Sequence[tuple[int, ...] | None]:
    if not any(ids):
        return ids
    if scale == 1.0:
        return [each and one_each.of(each) for each in ids]
    notes.append(f"dropped all {name}: they cannot be scaled with their lengths")
    return [None] * len(ids)
