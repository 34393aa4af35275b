"""Random scenarios for a policy: tight memory, ties, bursts, lulls, priorities, classes, replicas, swap space.

This generator takes the place of Hypothesis, which the tests use: the same seed must give the same scenarios in every
version, the command line must not need a development dependency, and a flat `RandomCase` shrinks in fifty lines
(`scenarios.check.shrink`).
"""

import random
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from scenarios.check.random_case import Cost, RandomCase, RandomRequest
from scenarios.check.wide_case import enough_blocks, widened
from simulator.plan import Policy
from simulator.policies import policy_parameters

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
