"""Random cases for schedulers that cannot be run here: a reference from their sources, and our policy beside it.

All times are exact in binary: a step lasts `STEP_S` and `TOKEN_S` a token, and arrivals are multiples of `TOKEN_S`.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simulator.memory.blocks import BlockLedger, BlockManager
from simulator.plan import Policy
from simulator.simulate import simulate
from simulator.timing.formula_cost import Linear
from tests.columns import workload_of
from tests.laws.scenarios import Memory

STEP_S = 0.25
TOKEN_S = 2.0**-10


class Asked(NamedTuple):
    """A request: when it arrives, and what it asks for. `answer` is what it gets."""

    arrival_s: float
    input_tokens: int
    max_tokens: int
    answer: int


class Told(NamedTuple):
    """What a scheduler did in a step."""

    start_s: float
    scheduled: dict[str, int]
    preempted: list[str]
    finished: list[str]
    waiting: list[str]
    used_blocks: int


@dataclass(frozen=True, slots=True)
class ReferenceCase:
    """The settings of a system under its own names, the usable KV blocks, and the requests in order of arrival."""

    seed: int
    config: dict[str, Any]
    num_blocks: int
    block_size: int
    requests: tuple[Asked, ...]


@dataclass(slots=True)
class Clock:
    """The time of a reference, and the requests that have not arrived."""

    case: ReferenceCase
    now_s: float = 0.0
    _next: int = field(default=0)

    def run(self, tokens: int) -> Iterator[tuple[str, int, int, int]]:
        """Let a step of so many tokens pass; the requests that arrive by its end, by id."""
        self.now_s = self.end_of(tokens)
        return self._arrived()

    def end_of(self, tokens: int) -> float:
        """When a step of so many tokens ends that begins now."""
        return self.now_s + STEP_S + TOKEN_S * tokens

    def wait(self, *, idle: bool) -> Iterator[tuple[str, int, int, int]]:
        """The requests that have arrived by now, or where there is nothing else to do, by the next arrival."""
        if idle and self._next < len(self.case.requests):
            self.now_s = max(self.now_s, self.case.requests[self._next].arrival_s)
        return self._arrived()

    def _arrived(self) -> Iterator[tuple[str, int, int, int]]:
        requests = self.case.requests
        while self._next < len(requests) and requests[self._next].arrival_s <= self.now_s:
            request = requests[self._next]
            self._next += 1
            yield str(self._next - 1), request.input_tokens, request.max_tokens, request.answer


def random_requests(rng: random.Random, *, longest_prompt: int) -> tuple[Asked, ...]:
    """Up to 40 requests, all at once, in bursts or spread out; most end before their `max_tokens`."""
    count = rng.choice([1, 2, 5, 10, 20, 40])
    prompts = rng.choice([(1, 8), (1, 30), (10, 90), (1, 90)])
    outputs = rng.choice([(1, 3), (1, 12), (1, 40), (20, 60)])
    gaps = rng.choice([(0,), (0, 0, 1), (0, 1, 3), (0, 0, 0, 20), (1, 4, 12, 60)])
    spare = rng.choice([0, 0, 3, 50])
    ticks = 0
    requests = []
    for _ in range(count):
        ticks += round(rng.choice(gaps) * rng.random() * STEP_S / TOKEN_S)
        prompt = min(rng.randint(*prompts), longest_prompt)
        answer = rng.randint(*outputs)
        requests.append(Asked(ticks * TOKEN_S, prompt, answer + rng.randint(0, spare), answer))
    return tuple(requests)


def random_blocks(rng: random.Random, requests: tuple[Asked, ...], block_size: int, slots: int) -> int:
    """Usable blocks: enough for the longest request alone, mostly too few for a full batch."""
    owned = sorted(-(-(r.input_tokens + r.max_tokens) // block_size) for r in requests)
    share = rng.choice([0.0, 0.0, 0.2, 0.3, 0.4, 0.6, 1.0])
    return max(owned[-1], int(share * sum(owned[-slots:]))) + rng.choice([0, 0, 1, 2])


def ours(case: ReferenceCase, policy: Policy) -> list[Told]:
    """What our policy does; every other case without fast-forward, every third with blocks by id."""
    requests = case.requests
    rows = [(r.arrival_s, r.input_tokens, r.answer, r.max_tokens) for r in requests]
    workload = workload_of(*zip(*rows, strict=True))
    run = simulate(
        workload,
        make_policy=lambda: policy,
        kv=Memory(case.num_blocks + 1, case.block_size),
        cost=Linear(STEP_S, TOKEN_S, 0.0),
        make_blocks=BlockManager if case.seed % 3 == 0 else BlockLedger,
        fast_forward=case.seed % 2 == 0,
        log_decisions=True,
    )
    assert run.decisions is not None
    return [
        Told(
            step["t_start_s"],
            step["scheduled"],
            [*step.get("preempted_before", []), *step["preempted"]],
            sorted(step["finished"]),
            step["waiting"],
            case.num_blocks - step["num_free_blocks"],
        )
        for step in run.decisions
    ]


def first_difference(mine: list[Told], theirs: list[Told], fields: tuple[str, ...]) -> str | None:
    """Where the two part in one of these fields, in words; None if they never do."""
    for step, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        for name in fields:
            if getattr(a, name) != getattr(b, name):
                return f"step {step}, {name}: ours {getattr(a, name)}, reference {getattr(b, name)}"
    return None if len(mine) == len(theirs) else f"{len(mine)} steps, reference {len(theirs)}"
