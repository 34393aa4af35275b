"""The classes of a generated workload: the requests of each drawn, and all merged into one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from scenarios.generate.arrivals import draw_arrivals, expected_arrivals
from scenarios.generate.sessions import chains, cut, draw_images, draw_lengths, draw_outputs, draw_times, with_sessions
from scenarios.random_draws import stream
from scenarios.schema.arrival import Arrival, MeanRate
from scenarios.schema.arrivals.closed_loop import ClosedLoop as ClosedLoopConfig
from scenarios.schema.classes import Prefix
from scenarios.schema.workload import MOST_REQUESTS, ClassConfig, GeneratedWorkload
from simulator.errors import InputError
from simulator.request import Image, PromptContent
from simulator.workload import Client, ClosedLoop, Floats, Ints, Workload

if TYPE_CHECKING:
    from scenarios.schema.classes import LoraConfig
    from scenarios.schema.client import AnyArrival, ClientConfig


# The requests of a workload: lengths, caps and content of each, and the sessions that some begin.

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


def _loras(entry: ClassConfig, lora: LoraConfig, seed: int, count: int) -> list[str]:
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


_LEAST_SESSIONS = 64  # drawn at once


def generate(config: GeneratedWorkload, seed: int) -> Workload:
    """The workload that `config` describes, drawn with `seed` (0 or more): equal arguments, equal bits.

    Arrival times count from the start of the generator. The first requests of a class stay the same when `requests`
    or `duration_s` grows, when its lengths change, and when other classes come, go or change (as long as they do
    not share its arrivals). Raises InputError for a seed below 0 and for more than MOST_REQUESTS requests.
    """
    config = config.plain()
    if isinstance(config.arrival, MeanRate):
        config = at_mean_rate(config, config.arrival.rate)
    classes = config.all_classes()
    sources, loops = _sources(config, classes)
    time_s, class_index = _arrivals(config, classes, sources, seed)
    workload = _first_requests(config, classes, seed, time_s, class_index)
    if config.requests is not None and len(workload) > config.requests:
        workload = cut(workload, np.arange(config.requests))  # a session more than was asked for
    return replace(
        workload,
        loops=tuple(_closed_loop(config, classes, seed, *loop) for loop in loops),
        clients=_clients(config, classes, seed),
        until_s=math.inf if config.duration_s is None else config.duration_s,
    )


def _first_requests(
    config: GeneratedWorkload, classes: Sequence[ClassConfig], seed: int, time_s: Floats, class_index: Ints
) -> Workload:
    """The requests of these arrivals; of sessions no more than it takes to have `config.requests` of them.

    The first sessions are the same however many are drawn, where the caps do not depend on the longest output drawn.
    """
    caps = all(entry.max_tokens or config.max_tokens or entry.output.largest for entry in classes)
    few = len(time_s)
    if config.requests is not None and caps and any(entry.session is not None for entry in classes):
        few = min(few, max(_LEAST_SESSIONS, few // 64))
    while True:
        workload = draw_requests(classes, config.max_tokens, seed, time_s[:few], class_index[:few])
        if few == len(time_s) or len(workload) >= (config.requests or 0):
            return workload
        few = min(len(time_s), 2 * few)


def mean_rate(config: GeneratedWorkload) -> float | None:
    """Requests per second that the arrival processes make in expectation, over all of the workload.

    A session counts once, by its first request. None where clients issue all requests after answers.
    """
    config = config.plain()
    sources, _ = _sources(config, config.all_classes())
    if not sources:
        return None
    end_s = _time_of(config.requests, sources) if config.requests is not None else config.duration_s
    assert end_s is not None, "the validator let a workload without an end pass"
    return _expected(sources, end_s) / end_s


def at_mean_rate(config: GeneratedWorkload, rate: float) -> GeneratedWorkload:
    """The workload with the rates of its classes multiplied by one factor, such that their mean is `rate`.

    Raises InputError where no class has a rate.
    """
    plain = config.model_copy(update={"arrival": config.shared})
    sources, _ = _sources(plain, plain.all_classes())
    end_s = config.duration_s if config.requests is None else config.requests / rate
    assert end_s is not None, "the validator let a workload without an end pass"
    expected = _expected(sources, end_s)
    if expected <= 0:
        what = f"workload.arrival.rate: no class has arrivals in {end_s:g} s that could be scaled"
        raise InputError(what, hint="closed loops have `concurrency` instead of a rate" if not sources else None)
    factor = rate * end_s / expected
    classes = tuple(
        entry if entry.arrival is None else entry.model_copy(update={"arrival": _denser(entry.arrival, factor)})
        for entry in plain.all_classes()
    )
    shared = None if plain.shared is None else _denser(plain.shared, factor)
    return plain.model_copy(update={"arrival": shared, "classes": classes, "preset": None, "rate": None})


def _denser(arrival: AnyArrival, factor: float) -> AnyArrival:
    if isinstance(arrival, ClosedLoopConfig):
        return arrival
    return arrival.model_copy(update={"rate": arrival.rate * factor})


def _closed_loop(
    config: GeneratedWorkload, classes: Sequence[ClassConfig], seed: int, loop: ClosedLoopConfig, shared: _Shared
) -> ClosedLoop:
    """Users and their pool, which is drawn as far as it is needed."""

    def draw(count: int) -> Workload:
        class_index = _dealt(count, shared, seed)
        pause_s = draw_times(loop.think_time_s, stream(seed, shared.owner, "think"), count)
        return draw_requests(classes, config.max_tokens, seed, np.zeros(count), class_index, pause_s)

    return ClosedLoop(loop.concurrency, draw, config.requests)


def _clients(config: GeneratedWorkload, classes: Sequence[ClassConfig], seed: int) -> tuple[Client, ...]:
    """Return the clients of each class; none where all wait for ever."""
    found = [entry.client or config.client for entry in classes]
    if not any(found):
        return ()
    return tuple(client_of(each, seed, entry.name) for each, entry in zip(found, classes, strict=True))


def client_of(config: ClientConfig | None, seed: int, class_name: str) -> Client:
    """Their timeouts and retries, with a random stream of the class's own."""
    if config is None:
        return Client()
    return Client(
        ttft_timeout_s=math.inf if config.ttft_timeout_s is None else config.ttft_timeout_s,
        timeout_s=math.inf if config.timeout_s is None else config.timeout_s,
        cancels=config.cancel,
        max_attempts=config.max_attempts,
        backoff_s=config.backoff_s,
        backoff_factor=config.backoff_factor,
        max_backoff_s=math.inf if config.max_backoff_s is None else config.max_backoff_s,
        jitter=config.jitter,
        stream=int(stream(seed, class_name, "backoff").integers(2**63)),
    )


