"""Random scheduling cases: small, and so short of memory that most of them preempt, many of them again and again."""

import random
from collections.abc import Callable
from typing import Any

from tests.parity.cases import Case

Lengths = list[tuple[int, int]]  # prompt and output tokens of each request

# Shares of the blocks that a full batch would own at its longest; 0 leaves what the longest request needs alone.
SHARES = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)

# Seconds a step, a token and a token of context. The first is exact in binary: with arrivals at multiples of a step,
# some come at the very moment at which a step ends.
COSTS = ((0.25, 0.0, 0.0), (0.005, 2e-5, 0.0), (0.005, 2e-5, 5e-7))


def random_case(seed: int) -> Case:
    """A case that vLLM's scheduler accepts, without prefix caching; every setting that ours knows is drawn."""
    rng = random.Random(seed)
    crowded = rng.random() < 0.2
    lengths = _crowded_lengths(rng) if crowded else _lengths(rng)
    config = _config(rng, lengths)
    if crowded:
        config |= _crowded_config(rng, lengths)
    cost = rng.choice(COSTS) if rng.random() < 0.4 else None
    arrivals = _arrivals(rng, len(lengths), cost)
    priorities = _priorities(
        rng, len(lengths), ["rising"] if crowded else ["random", "random", "equal", "rising", "two"]
    )
    requests = [
        {
            "id": f"r{i}",
            "arrival_step" if cost is None else "arrival_time": at,
            "prompt_len": prompt,
            "output_len": output,
        }
        | ({"priority": priority} if priority else {})
        for i, (at, priority, (prompt, output)) in enumerate(zip(arrivals, priorities, lengths, strict=True))
    ]
    _rarer_settings(seed, config)
    case: Case = {"config": config, "requests": requests}
    if cost is not None:
        case["cost"] = dict(zip("abc", cost, strict=True))
    return case


def _rarer_settings(seed: int, config: dict[str, Any]) -> None:
    """Settings of which most cases have none; drawn apart, so that the others stay what they were."""
    rng = random.Random(f"rarer {seed}")
    if rng.random() < 0.2:
        config["max_num_active_seqs"] = rng.randint(1, config["max_num_seqs"])
    if config["long_prefill_token_threshold"] and rng.random() < 0.5:
        config["long_prefill_token_threshold_adaptive"] = True


def _lengths(rng: random.Random) -> Lengths:
    """Memory fills up where outputs are long, for nobody reserves blocks for them; long prompts come in chunks."""
    short_and_growing = ((1, 6), (12, 50))
    even = ((1, 20), (1, 30))
    long_prompts = ((10, 70), (1, 25))
    kinds = rng.choice([[short_and_growing], [short_and_growing], [even], [long_prompts], [even, long_prompts]])
    count = rng.choice([1, 2, 3, *[rng.randint(4, 16)] * 6])
    return [(rng.randint(*prompt), rng.randint(*output)) for prompt, output in rng.choices(kinds, k=count)]


def _config(rng: random.Random, lengths: Lengths) -> dict[str, Any]:
    count = len(lengths)
    longest = max(prompt + output for prompt, output in lengths)
    chunked = rng.random() < 0.85
    # vLLM refuses a budget below max_num_seqs; without chunks, also one below the longest request.
    slots = rng.choice([1, 2, 4, 8, 8, 16, 16])
    budget = slots + rng.choice([0, 1, 2, slots, 3 * slots, 64, 200])
    if not chunked:
        budget = max(budget, longest)
    threshold = rng.choice([0, 0, 1, 2, 3, 5, 17]) if rng.random() < 0.5 else 0
    block_size = rng.choice([1, 1, 2, 3, 4, 8, 16])
    return {
        "max_num_seqs": slots,
        "max_num_batched_tokens": budget,
        "block_size": block_size,
        "num_gpu_blocks": 1 + _blocks(rng, lengths, block_size, min(slots, count)),
        "enable_chunked_prefill": chunked,
        # Nor may the threshold be above max_model_len, which is at least `longest` here.
        "long_prefill_token_threshold": min(threshold, longest),
        "policy": rng.choice(["fcfs", "priority"]),
        "watermark": rng.choice([0.0, 0.0, 0.0, 0.01, 0.1, 0.29, rng.random() / 2]),
        "scheduler_reserve_full_isl": rng.random() < 0.6,
    }


