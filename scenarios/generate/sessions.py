"""What is drawn of a request: token counts, times, images; and the sessions that follow an arrival."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from scenarios import random_draws
from scenarios.random_draws import stream
from scenarios.schema.classes import MOST_TURNS, CountConfig, ImagesConfig, SessionConfig
from scenarios.schema.distributions import (
    Empirical,
    ExponentialTime,
    Fixed,
    LengthConfig,
    LogNormal,
    LogNormalPareto,
    LogNormalTime,
    Normal,
    TimeConfig,
    Uniform,
    UniformTime,
)
from scenarios.schema.workload import ClassConfig
from simulator.request import Image, PromptContent
from simulator.workload import Floats, Ints, Workload

# Token counts, times and images drawn from their distributions; outputs whose ranks go with those of the inputs.
#
# Both lengths of a request are the inverse CDFs of uniform numbers. If these numbers are the CDFs of two normal
# variables with the correlation 2 sin(pi rho / 6), the rank correlation (Spearman's) of the lengths is rho,
# whatever their distributions (Kruskal, Ordinal measures of association, JASA 53 (1958) 814-861). Rounding to whole
# tokens makes ties, which weaken it where lengths have few values.

_PIECE = 1 << 17  # lengths that are worked out together
_BELOW_ONE = np.nextafter(1.0, 0.0)


def draw_lengths(config: LengthConfig, rng: np.random.Generator, count: int) -> Ints:
    """`count` lengths in tokens, at least 1 and within the distribution's bounds.

    Each length is the inverse CDF, cut at the bounds, of one uniform number: so the first k of n lengths are the
    same for every n, and with another median or bound the same requests are the long ones (common random numbers).
    Lengths that are equally likely are drawn as whole numbers.
    """
    if isinstance(config, Uniform):
        return rng.integers(config.min, config.max, size=count, endpoint=True)
    if isinstance(config, Empirical) and config.quantiles is None:
        kept = np.array(config.kept_values(), dtype=np.int64)
        return kept[rng.integers(0, len(kept), size=count)]
    lengths = np.empty(count, dtype=np.int64)
    for start in range(0, count, _PIECE):
        piece = lengths[start : start + _PIECE]
        piece[:] = lengths_at(config, rng.random(len(piece)))
    return lengths


def lengths_at(config: LengthConfig, uniform: Floats) -> Ints:
    """The inverse CDF of the lengths, cut at the bounds, at each of the uniform numbers."""
    if isinstance(config, Fixed):
        return np.full(len(uniform), config.value, dtype=np.int64)
    if isinstance(config, Uniform):
        return config.min + _place(uniform, config.max - config.min + 1)
    if isinstance(config, Empirical) and config.quantiles is None:
        kept = np.sort(np.array(config.kept_values(), dtype=np.int64))
        return kept[_place(uniform, len(kept))]
    tokens = _log_normal_pareto(config, uniform) if isinstance(config, LogNormalPareto) else _cut(config, uniform)
    # the cut leaves nothing beyond the bounds but a last bit
    return np.clip(np.rint(tokens), config.lowest, config.highest).astype(np.int64)


def _place(uniform: Floats, count: int) -> Ints:
    """Each uniform number as one of `count` equal parts, from 0."""
    return np.minimum((uniform * count).astype(np.int64), count - 1)


def _cut(config: Normal | LogNormal | Empirical, uniform: Floats) -> Floats:
    """Quantiles of the distribution given that it lies within its bounds."""
    low, high = config.limits()
    probability = np.minimum(low + (high - low) * uniform, _BELOW_ONE)
    if isinstance(config, Normal):
        return config.mean + config.sd * random_draws.inverse_cdf(probability)
    if isinstance(config, LogNormal):
        mu, sigma = config.mu_sigma()
        return np.exp(mu + sigma * random_draws.inverse_cdf(probability))
    if isinstance(config, Empirical):
        return np.interp(probability, *config.points())
    assert_never(config)


def _log_normal_pareto(config: LogNormalPareto, uniform: Floats) -> Floats:
    """The lower 1 - tail_share of the uniform numbers give the body, the rest the tail: x = x0 (1 - u)^(-1/alpha)."""
    mu, sigma = config.mu_sigma()
    low, high = config.body_limits()
    body_share = 1.0 - config.tail_share
    in_tail = uniform >= body_share
    tokens = np.empty_like(uniform)
    body = uniform[~in_tail] / body_share
    tokens[~in_tail] = np.exp(mu + sigma * random_draws.inverse_cdf(np.minimum(low + (high - low) * body, _BELOW_ONE)))
    tail = (uniform[in_tail] - body_share) / config.tail_share
    tokens[in_tail] = config.threshold * (1.0 - config.tail_limit() * tail) ** (-1.0 / config.alpha)
    return tokens


def draw_outputs(
    output: LengthConfig,
    inputs: LengthConfig,
    input_tokens: Ints,
    corr: float,
    stream: Callable[[str], np.random.Generator],
) -> Ints:
    """An output length for each input, with the rank correlation `corr`; with 0 those of `draw_lengths`.

    `input_tokens` are what `draw_lengths` made from the stream "input": none of them moves.
    """
    count = len(input_tokens)
    if corr == 0:
        return draw_lengths(output, stream("output"), count)
    normal_corr = 2.0 * math.sin(math.pi * corr / 6.0)
    own = random_draws.inverse_cdf(_inside(stream("output").random(count)))
    given = random_draws.inverse_cdf(_inside(_ranks(inputs, input_tokens, stream)))
    joint = normal_corr * given + math.sqrt(max(0.0, 1.0 - normal_corr * normal_corr)) * own
    return lengths_at(output, random_draws.cdf_of(joint))


def _ranks(config: LengthConfig, tokens: Ints, stream: Callable[[str], np.random.Generator]) -> Floats:
    """Uniform numbers in the order of the lengths: those that made them; for lengths drawn as whole numbers, others."""
    if isinstance(config, Uniform):
        return (tokens - config.min + stream("input ties").random(len(tokens))) / (config.max - config.min + 1)
    if isinstance(config, Empirical) and config.quantiles is None:
        values = np.sort(np.array(config.kept_values(), dtype=np.int64))
        below, upto = np.searchsorted(values, tokens, "left"), np.searchsorted(values, tokens, "right")
        ranks: Floats = (below + (upto - below) * stream("input ties").random(len(tokens))) / len(values)
        return ranks
    return stream("input").random(len(tokens))


def _inside(uniform: Floats) -> Floats:
    """Raise 0 to the least number above it: 0 is the CDF of no normal variable."""
    return np.maximum(uniform, 2.0**-54)


# Times drawn from a distribution.


def draw_times(config: TimeConfig, rng: np.random.Generator, count: int) -> Floats:
    """`count` times in seconds, each the inverse CDF of a uniform number: the first k are the same for all counts."""
    if isinstance(config, (int, float)):
        return np.full(count, float(config))
    uniform = rng.random(count)
    if isinstance(config, ExponentialTime):
        return -np.log1p(-uniform) * config.mean_s
    if isinstance(config, UniformTime):
        return config.min_s + (config.max_s - config.min_s) * uniform
    if isinstance(config, LogNormalTime):
        z = random_draws.inverse_cdf(np.clip(uniform, 1e-300, _BELOW_ONE))
        times: Floats = config.median_s * np.exp(config.sigma * z)
        return times
    assert_never(config)


# Images of a class's requests, drawn.


def draw_images(
    config: ImagesConfig, class_name: str, behind: int, count: int, stream: Callable[[str], np.random.Generator]
) -> list[tuple[Image, ...]]:
    """The images of each of `count` prompts, from token `behind` on. More prompts never change the first ones."""
    with_any = stream("images").random(count) < config.share
    number = config.count
    counts = np.full(count, number) if isinstance(number, int) else draw_lengths(number, stream("image_count"), count)
    counts = np.where(with_any, counts, 0)
    total = int(counts.sum())
    if config.different is None:
        sizes = draw_lengths(config.tokens, stream("image_tokens"), total)
        which = np.arange(total)
    else:
        which = stream("image").integers(config.different, size=total)
        sizes = draw_lengths(config.tokens, stream("image_tokens"), config.different)[which]
    entries = iter(zip(which.tolist(), sizes.tolist(), strict=True))
    found = []
    for images in counts.tolist():
        at, mine = behind, []
        for _ in range(images):
            name, tokens = next(entries)
            mine.append(Image(f"{class_name}-{name + 1}", at, tokens))
            at += tokens
        found.append(tuple(mine))
    return found


Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Chains:
    """The requests of all chains, a row each. `place` is that in the chain, from 0; `number` that of the chain among
    those of its class. `delay_s` is the time from the answer before; of a chain's first, `pause_s` of its arrival.
    `after_tool` marks requests that bring a tool's result.
    """

    time_s: Floats
    class_index: Ints
    place: Ints
    number: Ints
    delay_s: Floats
    after_tool: Bools

    @property
    def after_row(self) -> Ints:
        """The row whose answer a row waits for; -1 for the first of a chain."""
        return np.where(self.place == 0, -1, np.arange(len(self.place)) - 1)


def chains(classes: Sequence[ClassConfig], seed: int, time_s: Floats, class_index: Ints, pause_s: Floats) -> Chains:
    """Draw the chains that begin at `time_s`; `class_index` is their class, `pause_s` the first request's `delay_s`."""
    count = np.ones(len(time_s), dtype=np.int64)
    number = np.zeros(len(time_s), dtype=np.int64)
    later: dict[int, tuple[Floats, Bools]] = {}
    for index, entry in enumerate(classes):
        mine = np.flatnonzero(class_index == index)
        number[mine] = np.arange(len(mine))
        if entry.session is not None:
            count[mine], *later[index] = _requests(entry.name, entry.session, seed, len(mine))  # type: ignore[assignment] # a tuple of two
    begun = np.repeat(np.arange(len(time_s)), count)
    place = np.arange(len(begun)) - np.repeat(np.cumsum(count) - count, count)
    delay_s, after_tool = np.zeros(len(begun)), np.zeros(len(begun), dtype=np.bool_)
    for index, (delays, tools) in later.items():
        mine = np.flatnonzero(class_index[begun] == index)
        delay_s[mine], after_tool[mine] = delays, tools
    first = place == 0
    delay_s[first] = pause_s
    return Chains(time_s[begun], class_index[begun], place, number[begun], delay_s, after_tool)


