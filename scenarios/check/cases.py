"""Random scenarios that put a policy under pressure, and how one that breaks a law shrinks."""

import csv
import io
import json
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import accumulate
from typing import Any

import numpy as np

from simulator.plan import Policy
from simulator.policies import policy_parameters
from simulator.workload import Workload

# A random scenario in a form that shrinks well, and the same as the scenario that `batchlab run` takes.

# A model whose KV takes 256 bytes a token, so that blocks and GiB convert into each other exactly.
_MODEL = {
    "layers": 1, "hidden": 64, "intermediate": 64, "heads": 1, "kv_heads": 1, "vocab": 64,
    "max_model_len": 1_000_000, "dtype_bytes": 2, "kv_dtype_bytes": 2,
}  # fmt: skip
_BYTES_PER_TOKEN = 256


@dataclass(frozen=True, slots=True)
class RandomRequest:
    """A request: when it arrives, its lengths, its cap, its priority, its class."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    max_tokens: int
    priority: int = 0
    class_name: str = "default"


@dataclass(frozen=True, slots=True)
class Cost:
    """Step times, as `cost.kind: linear`."""

    base_s: float = 1.0
    per_token_s: float = 0.0
    per_context_token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RandomCase:
    """Requests sorted by arrival, the first at 0; a replica's blocks (vLLM's count); the policy's parameters."""

    requests: tuple[RandomRequest, ...]
    num_gpu_blocks: int
    block_size: int
    parameters: Mapping[str, object] = field(default_factory=dict)
    cost: Cost = Cost()
    num_host_blocks: int = 0
    swap_s_per_block: float | None = None  # None: the GPU's own link
    replicas: int = 1
    router: str = "round_robin"

    def workload(self) -> Workload:
        """Return the requests in columns."""
        columns: dict[str, Any] = {
            each.name: np.array([getattr(request, each.name) for request in self.requests], dtype=np.int64)
            for each in fields(RandomRequest)[1:-1]
        }
        arrival_s = np.array([request.arrival_s for request in self.requests], dtype=np.float64)
        names = tuple(sorted({request.class_name for request in self.requests}))
        classes = np.array([names.index(request.class_name) for request in self.requests], dtype=np.int64)
        return Workload(arrival_s=arrival_s, class_index=classes, class_names=names, **columns)

    def scenario(self, name: str, policy: str, trace: str) -> dict[str, Any]:
        """Return the scenario, with its requests in the file `trace`."""
        size = self.block_size
        hardware: dict[str, Any] = {"gpu": "h200", "num_gpu_blocks": self.num_gpu_blocks}
        if self.num_host_blocks:
            hardware["swap_space_gib"] = self.num_host_blocks * size * _BYTES_PER_TOKEN / 2**30
            if self.swap_s_per_block is not None:
                speed = size * _BYTES_PER_TOKEN / 1e9 / self.swap_s_per_block
                hardware["gpu"] = {"base": "h200", "host_link_gb_s": speed}
        found = {
            "name": name,
            "model": _MODEL,
            "hardware": hardware,
            "cost": {"kind": "linear", **asdict(self.cost)},
            "workload": {"trace": {"path": trace}},
            "engine": {"policy": policy, "block_size": size, **self.parameters},
        }
        return found if self.replicas == 1 else {**found, "replicas": self.replicas, "router": self.router}

    def trace(self) -> str:
        """Write the requests as a native trace, CSV."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        names = [each.name for each in fields(RandomRequest)]
        if all(request.class_name == "default" for request in self.requests):
            names.remove("class_name")
        writer.writerow(["arrival_time_s", *(name.replace("class_name", "class") for name in names[1:])])
        writer.writerows([getattr(request, name) for name in names] for request in self.requests)
        return out.getvalue()


def as_yaml(data: Mapping[str, Any]) -> str:
    """Write a scenario as YAML: a line for each key, and flow style within."""
    return "".join(f"{key}: {_flow(value)}\n" for key, value in data.items())


_WORD = re.compile(r"(?!(?:true|false|null|yes|no|on|off)$)[A-Za-z][\w./-]*", re.IGNORECASE)


def _flow(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str) and _WORD.fullmatch(value):
        return value
    return json.dumps(value)


# Scenarios of other sizes: what small prompts, short answers, short queues and one class cannot show.
#
# They are drawn from a stream of their own, so that the small scenarios of a seed stay what they are.

KINDS = ("as drawn",) * 9 + ("long prompts",) * 6 + ("late",) * 2 + ("crowd",) * 2 + ("long answers",)
"""Kinds of scenarios, as often as they are drawn."""

_PROMPT_FACTORS = (16, 128, 1024)  # 60 tokens become 960, 7,680, 61,440
_LATE = 10_000.0  # gaps of a second become hours
_CROWD = 40
_ANSWER_FACTOR = 10
_SCALED = ("max_num_batched_tokens", "long_prefill_token_threshold")


def enough_blocks(rng: random.Random, requests: tuple[RandomRequest, ...], size: int) -> int:
    """Enough blocks for the largest request, and up to all that the others hold. Now and then one less."""
    largest = max(-(-(r.input_tokens + r.max_tokens) // size) for r in requests)
    total = sum(-(-(r.input_tokens + r.output_tokens) // size) for r in requests)
    return max(1, largest + int(rng.choice([0.0, 0.05, 0.2, 0.5, 1.0]) * total) - rng.choice([0, 0, 0, 1]))


def widened(case: RandomCase, seed: int, index: int, fixed: Mapping[str, object]) -> RandomCase:
    """Return scenario `index` of a seed with longer prompts or answers, later arrivals, more requests, or as it is.

    A third of them have two classes. Keys in `fixed` stay as given.
    """
    rng = random.Random(f"{seed} {index} wide")
    kind = rng.choice(KINDS)
    if rng.random() < 1 / 3:
        named = tuple(replace(r, class_name=rng.choice(["chat", "batch"])) for r in case.requests)
        case = replace(case, requests=named)
    if kind == "long prompts":
        return _long_prompts(case, rng, fixed)
    if kind == "late":
        return replace(case, requests=tuple(replace(r, arrival_s=r.arrival_s * _LATE) for r in case.requests))
    if kind == "crowd":
        return _crowd(case, rng)
    if kind == "long answers":
        few = tuple(
            replace(r, output_tokens=r.output_tokens * _ANSWER_FACTOR, max_tokens=r.max_tokens * _ANSWER_FACTOR)
            for r in case.requests[:3]
        )
        return _on_blocks(replace(case, requests=few), rng)
    return case


def _long_prompts(case: RandomCase, rng: random.Random, fixed: Mapping[str, object]) -> RandomCase:
    """Prompts, budgets of tokens and blocks grow together: as many steps, and no more blocks to count."""
    factor = rng.choice(_PROMPT_FACTORS if "block_size" not in fixed else _PROMPT_FACTORS[:1])
    size = case.block_size if "block_size" in fixed else case.block_size * (factor // 16)
    longer = tuple(replace(r, input_tokens=r.input_tokens * factor - rng.randrange(factor)) for r in case.requests)
    parameters = {
        name: value * factor if name in _SCALED and name not in fixed and isinstance(value, int) else value
        for name, value in case.parameters.items()
    }
    return _on_blocks(replace(case, requests=longer, block_size=size, parameters=parameters), rng)


def _crowd(case: RandomCase, rng: random.Random) -> RandomCase:
    """Many requests at once, of a few shapes."""
    shapes = [replace(r, arrival_s=0.0, output_tokens=min(r.output_tokens, 8)) for r in case.requests[:3]]
    return _on_blocks(replace(case, requests=tuple(rng.choice(shapes) for _ in range(_CROWD))), rng)


def _on_blocks(case: RandomCase, rng: random.Random) -> RandomCase:
    return replace(case, num_gpu_blocks=enough_blocks(rng, case.requests, case.block_size) + 1)


# Random scenarios for a policy: tight memory, ties, bursts, lulls, priorities, classes, replicas, swap space.
#
# This generator takes the place of Hypothesis, which the tests use: the same seed must give the same scenarios in
# every version, the command line must not need a development dependency, and a flat `RandomCase` shrinks in fifty
# lines (`scenarios.check.cases`).

MOST_REQUESTS = 10
SMALL = 10
"""The first scenarios of a seed, which are small: three requests at most."""

# What is drawn for a parameter of this name, where the policy's own default is among the values or is a number of
# slots or tokens. A flag is drawn whatever its name.
_DRAWN: Mapping[str, tuple[object, ...]] = {
    "max_num_seqs": (1, 2, 3, 5, 8, 16),
    "max_num_batched_tokens": (4, 7, 16, 33, 64, 256),
    "order": ("fcfs", "fcfs", "priority"),
    "preemption_mode": ("recompute", "recompute", "swap", "auto"),
    "victim": (None, None, "last", "lowest_priority", "most_memory"),
    "watermark": (0.0, 0.0, 0.01, 0.05),
    "long_prefill_token_threshold": (0, 0, 2, 9),
}
_BUDGETS = ("max_num_seqs", "max_num_batched_tokens")


def random_case(cls: type[Policy], seed: int, index: int, fixed: Mapping[str, object]) -> RandomCase:
    """Draw scenario `index` of a seed, with parameters for the policy's class; those in `fixed` are given."""
    rng = random.Random(f"{seed} {index}")
    most = MOST_REQUESTS if index >= SMALL else 3
    count = rng.randint(1, most)
    longest_input, longest_output = rng.choice([(6, 3), (20, 12), (12, 40), (60, 30)])
    gaps = [0.0, *(rng.choice([0.0, 0.0, 0.001, 0.005, 0.0173, 0.1, 1.0]) for _ in range(count - 1))]
    spare = rng.choice([0, 0, 1, longest_output])
    cap = rng.random() < 0.5  # one for all, or each its own
    lengths = [(rng.randint(1, longest_input), rng.randint(1, longest_output)) for _ in range(count)]
    requests = tuple(
        RandomRequest(
            round(arrival_s, 6), given, output, (longest_output if cap else output) + spare, rng.choice([0, 0, 1, 2])
        )
        for arrival_s, (given, output) in zip(accumulate(gaps), lengths, strict=True)
    )
    drawn, given_size = rng.choice([1, 2, 4, 16]), fixed.get("block_size")
    size = given_size if isinstance(given_size, int) else drawn
    case = RandomCase(
        requests=requests,
        num_gpu_blocks=enough_blocks(rng, requests, size) + 1,
        block_size=size,
        parameters=_parameters(rng, cls, fixed),
        cost=Cost(rng.choice([0.005, 0.0011]), rng.choice([0.0, 2e-5]), rng.choice([0.0, 5e-7])),
        num_host_blocks=rng.choice([3, 1000]),
        swap_s_per_block=rng.choice([None, 1e-4]),
        replicas=rng.choice([1, 1, 1, 1, 2]),
        router=rng.choice(["round_robin", "least_loaded"]),
    )
    return case if index < SMALL else widened(case, seed, index, fixed)


