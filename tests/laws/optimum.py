"""The best that any schedule can do of a few small requests, by trying all: exact, and only for small cases.

A state is what each request has computed and got; a label is a time and a cost so far. From a label a schedule may take
any step (any requests, chunks of any length, within slots, tokens and memory, others thrown out of memory where it
lacks room), or wait for the next arrival. To wait longer, or to throw out more, helps nobody: the rest of a schedule
can be copied without. A label with a later time and a larger cost than another of its state leads to nothing better.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from itertools import combinations, product
from math import inf

from simulator.timing.cost import CostModel, StepShape

Own = tuple[int, int, bool]  # KV tokens in memory, tokens got, computing again after it was thrown out
State = tuple[Own, ...]
Gain = Callable[[int, int, float], float]
"""What a request's token costs a schedule: its row, how many it then has, when."""


@dataclass(frozen=True)
class Case:
    """Requests with arrivals, prompts and answers, and the limits of a server."""

    arrival_s: tuple[float, ...]
    lengths: tuple[tuple[int, int], ...]
    seqs: int
    tokens: int
    kv_tokens: int
    cost: CostModel


def least_sum(case: Case, gain: Gain, owed: Gain | None = None) -> float:
    """The least sum of the gains of all tokens.

    `owed` is what a request with so many tokens still adds to the sum at least, at the time given: to leave out labels
    that lead to nothing better than what is found.
    """
    final = tuple((0, answer, False) for _, answer in case.lengths)
    best = inf
    for now, cost, state, going_on in _labels(case, gain):
        if state == final:
            best = min(best, cost)
        elif owed is None or cost + sum(owed(row, own[1], now) for row, own in enumerate(state)) < best:
            going_on()
    return best


def least_end_s(case: Case) -> float:
    """The earliest time at which all are served."""
    final = tuple((0, answer, False) for _, answer in case.lengths)
    for now, _, state, going_on in _labels(case, lambda row, got, at: 0.0):
        if state == final:
            return now
        going_on()
    raise AssertionError("nothing fits")


def _labels(case: Case, gain: Gain) -> Iterator[tuple[float, float, State, Callable[[], None]]]:
    """Labels as time goes on, each of them with a function that goes on from it."""
    moves = cache(lambda state, here: list(_steps(case, state, here)))
    heap: list[tuple[float, float, State]] = [(min(case.arrival_s), 0.0, ((0, 0, False),) * len(case.lengths))]
    least: dict[tuple[State, int], float] = {}
    while heap:
        now, cost, state = heappop(heap)
        here = sum(1 << row for row, at in enumerate(case.arrival_s) if at <= now)
        if cost >= least.get((state, here), inf):
            continue
        least[state, here] = cost

        def going_on(now: float = now, cost: float = cost, state: State = state, here: int = here) -> None:
            later = [at for at in case.arrival_s if at > now]
            if later:
                heappush(heap, (min(later), cost, state))
            for seconds, after, got in moves(state, here):
                end = now + seconds
                heappush(heap, (end, cost + sum(gain(row, after[row][1], end) for row in got), after))

        yield now, cost, state, going_on


def _steps(case: Case, state: State, here: int) -> Iterator[tuple[float, State, tuple[int, ...]]]:
    """Every step: its seconds, the state after it, and the rows that got a token."""
    able = [row for row, (_, got, _) in enumerate(state) if here >> row & 1 and got < case.lengths[row][1]]
    for width in range(1, min(case.seqs, len(able)) + 1):
        for rows in combinations(able, width):
            left = [case.lengths[row][0] + state[row][1] - state[row][0] for row in rows]
            for chunks in product(*(range(1, most + 1) for most in left)):
                if sum(chunks) <= case.tokens:
                    yield from _computed(case, state, rows, chunks)


def _computed(
    case: Case, state: State, rows: tuple[int, ...], chunks: tuple[int, ...]
) -> Iterator[tuple[float, State, tuple[int, ...]]]:
    """The step that computes these chunks, once for each smallest set of others that has to leave memory."""
    decode, decode_context, prefill = [], 0, []
    after, got = list(state), []
    for row, chunk in zip(rows, chunks, strict=True):
        held, had, again = state[row]
        prompt, answer = case.lengths[row]
        context = held + chunk
        if had and not again:
            decode.append(context)
            decode_context += context
        else:
            prefill.append((chunk, held))
        if context == prompt + had:
            got.append(row)
            after[row] = (0, answer, False) if had + 1 == answer else (context, had + 1, False)
        else:
            after[row] = (context, had, again)
    needed = sum(state[row][0] + chunk for row, chunk in zip(rows, chunks, strict=True))
    if needed > case.kv_tokens:
        return
    shape = StepShape(
        len(decode),
        decode_context,
        len(prefill),
        sum(chunk for chunk, _ in prefill),
        sum(chunk + held for chunk, held in prefill),
        sum(chunk * held + chunk * (chunk + 1) // 2 for chunk, held in prefill),
        prefill_longest=max((chunk + held for chunk, held in prefill), default=0),
    )
    seconds = case.cost.step_s(shape)
    idle = [row for row, (held, _, _) in enumerate(state) if held and row not in rows]
    for victims in _smallest(state, idle, needed - case.kv_tokens):
        thrown = list(after)
        for row in victims:
            thrown[row] = (0, state[row][1], state[row][1] > 0)
        yield seconds, tuple(thrown), tuple(got)


def _smallest(state: State, idle: list[int], room: int) -> Iterator[tuple[int, ...]]:
    """The sets of idle requests, none within another, whose leaving makes room."""
    lacking = room + sum(state[row][0] for row in idle)
    found: list[set[int]] = []
    for width in range(len(idle) + 1):
        for victims in combinations(idle, width):
            if sum(state[row][0] for row in victims) >= lacking and not any(each <= set(victims) for each in found):
                found.append(set(victims))
                yield victims