def _requests(name: str, session: SessionConfig, seed: int, sessions: int) -> tuple[Ints, Floats, Bools]:
    """Requests of each session; of each request the time since the last answer, and whether a tool ran in it."""
    turns = draw_counts(session.turns, stream(seed, name, "turns"), sessions)
    steps = draw_counts(session.steps, stream(seed, name, "steps"), int(turns.sum()))  # of each turn
    begins = np.cumsum(steps) - steps
    total = int(steps.sum())
    after_tool = np.ones(total, dtype=np.bool_)
    after_tool[begins] = False
    delay_s = draw_times(session.tool_time_s, stream(seed, name, "tool_time"), total)
    delay_s[begins] = draw_times(session.think_time_s, stream(seed, name, "turn_pause"), len(steps))
    counts = np.add.reduceat(steps, np.cumsum(turns) - turns) if sessions else turns
    return counts, delay_s, after_tool


def draw_counts(config: CountConfig, rng: np.random.Generator, count: int) -> Ints:
    """`count` whole numbers from 1 to MOST_TURNS: the first k are the same for all counts."""
    if isinstance(config, int):
        return np.full(count, config, dtype=np.int64)
    return np.minimum(draw_lengths(config, rng, count), MOST_TURNS)


def with_sessions(
    workload: Workload, drawn: Chains, classes: Sequence[ClassConfig], seed: int
) -> tuple[Workload, Bools]:
    """The workload of these chains, `input_tokens` being new tokens so far: prompts that grow, names, who follows whom.

    Requests of a class without sessions are named by class and number. Also which requests bring a tool's result.
    """
    new_tokens = workload.input_tokens.copy()
    shared = [0 if entry.prefix is None else entry.prefix.tokens for entry in classes]
    for index, entry in enumerate(classes):
        if entry.session is not None and entry.session.tool_tokens is not None:
            mine = np.flatnonzero(drawn.class_index == index)
            tokens = draw_lengths(entry.session.tool_tokens, stream(seed, entry.name, "tool_tokens"), len(mine))
            new_tokens[mine] = np.where(drawn.after_tool[mine], tokens + shared[index], new_tokens[mine])
    growing = np.array([e.session is not None and e.session.context == "accumulate" for e in classes], dtype=np.bool_)
    again = growing[drawn.class_index] & (drawn.place > 0)  # what a conversation begins with, it has once
    new_tokens -= np.where(again, np.array(shared, dtype=np.int64)[drawn.class_index], 0)
    answers = np.minimum(workload.output_tokens, workload.max_tokens)
    prompts = _prompts(new_tokens, answers, drawn.place, growing[drawn.class_index])
    is_session = np.array([entry.session is not None for entry in classes], dtype=np.bool_)[drawn.class_index]
    sessions = [
        f"{classes[index].name}-{number}" if within else None
        for index, number, within in zip(
            drawn.class_index.tolist(), drawn.number.tolist(), is_session.tolist(), strict=True
        )
    ]
    places = (drawn.place + 1).tolist()
    names = [
        f"{classes[index].name}-{number}" if session is None else f"{session}.{place}"
        for index, number, session, place in zip(
            drawn.class_index.tolist(), drawn.number.tolist(), sessions, places, strict=True
        )
    ]
    whole = replace(
        workload,
        input_tokens=prompts,
        request_ids=names,
        session_ids=sessions if is_session.any() else None,
        content=_contents(workload, drawn, sessions, growing[drawn.class_index]),
        after_row=drawn.after_row,
        delay_s=drawn.delay_s,
        turns=drawn.place + 1,
        task_ids=_tasks(drawn, sessions, classes),
    )
    kept = _kept(whole, prompts + answers, drawn.place, classes)
    return (whole, drawn.after_tool) if kept is None else (cut(whole, kept), drawn.after_tool[kept])