def _parameters(rng: random.Random, cls: type[Policy], fixed: Mapping[str, object]) -> dict[str, Any]:
    drawn: dict[str, Any] = {}
    for name, parameter in policy_parameters(cls).items():
        values, default = _DRAWN.get(name, ()), parameter.default
        if name in _BUDGETS or default in values:
            drawn[name] = rng.choice(values)
        elif isinstance(default, bool) and rng.random() < 0.25:
            drawn[name] = not default
    return {**{key: value for key, value in drawn.items() if key not in fixed}, **fixed}


# Shrink a case that breaks a law as far as it still does: greedily, one kind of simplification after the other.

MOST_TRIES = 400


def shrink(
    case: RandomCase, breaks: Callable[[RandomCase], bool], fixed: Collection[str] = (), most_tries: int = MOST_TRIES
) -> RandomCase:
    """Simplify a case as long as it `breaks`, in at most `most_tries` tries. Parameters in `fixed` stay."""
    tries = 0
    progress = True
    while progress:
        progress = False
        for simpler in _SIMPLER:
            again = True
            while again:
                again = False
                for candidate in simpler(case, fixed):
                    if tries >= most_tries:
                        return case
                    tries += 1
                    if breaks(candidate):
                        case, again, progress = candidate, True, True
                        break
    return case


