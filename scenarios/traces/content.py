"""The content of a trace's prompts, as a prefix cache sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    """The contents of all requests whose (scaled) prompts are `inputs` tokens long; None where the trace has none.

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
        hashes, sizes = _blocks(columns, inputs, options, file, notes)
    prompts = _token_ids(extra.get("prompt_token_ids", empty), options.input_scale, "prompt_token_ids", notes)
    answers = _token_ids(extra.get("output_token_ids", empty), options.output_scale, "output_token_ids", notes)
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


def infer_block_size(inputs: Ints, counts: Ints) -> tuple[int, NDArray[np.bool_]]:
    """The block size for which count == ceil(input / size) on every row, or else on the most, and those rows.

    Usual sizes come first, then powers of two, then the smallest size that no row contradicts.
    """
    smallest = int(np.max(-(-inputs // counts)))
    best, fitting = 0, np.zeros(len(inputs), dtype=np.bool_)
    for size in (*USUAL_BLOCK_SIZES, *OTHER_BLOCK_SIZES, smallest):
        fits = -(-inputs // size) == counts
        if fits.all():
            return size, fits
        if np.count_nonzero(fits) > np.count_nonzero(fitting):
            best, fitting = size, fits
    return best, fitting


def _blocks(
    columns: Columns, inputs: Ints, options: TraceOptions, file: str, notes: list[str]
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
        size, fits = infer_block_size(original[open_], counts[open_])
        if 2 * np.count_nonzero(fits) < len(fits):
            raise InputError(
                "the numbers of block hashes fit no block size: they should be ceil(input tokens / block size)",
                file=file,
                hint="512 in Mooncake's traces; native traces may give hash_block_size",
            )
        bad[np.flatnonzero(open_)[~fits]] = True
        sizes[open_] = size
        notes.append(f"block hashes of {size} tokens each")
    bad |= has & ~bad & (counts > -(-original // np.maximum(sizes, 1)))
    tally = Tally(file, options.strict)
    for place in np.flatnonzero(bad):
        tally.add(columns.line[place], "block hashes do not fit the prompt's length; the prompt counts as its own")
    notes += [f"dropped the hashes of {text}" for text in tally.texts()]
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
        notes.append(f"dropped all block hashes: input_scale {scale:g} makes their blocks no whole number of tokens")
        return [None] * len(hashes), [0] * len(hashes)
    whole = scaled.astype(np.int64)
    blocks = (-(-inputs // np.maximum(whole, 1))).tolist()
    return [None if h is None else h[:n] for h, n in zip(hashes, blocks, strict=True)], whole.tolist()


def _token_ids(
    ids: Sequence[tuple[int, ...] | None], scale: float, name: str, notes: list[str]
) -> Sequence[tuple[int, ...] | None]:
    if scale == 1.0 or not any(ids):
        return ids
    notes.append(f"dropped all {name}: they cannot be scaled with their lengths")
    return [None] * len(ids)