def _tasks(drawn: Chains, sessions: Sequence[str | None], classes: Sequence[ClassConfig]) -> list[str | None] | None:
    """The task of each request: a turn of a session whose turns have steps."""
    has_tasks = np.array([e.session is not None and e.session.steps != 1 for e in classes], dtype=np.bool_)
    if not has_tasks.any():
        return None
    begun = np.cumsum(~drawn.after_tool)
    turn = (begun - begun[np.arange(len(begun)) - drawn.place] + 1).tolist()
    mine = has_tasks[drawn.class_index].tolist()
    return [f"{name}:{at}" if has else None for name, at, has in zip(sessions, turn, mine, strict=True)]


def _prompts(new_tokens: Ints, answers: Ints, place: Ints, grows: Bools) -> Ints:
    """Prompt lengths: of a growing chain all new tokens up to here and all answers before."""
    begins = np.flatnonzero(place == 0)
    sizes = np.diff(begins, append=len(place))
    gained = np.cumsum(new_tokens + answers)
    before = np.repeat(gained[begins] - (new_tokens + answers)[begins], sizes)
    return np.where(grows, gained - answers - before, new_tokens)


def _contents(
    workload: Workload, drawn: Chains, sessions: Sequence[str | None], grows: Bools
) -> Sequence[PromptContent | None] | None:
    """Return each prompt's content for a prefix cache.

    A session shares what its first prompt shares; a growing one is one sequence.
    """
    if workload.content is None and not grows.any():
        return None
    given = workload.content or [None] * len(sessions)
    firsts = (np.arange(len(drawn.place)) - drawn.place).tolist()
    found: list[PromptContent | None] = []
    for row, (first, session, growing) in enumerate(zip(firsts, sessions, grows.tolist(), strict=True)):
        content = given[first]
        if growing:  # one object a session
            content = found[first] if first < row else replace(content or PromptContent(), conversation=session)
        found.append(content)
    return found