def _crowded_lengths(rng: random.Random) -> Lengths:
    return [(rng.randint(8, 40), rng.randint(1, 12)) for _ in range(rng.randint(6, 14))]


def _crowded_config(rng: random.Random, lengths: Lengths) -> dict[str, Any]:
    """Many prompts are under way at once when memory runs out, and the victims have been scheduled in this step.

    Their tokens and blocks then go to those behind them, which shows only where both are short.
    """
    slots = rng.choice([6, 8, 12])
    threshold = rng.randint(2, 10)
    block_size = rng.choice([1, 1, 2, 4])
    return {
        "max_num_seqs": slots,
        "max_num_batched_tokens": max(slots, int(threshold * slots * rng.uniform(0.3, 1.1))),
        "block_size": block_size,
        "num_gpu_blocks": 1 + _blocks(rng, lengths, block_size, slots),
        "enable_chunked_prefill": True,
        "long_prefill_token_threshold": threshold,
        "policy": "priority",
        "watermark": 0.0,
        "scheduler_reserve_full_isl": False,
    }


def _blocks(rng: random.Random, lengths: Lengths, block_size: int, slots: int) -> int:
    """Usable blocks: enough for the longest request alone, mostly too few for a full batch."""
    owned = sorted(-(-(prompt + output) // block_size) for prompt, output in lengths)
    return max(owned[-1], int(rng.choice(SHARES) * sum(owned[-slots:]))) + rng.choice([0, 0, 1, 2])


def _arrivals(rng: random.Random, count: int, cost: tuple[float, float, float] | None) -> list[float]:
    """Ascending, with ties: all at once, in bursts, or spread out with gaps in which the server rests."""
    step_s = 1 if cost is None else cost[0]
    gaps = rng.choice([(0,), (0, 0, 1), (0, 1, 3), (0, 0, 0, 20), (1, 4, 12, 60)])
    at = 0.0
    arrivals = []
    for _ in range(count):
        gap: float = rng.choice(gaps)
        if cost is not None and cost[1]:
            gap *= 2 * rng.random()
        at += gap * step_s
        arrivals.append(int(at) if cost is None else at)
    return arrivals


def _priorities(rng: random.Random, count: int, kinds: list[str]) -> list[int]:
    """By chance, all the same, or the later the more urgent: then those who are served first are also the victims."""
    kind = rng.choice(kinds)
    if kind == "random":
        return [rng.randint(-2, 3) for _ in range(count)]
    if kind == "rising":
        return [count - i for i in range(count)]
    return [rng.randint(0, 1) if kind == "two" else 0 for _ in range(count)]


def random_caching_case(seed: int) -> Case:
    """As `random_case`, with prefix caching on: prompts share prefixes, repeat each other, or go on where one ended."""
    case = random_case(seed)
    rng = random.Random(f"content {seed}")
    case["config"]["enable_prefix_caching"] = True
    kind = rng.choice(["groups", "ids", "ids", "own"])
    groups = [(f"g{i}", rng.randint(1, 40)) for i in range(rng.randint(1, 3))]
    told: list[list[int]] = []  # conversations so far, as token ids
    for request in case["requests"]:
        if kind == "groups" and rng.random() < 0.8:
            request["prefix_group"], request["prefix_len"] = rng.choice(groups)
        elif kind == "ids" and rng.random() < 0.9:
            _give_ids(rng, request, told)
    return case


def _give_ids(rng: random.Random, request: dict[str, Any], told: list[list[int]]) -> None:
    """Token ids: those of an earlier request as far as they go, then few different ones, so that blocks repeat."""
    alphabet = rng.choice([1, 2, 50])
    begin = rng.choice(told) if told and rng.random() < 0.7 else []
    length, outputs = request["prompt_len"], request["output_len"]
    kept = begin[: rng.randint(0, length)]
    prompt = kept + [rng.randrange(alphabet) for _ in range(length - len(kept))]
    answer = begin[length : length + outputs] if rng.random() < 0.3 else []
    answer += [rng.randrange(alphabet) for _ in range(outputs - len(answer))]
    request["prompt_token_ids"], request["output_token_ids"] = prompt, answer
    told.append(prompt + answer)


def random_async_case(seed: int) -> Case:
    """As `random_case`, scheduled asynchronously; many answers end before their `max_tokens`."""
    return _asynchronous(seed, random_case(seed))


def random_async_caching_case(seed: int) -> Case:
    """As `random_caching_case`, scheduled asynchronously."""
    return _asynchronous(seed, random_caching_case(seed))


def aborted(draw: Callable[[int], Case], seed: int) -> Case:
    """A case of another kind, with times, in which clients give up: some at the very moment of an event."""
    case = draw(seed)
    rng = random.Random(f"aborts {seed}")
    _give_times(case)
    step_s = case["cost"]["a"]
    share = rng.choice([0.1, 0.3, 0.6, 1.0])
    sure = rng.choice(case["requests"])
    for request in case["requests"]:
        if rng.random() < share or request is sure:
            after = rng.choice([0, rng.randint(0, 4), rng.randint(0, 40), 4 * rng.random(), 40 * rng.random()])
            request["abort_time"] = request["arrival_time"] + after * step_s
    return case


def weighted(draw: Callable[[int], Case], seed: int) -> Case:
    """A case of another kind whose queue has the order `weighted`, with limits on waiting that some requests miss."""
    case = draw(seed)
    rng = random.Random(f"weights {seed}")
    step_s = (case.get("cost") or {"a": 1.0})["a"]
    case["config"] |= {"policy": "fcfs", "arrival_key": "raw"}
    case["weights"] = {
        "input_token_s": step_s * rng.choice([0.0, 0.0625, 1.0, 64.0]),
        "output_token_s": step_s * rng.choice([0.0, 0.0, 0.125, 4.0]),
        "priority_s": step_s * rng.choice([0.0, 0.0, 1.0, 50.0]),
        "late_after_s": rng.choice([None, *(step_s * steps for steps in (0, 2, 5, 20))]),
        "late_token_s": step_s * rng.choice([0.0, 0.0, 0.03125, 0.5]),
        "cached_token_s": step_s * rng.choice([0.0, 0.0625, 1.0, 64.0]),
    }
    return case


def _asynchronous(seed: int, case: Case) -> Case:
    """Arrivals are times: which plan is the n-th depends on how many found nothing to do."""
    rng = random.Random(f"async {seed}")
    config, requests = case["config"], case["requests"]
    config["async_scheduling"] = True
    _give_times(case)
    share = rng.choice([0.0, 0.5, 1.0])
    for request in requests:
        if rng.random() < share:
            request["max_tokens"] = request["output_len"] + rng.randint(1, 20)
    if not config["enable_chunked_prefill"]:
        most = max(r["prompt_len"] + r.get("max_tokens", r["output_len"]) for r in requests)
        config["max_num_batched_tokens"] = max(config["max_num_batched_tokens"], most)
    return case


def _give_times(case: Case) -> None:
    """A cost, and arrivals as times, where the case counts steps."""
    if "cost" not in case:
        a, b, c = COSTS[0]
        case["cost"] = {"a": a, "b": b, "c": c}
        for request in case["requests"]:
            request["arrival_time"] = request.pop("arrival_step") * a
