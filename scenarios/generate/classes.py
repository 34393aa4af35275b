"""The classes of a generated workload, merged into one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from scenarios.generate.arrivals import draw_arrivals, expected_arrivals, variation
from scenarios.generate.copula import draw_outputs
from scenarios.generate.lengths import draw_lengths
from scenarios.generate.prefixes import contents, draw_groups
from scenarios.schema.workload import MOST_REQUESTS, ArrivalConfig, ClassConfig, GeneratedWorkload
from scenarios.streams import stream
from simulator.errors import InputError
from simulator.request import PromptContent
from simulator.workload import Floats, Ints, Workload


def generate(config: GeneratedWorkload, seed: int) -> Workload:
    """The workload that `config` describes, drawn with `seed` (0 or more): equal arguments, equal bits.

    Arrival times count from the start of the generator. The first requests of a class stay the same when `requests`
    or `duration_s` grows, when its lengths change, and when other classes come, go or change (as long as they do
    not share its arrivals). Raises InputError for a seed below 0 and for more than MOST_REQUESTS requests.
    """
    classes = config.all_classes()
    time_s, class_index = _arrivals(config, classes, seed)
    count = len(time_s)
    input_tokens, output_tokens, max_tokens, priority = (np.zeros(count, dtype=np.int64) for _ in range(4))
    notes = []
    content: list[PromptContent | None] | None = None
    for index, entry in enumerate(classes):
        rows = np.flatnonzero(class_index == index)
        inputs = draw_lengths(entry.input, stream(seed, entry.name, "input"), len(rows))
        output, cap, cut = _outputs(entry, inputs, config.max_tokens, seed)
        input_tokens[rows] = inputs
        output_tokens[rows] = output
        max_tokens[rows] = cap
        priority[rows] = entry.priority
        if entry.prefix is not None:
            input_tokens[rows] += entry.prefix.tokens
            groups = draw_groups(entry.prefix, stream(seed, entry.name, "prefix"), len(rows))
            content = [None] * count if content is None else content
            for row, shared in zip(rows.tolist(), contents(entry.prefix, entry.name, groups), strict=True):
                content[row] = shared
        if cut:
            notes.append(f"class {entry.name}: {cut} of {len(rows)} outputs cut at max_tokens {cap}")
    return Workload(
        time_s,
        input_tokens,
        output_tokens,
        max_tokens,
        priority,
        class_index,
        class_names=tuple(entry.name for entry in classes),
        content=content,
        notes=tuple(notes),
    )


def _outputs(entry: ClassConfig, inputs: Ints, workload_cap: int | None, seed: int) -> tuple[Ints, int, int]:
    """Output lengths, the cap that the client sends with each, and how many the cap cut."""
    output = draw_outputs(entry.output, entry.input, inputs, entry.corr, _purposes(seed, entry.name))
    cap = entry.max_tokens or workload_cap
    if cap is None:
        return output, entry.output.largest or int(output.max(initial=1)), 0
    cut = int(np.count_nonzero(output > cap))
    return np.minimum(output, cap), cap, cut


@dataclass(frozen=True, slots=True)
class _Source:
    """One arrival process and the classes that its requests go to, each with its share."""

    arrival: ArrivalConfig
    owner: str  # the class's name; empty for the workload's own process
    classes: tuple[int, ...]
    shares: tuple[float, ...]


def _sources(config: GeneratedWorkload, classes: Sequence[ClassConfig]) -> list[_Source]:
    sources = [
        _Source(entry.arrival, entry.name, (index,), (1.0,))
        for index, entry in enumerate(classes)
        if entry.arrival is not None
    ]
    if config.arrival is not None:
        sharing = [(index, entry) for index, entry in enumerate(classes) if entry.arrival is None]
        shares = tuple(1.0 if entry.share is None else entry.share for _, entry in sharing)
        sources.append(_Source(config.arrival, "", tuple(index for index, _ in sharing), shares))
    return sources


def _arrivals(config: GeneratedWorkload, classes: Sequence[ClassConfig], seed: int) -> tuple[Floats, Ints]:
    """Arrival times of all classes, ascending (ties in the order of the classes), and the class of each."""
    sources = _sources(config, classes)
    if config.duration_s is not None:
        expected = sum(expected_arrivals(source.arrival, config.duration_s) for source in sources)
        if expected > MOST_REQUESTS:
            raise _too_many(config.duration_s, f"about {expected:.3g}")
        time_s, class_index = _merged(sources, len(classes), seed, config.duration_s, MOST_REQUESTS + 1)
        if len(time_s) > MOST_REQUESTS:
            raise _too_many(config.duration_s, f"at least {len(time_s)}")
        return time_s, class_index
    assert config.requests is not None, "the validator let a workload without an end pass"
    spread = max(variation(source.arrival) for source in sources)
    enough = config.requests + 4.0 * spread * math.sqrt(config.requests) + 8.0
    while True:
        time_s, class_index = _merged(sources, len(classes), seed, _time_of(enough, sources), config.requests)
        if len(time_s) >= config.requests:
            return time_s[: config.requests], class_index[: config.requests]
        enough *= 1.5  # fewer came than expected; those that came stay what they are


def _too_many(duration_s: float, count: str) -> InputError:
    return InputError(
        f"duration_s {duration_s:g} at these rates makes {count} requests, at most {MOST_REQUESTS} are allowed"
    )


def _time_of(count: float, sources: list[_Source]) -> float:
    """The time by which `count` arrivals are expected, to a thousandth."""

    def expected(until_s: float) -> float:
        return sum(expected_arrivals(source.arrival, until_s) for source in sources)

    late = 1.0
    while expected(late) < count:
        late *= 2.0
    early = 0.0
    while late - early > 1e-3 * late:
        middle = 0.5 * (early + late)
        early, late = (middle, late) if expected(middle) < count else (early, middle)
    return late


def _merged(sources: list[_Source], num_classes: int, seed: int, until_s: float, most: int) -> tuple[Floats, Ints]:
    """The arrivals in [0, until_s), of each source at most the first `most`, and the class of each."""
    times: list[Floats] = [np.empty(0)] * num_classes
    for source in sources:
        drawn = draw_arrivals(source.arrival, _purposes(seed, source.owner), until_s, most)
        for index, part in zip(source.classes, _dealt(drawn, source, seed), strict=True):
            times[index] = part
    time_s = np.concatenate(times)
    class_index = np.repeat(np.arange(num_classes, dtype=np.int64), [len(part) for part in times])
    order = np.argsort(time_s, kind="stable")
    return time_s[order], class_index[order]


def _dealt(time_s: Floats, source: _Source, seed: int) -> list[Floats]:
    """The arrivals of a source dealt to its classes, each by an independent draw."""
    if len(source.classes) == 1:
        return [time_s]
    edges = np.cumsum(source.shares)
    uniform = stream(seed, source.owner, "class").random(len(time_s))
    hand = np.searchsorted(edges[:-1] / edges[-1], uniform, side="right")
    return [time_s[hand == place] for place in range(len(source.classes))]


def _purposes(seed: int, owner: str) -> Callable[[str], np.random.Generator]:
    return lambda purpose: stream(seed, owner, purpose)