# Each yields cases that are simpler in one thing, the largest steps first; nothing where it is as simple as can be.


def _fewer_requests(case: RandomCase, fixed: Collection[str]) -> Iterator[RandomCase]:
    requests = case.requests
    part = len(requests) // 2
    while part:
        for start in range(0, len(requests), part):
            rest = requests[:start] + requests[start + part :]
            if rest:
                yield _with(case, rest)
        part //= 2


def _fewer_features(case: RandomCase, fixed: Collection[str]) -> Iterator[RandomCase]:
    plain = RandomCase(case.requests, case.num_gpu_blocks, case.block_size)
    for feature in ("replicas", "router", "num_host_blocks", "swap_s_per_block"):
        if (without := getattr(plain, feature)) != getattr(case, feature):
            yield replace(case, **{feature: without})
    for key in case.parameters:
        if key not in fixed:
            yield replace(case, parameters={name: value for name, value in case.parameters.items() if name != key})


def _rounder_times(case: RandomCase, fixed: Collection[str]) -> Iterator[RandomCase]:
    """Try steps of a second with arrivals between them, all arrivals at once, and arrivals at whole seconds."""
    times = [request.arrival_s for request in case.requests]
    cost = case.cost
    if cost != Cost():
        yield _at(replace(case, cost=Cost()), [round(time / cost.base_s, 3) for time in times])
        yield replace(case, cost=Cost())
        if cost != Cost(cost.base_s):
            yield replace(case, cost=Cost(cost.base_s))
    if any(times):
        yield _at(case, [0.0] * len(times))
    ranks = {time: float(rank) for rank, time in enumerate(sorted(set(times)))}
    for rounder in ([ranks[time] for time in times], [float(int(time)) for time in times]):
        if sum(rounder) < sum(times):
            yield _at(case, rounder)


