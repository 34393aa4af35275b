"""The requests of a workload: lengths, caps and content of each, and the sessions that some begin."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from scenarios.generate.images import draw_images
from scenarios.generate.lengths import draw_lengths, draw_outputs
from scenarios.generate.sessions import chains, with_sessions
from scenarios.schema.prefix import Prefix
from scenarios.schema.workload import ClassConfig
from scenarios.streams import stream
from simulator.request import Image, PromptContent
from simulator.workload import Floats, Ints, Workload

if TYPE_CHECKING:
    from scenarios.schema.lora import LoraConfig

_T = TypeVar("_T")


def draw_requests(
    classes: Sequence[ClassConfig],
    max_tokens: int | None,
    seed: int,
    time_s: Floats,
    class_index: Ints,
    pause_s: Floats | None = None,
) -> Workload:
    """The requests of the arrivals at `time_s`, those of each class drawn in order, and all that follow them.

    `max_tokens` is the cap of classes without one. `pause_s` are the think times before the arrivals of a closed loop.
    """
    drawn = None
    if pause_s is not None or any(entry.session is not None for entry in classes):
        pauses = np.zeros(len(time_s)) if pause_s is None else pause_s
        drawn = chains(classes, seed, time_s, class_index, pauses)
        time_s, class_index = drawn.time_s, drawn.class_index
    count = len(time_s)
    input_tokens, output_tokens, caps, priority = (np.zeros(count, dtype=np.int64) for _ in range(4))
    notes = []
    content: list[PromptContent | None] | None = None
    loras: list[str | None] | None = None
    images: list[tuple[Image, ...]] | None = None
    for index, entry in enumerate(classes):
        rows = np.flatnonzero(class_index == index)
        inputs = draw_lengths(entry.input, stream(seed, entry.name, "input"), len(rows))
        output, cap, cut = _outputs(entry, inputs, max_tokens, seed)
        input_tokens[rows] = inputs
        output_tokens[rows] = output
        caps[rows] = cap
        priority[rows] = entry.priority
        if entry.prefix is not None:
            input_tokens[rows] += entry.prefix.tokens
            groups = _popular(entry.prefix.groups, entry.prefix.zipf, stream(seed, entry.name, "prefix"), len(rows))
            content = content or [None] * count
            _fill(content, rows, _contents(entry.prefix, entry.name, groups))
        if entry.images is not None:
            behind = 0 if entry.prefix is None else entry.prefix.tokens
            purpose = partial(stream, seed, entry.name)
            images = images or [()] * count
            _fill(images, rows, draw_images(entry.images, entry.name, behind, len(rows), purpose))
            input_tokens[rows] += [sum(image.tokens for image in images[row]) for row in rows.tolist()]
        if entry.lora is not None:
            firsts = rows if drawn is None else rows[drawn.place[rows] == 0]
            loras = loras or [None] * count
            _fill(loras, firsts, _loras(entry, entry.lora, seed, len(firsts)))
        if cut:
            notes.append(f"class {entry.name}: {cut} of {len(rows)} outputs cut at max_tokens {cap}")
    workload = Workload(
        time_s,
        input_tokens,
        output_tokens,
        caps,
        priority,
        class_index,
        class_names=tuple(entry.name for entry in classes),
        content=content,
        lora=loras
        if loras is None or drawn is None
        else [loras[row] for row in (np.arange(count) - drawn.place).tolist()],
        images=images,
        notes=tuple(notes),
    )
    if drawn is None:
        return workload
    workload, after_tool = with_sessions(workload, drawn, classes, seed)
    if any(entry.session is not None and entry.session.subagents is not None for entry in classes):
        from scenarios.generate.subagents import with_subagents  # few workloads have them

        return with_subagents(workload, after_tool, classes, seed, max_tokens, draw_requests)
    return workload


def _outputs(entry: ClassConfig, inputs: Ints, workload_cap: int | None, seed: int) -> tuple[Ints, int, int]:
    """Output lengths, the cap that the client sends with each, and how many the cap cut."""
    output = draw_outputs(
        entry.output, entry.input, inputs, entry.corr, lambda purpose: stream(seed, entry.name, purpose)
    )
    cap = entry.max_tokens or workload_cap
    if cap is None:
        return output, entry.output.largest or int(output.max(initial=1)), 0
    cut = int(np.count_nonzero(output > cap))
    return np.minimum(output, cap), cap, cut


def _fill(column: list[_T], rows: Ints, values: Iterable[_T]) -> None:
    """Write the values of these rows."""
    for row, value in zip(rows.tolist(), values, strict=True):
        column[row] = value


def _loras(entry: ClassConfig, lora: "LoraConfig", seed: int, count: int) -> list[str]:
    """The adapters of so many sessions, or of requests that belong to none."""
    ranks = _popular(lora.adapters, lora.zipf, stream(seed, entry.name, "lora"), count)
    return [lora.adapter(entry.name, rank + 1) for rank in ranks.tolist()]


def _popular(choices: int, zipf: float, rng: np.random.Generator, count: int) -> Ints:
    """Return `count` choices, from 0, the most popular; choice k has a weight of 1 / (k + 1)^zipf."""
    if choices == 1:
        return np.zeros(count, dtype=np.int64)
    popularity = np.cumsum(np.arange(1, choices + 1, dtype=np.float64) ** -zipf)
    return np.searchsorted(popularity[:-1] / popularity[-1], rng.random(count), side="right")


def _contents(prefix: Prefix, class_name: str, groups: Ints) -> list[PromptContent]:
    """The content of each prompt: one object a text. Text k is called NAME-k, from 1."""
    name = prefix.name or class_name
    used, place = np.unique(groups, return_inverse=True)
    texts = [PromptContent(prefix_group=f"{name}-{group + 1}", prefix_tokens=prefix.tokens) for group in used.tolist()]
    return [texts[index] for index in place.tolist()]
