"""Random cases for SGLang's own scheduler, from the generator beside its harness, with times that are exact.

Every coefficient of the cost and every arrival is a multiple of a power of two, so that no sum of times is rounded, and
none of the two sides sees an arrival a step before the other.
"""

import random
import runpy
from functools import cache
from typing import Any

from simulator.speculative import tokens_ahead
from tests.parity.cases import Case
from tests.parity.sglang_cases import of_settings
from tests.shared_data import shared

COST = {"a": 2**-8, "b": 2**-13, "c": 2**-20}
MIXED = ("EAGLE", "EAGLE3")  # drafters that take part in mixed steps
CROWD = 10  # cases whose requests make a crowd


def drawn(seed: int, **settings: Any) -> Case:
    """A case of these settings: keys of the configuration, `eos_share` and `clip` of the generator, `ignore_eos`.

    With `enable_prefill_delayer` its other keys, and with `speculative_algorithm` the drafts, are drawn.
    """
    ignore_eos = settings.pop("ignore_eos", False)
    if settings.get("enable_prefill_delayer"):
        settings = _delayer(random.Random(seed)) | settings
    rng = random.Random(f"drafts {seed}")
    if settings.get("speculative_algorithm"):
        settings |= _drafts(rng, settings)
    case: Case = _generator()(seed, **settings)
    for request in case["requests"]:
        request["arrival_time"] = round(request["arrival_time"] * 2**10) / 2**10
        if ignore_eos:
            request |= {"ignore_eos": True, "max_tokens": request["output_len"]}
    if settings.get("speculative_algorithm"):
        _let_draft(case, rng)
    return {**case, "cost": COST}


def crowd(seed: int, **settings: Any) -> Case:
    """The requests of several cases in one, as far as its memory holds each: up to two hundred."""
    cases = [drawn(CROWD * seed + part, **settings) for part in range(CROWD)]
    config = cases[0]["config"]
    most = config["max_total_tokens"] - 2 * config["page_size"] - 2 - _ahead(config)
    requests = [
        {**request, "id": f"{part}{request['id']}"}
        for part, case in enumerate(cases)
        for request in case["requests"]
        if request["prompt_len"] + request["max_tokens"] <= most
    ]
    return {**cases[0], "requests": sorted(requests, key=lambda request: request["arrival_time"])}


def _delayer(rng: random.Random) -> dict[str, Any]:
    return {
        "prefill_delayer_max_delay_passes": rng.choice([1, 2, 3, 5, 10, 30]),
        "prefill_delayer_token_usage_low_watermark": rng.choice([None, None, 0.1, 0.25, 0.5]),
        "prefill_delayer_queue_min_ratio": rng.choice([None, 0.25, 0.5, 1.0, 2.0]),
        "prefill_delayer_max_delay_ms": rng.choice([None, None, 0.0, 3.90625, 15.625, 50.0]),
        "prefill_max_requests": rng.choice([None, None, None, 1, 2, 4]),
    }


def _ahead(config: dict[str, Any]) -> int:
    """Tokens of memory ahead of a request's drafts, in whole pages."""
    page: int = config["page_size"]
    return -(-tokens_ahead(of_settings(config), page) // page) * page if config.get("speculative_algorithm") else 0


def _drafts(rng: random.Random, settings: dict[str, Any]) -> dict[str, Any]:
    """A chain of drafts, or where the drafter keeps KV a tree."""
    steps = rng.choice([1, 2, 3, 5, 8])
    branches = rng.choice([1, 1, 2, 4]) if settings["speculative_algorithm"] != "NGRAM" else 1
    verified = steps + 1 if branches == 1 else rng.choice([2, 4, 8, 16])
    return {
        "speculative_num_steps": steps,
        "speculative_eagle_topk": branches,
        "speculative_num_draft_tokens": verified,
        **({} if settings["speculative_algorithm"] in MIXED else {"enable_mixed_chunk": False}),
    }


def _let_draft(case: Case, rng: random.Random) -> None:
    """Lists of accepted drafts, and memory in which every request has room for its drafts alone."""
    config = case["config"]
    config["max_total_tokens"] += _ahead(config)
    most = rng.choice([0, 1, config["speculative_num_steps"] + 1])  # more than can be
    for request in case["requests"]:
        request["accepted_drafts"] = [rng.randint(0, most) for _ in range(rng.randint(1, 6))]


@cache
def _generator() -> Any:
    return runpy.run_path(str(shared("oracle/engines/sglang_gen.py")))["case"]