def _kept(workload: Workload, context: Ints, place: Ints, classes: Sequence[ClassConfig]) -> Ints | None:
    """The requests but those that their session's limit of context leaves out, and those after them; None: all."""
    limits = np.array(
        [2**62 if e.session is None else e.session.max_context_tokens or 2**62 for e in classes], dtype=np.int64
    )
    beyond = (context > limits[workload.class_index]) & (place > 0)
    if not beyond.any():
        return None
    begins = np.flatnonzero(place == 0)
    sizes = np.diff(begins, append=len(place))
    so_far = np.cumsum(beyond)
    return np.flatnonzero(so_far == np.repeat(so_far[begins], sizes))


def cut(workload: Workload, rows: Ints) -> Workload:
    """These rows alone, ascending; where a row is left out, so are those that follow it in its chain."""

    def few(column: Sequence[object] | None) -> list[object] | None:
        return None if column is None else [column[row] for row in rows.tolist()]

    rank = np.full(len(workload) + 1, -1)
    rank[rows] = np.arange(len(rows))  # of -1, the last place, it stays -1
    also = None if workload.also_after is None else [workload.also_after[row] for row in rows.tolist()]
    return replace(
        workload,
        **{name: getattr(workload, name)[rows] for name in ("arrival_s", "input_tokens", "output_tokens")},
        **{name: getattr(workload, name)[rows] for name in ("max_tokens", "priority", "class_index")},
        request_ids=few(workload.request_ids),  # type: ignore[arg-type] # the same items
        session_ids=few(workload.session_ids),  # type: ignore[arg-type] # the same items
        images=few(workload.images),  # type: ignore[arg-type] # the same items
        lora=few(workload.lora),  # type: ignore[arg-type] # the same items
        content=few(workload.content),  # type: ignore[arg-type] # the same items
        task_ids=few(workload.task_ids),  # type: ignore[arg-type] # the same items
        after_row=None if workload.after_row is None else rank[workload.after_row[rows]],
        also_after=None if also is None else [tuple(rank[list(each)].tolist()) for each in also],
        delay_s=None if workload.delay_s is None else workload.delay_s[rows],
        turns=None if workload.turns is None else workload.turns[rows],
    )
