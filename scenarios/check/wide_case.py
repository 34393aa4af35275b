"""Scenarios of other sizes: what small prompts, short answers, short queues and one class cannot show.

They are drawn from a stream of their own, so that the small scenarios of a seed stay what they are.
"""

import random
from collections.abc import Mapping
from dataclasses import replace

from scenarios.check.random_case import RandomCase, RandomRequest

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