def _smaller_requests(case: RandomCase, fixed: Collection[str]) -> Iterator[RandomCase]:
    """Make all requests smaller at once, then one by one."""
    requests = case.requests
    for change in _SMALLER:
        changed = tuple(change(request) for request in requests)
        if changed != requests:
            yield _with(case, changed)
    for place, request in enumerate(requests):
        for change in _SMALLER:
            if (smaller := change(request)) != request:
                yield _with(case, (*requests[:place], smaller, *requests[place + 1 :]))


_SMALLER: tuple[Callable[[RandomRequest], RandomRequest], ...] = (
    lambda r: replace(r, priority=0, class_name="default"),
    lambda r: replace(r, priority=0),
    lambda r: replace(r, class_name="default"),
    lambda r: replace(r, input_tokens=1),
    lambda r: replace(r, output_tokens=1),
    lambda r: replace(r, max_tokens=r.output_tokens),
    lambda r: replace(r, input_tokens=(r.input_tokens + 1) // 2),
    lambda r: replace(r, output_tokens=(r.output_tokens + 1) // 2),
    lambda r: replace(r, input_tokens=max(1, r.input_tokens - 1)),
    lambda r: replace(r, output_tokens=max(1, r.output_tokens - 1)),
    lambda r: replace(r, max_tokens=max(r.output_tokens, r.max_tokens - 1)),
)


def _ample_memory(case: RandomCase, fixed: Collection[str]) -> Iterator[RandomCase]:
    if case.num_gpu_blocks < 1001:
        yield replace(case, num_gpu_blocks=1001)


_SIMPLER = (_fewer_requests, _fewer_features, _ample_memory, _rounder_times, _smaller_requests)


def _at(case: RandomCase, times: list[float]) -> RandomCase:
    moved = [replace(request, arrival_s=time) for request, time in zip(case.requests, times, strict=True)]
    return replace(case, requests=tuple(moved))


def _with(case: RandomCase, requests: tuple[RandomRequest, ...]) -> RandomCase:
    """Replace the requests, and let the first of them arrive at 0."""
    first_s = requests[0].arrival_s
    return replace(case, requests=tuple(replace(r, arrival_s=round(r.arrival_s - first_s, 6)) for r in requests))