@dataclass(frozen=True, slots=True)
class _Shared:
    """The classes that the requests of one arrival process go to, each with its share."""

    owner: str  # the class's name; empty for the workload's own process
    classes: tuple[int, ...]
    shares: tuple[float, ...]


_Source = tuple[Arrival, _Shared]
_Loop = tuple[ClosedLoopConfig, _Shared]


def _sources(config: GeneratedWorkload, classes: Sequence[ClassConfig]) -> tuple[list[_Source], list[_Loop]]:
    """The arrival processes whose times are drawn, and those whose requests wait for answers."""
    found = [
        (entry.arrival, _Shared(entry.name, (index,), (1.0,)))
        for index, entry in enumerate(classes)
        if entry.arrival is not None
    ]
    if config.shared is not None:
        sharing = [(index, entry) for index, entry in enumerate(classes) if entry.arrival is None]
        shares = tuple(1.0 if entry.share is None else entry.share for _, entry in sharing)
        found.append((config.shared, _Shared("", tuple(index for index, _ in sharing), shares)))
    loops = [(arrival, shared) for arrival, shared in found if isinstance(arrival, ClosedLoopConfig)]
    return [(arrival, shared) for arrival, shared in found if not isinstance(arrival, ClosedLoopConfig)], loops


def _arrivals(
    config: GeneratedWorkload, classes: Sequence[ClassConfig], sources: list[_Source], seed: int
) -> tuple[Floats, Ints]:
    """Arrival times of all classes, ascending (ties in the order of the classes), and the class of each."""
    if not sources:
        return np.empty(0), np.empty(0, dtype=np.int64)
    if config.duration_s is not None:
        expected = _expected(sources, config.duration_s)
        if expected > MOST_REQUESTS:
            raise _too_many(config.duration_s, f"about {expected:.3g}")
        time_s, class_index = _merged(sources, len(classes), seed, config.duration_s, MOST_REQUESTS + 1)
        if len(time_s) > MOST_REQUESTS:
            raise _too_many(config.duration_s, f"at least {len(time_s)}")
        return time_s, class_index
    assert config.requests is not None, "the validator let a workload without an end pass"
    spread = max(arrival.variation for arrival, _ in sources)
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

    late = 1.0
    while _expected(sources, late) < count:
        late *= 2.0
    early = 0.0
    while late - early > 1e-3 * late:
        middle = 0.5 * (early + late)
        early, late = (middle, late) if _expected(sources, middle) < count else (early, middle)
    return late


def _expected(sources: list[_Source], until_s: float) -> float:
    """The expected number of arrivals up to a time."""
    return sum(expected_arrivals(arrival, until_s) for arrival, _ in sources)


def _merged(sources: list[_Source], num_classes: int, seed: int, until_s: float, most: int) -> tuple[Floats, Ints]:
    """The arrivals in [0, until_s), of each source at most the first `most`, and the class of each."""
    times: list[Floats] = [np.empty(0)] * num_classes
    for arrival, shared in sources:
        drawn = draw_arrivals(arrival, _purposes(seed, shared.owner), until_s, most)
        if len(shared.classes) == 1:
            times[shared.classes[0]] = drawn
            continue
        hand = _dealt(len(drawn), shared, seed)
        for index in shared.classes:
            times[index] = drawn[hand == index]
    if num_classes == 1:
        return times[0], np.zeros(len(times[0]), dtype=np.int64)
    time_s = np.concatenate(times)
    class_index = np.repeat(np.arange(num_classes, dtype=np.int64), [len(part) for part in times])
    order = np.argsort(time_s, kind="stable")
    return time_s[order], class_index[order]


def _dealt(count: int, shared: _Shared, seed: int) -> Ints:
    """The class of each of the first `count` arrivals of a process, by an independent draw."""
    classes = np.array(shared.classes, dtype=np.int64)
    if len(classes) == 1:
        return np.full(count, classes[0])
    edges = np.cumsum(shared.shares)
    uniform = stream(seed, shared.owner, "class").random(count)
    return classes[np.searchsorted(edges[:-1] / edges[-1], uniform, side="right")]


def _purposes(seed: int, owner: str) -> Callable[[str], np.random.Generator]:
    return lambda purpose: stream(seed, owner, purpose)
