"""Cases of SGLang's own scheduler, run through our engine, and held against what it decided, step by step.

The harness beside the recorded cases (../shared/oracle/engines) drives SGLang 0.5.23 on a CPU.
"""

import gzip
import json
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from simulator.fleet.group import ReplicaGroup
from simulator.memory.blocks import BlockLedger, KVBlocks
from simulator.memory.radix_cache import RadixCache
from simulator.policies.sglang import Sglang
from simulator.request import PromptContent, Request
from simulator.simulate import simulate_fleet
from simulator.speculative import Method, Speculation, SpeculativeConfig
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests import columns
from tests.parity.cases import Case, Memory

Steps = list[dict[str, Any]]

DELAYER = ("enable_prefill_delayer", "prefill_delayer_", "prefill_max_requests")
METHODS: dict[str, Method] = {"EAGLE": "eagle", "EAGLE3": "eagle3", "STANDALONE": "draft_model", "NGRAM": "ngram"}
CACHE_ORDERS = ("lpm", "dfs-weight")  # SGLang serves fcfs instead where nothing is cached


@dataclass(frozen=True, slots=True)
class Recorded:
    """A case with the real scheduler's decisions."""

    seed: int
    case: Case
    steps: Steps


def recorded(path: Path) -> Iterator[Recorded]:
    """The cases of a file that the real scheduler took."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            item = json.loads(line)
            if "records" in item:
                yield Recorded(item["seed"], item["case"], item["records"])


def policy_of(case: Case) -> Sglang:
    """The policy with the case's settings."""
    config = case["config"]
    order = config["schedule_policy"]
    if config["disable_radix_cache"] and order in CACHE_ORDERS:
        order = "fcfs"
    return Sglang(
        max_num_seqs=config["max_running_requests"],
        max_num_batched_tokens=1 << 20,
        chunked_prefill_size=config["chunked_prefill_size"],
        max_prefill_tokens=config["max_prefill_tokens"],
        enable_mixed_chunk=config["enable_mixed_chunk"],
        schedule_conservativeness=config["schedule_conservativeness"],
        ignore_eos=any(request.get("ignore_eos") for request in case["requests"]),
        async_scheduling=config["overlap"],
        order=order,
        **{key: value for key, value in config.items() if key.startswith(DELAYER)},
    )


def workload_of(case: Case) -> Workload:
    """The case's requests."""
    requests = case["requests"]
    names = ("arrival_time", "prompt_len", "output_len", "max_tokens")
    return columns.workload_of(
        *([request[name] for request in requests] for name in names),
        request_ids=[r["id"] for r in requests],
        content=[content_of(r) for r in requests],
    )


class Listed:
    """Accepted drafts as a case lists them for each request, in turn."""

    def __init__(self, case: Case) -> None:
        self._lists = [request["accepted_drafts"] for request in case["requests"]]

    def enter(self, request: Request) -> None:
        pass

    def accepted(self, row: int, verify_step: int) -> int:
        accepted: int = self._lists[row][verify_step % len(self._lists[row])]
        return accepted


def speculation_of(case: Case) -> Speculation | None:
    """The case's drafter, by SGLang's settings; None without one."""
    config = case["config"]
    return Speculation(of_settings(config), Listed(case), 10**9) if config.get("speculative_algorithm") else None


def of_settings(config: dict[str, Any]) -> SpeculativeConfig:
    """The drafter that SGLang's settings of these names ask for."""
    return SpeculativeConfig(
        METHODS[config["speculative_algorithm"]],
        config["speculative_num_steps"],
        eagle_topk=config["speculative_eagle_topk"],
        num_draft_tokens=config["speculative_num_draft_tokens"],
    )


def content_of(request: dict[str, Any]) -> PromptContent | None:
    """Tokens one by one, or by the hashes of a trace; without either they are the request's own."""
    if "prompt_token_ids" in request:
        return PromptContent(
            prompt_token_ids=tuple(request["prompt_token_ids"]), output_token_ids=tuple(request["output_token_ids"])
        )
    if "block_hashes" in request:
        return PromptContent(block_hashes=request["block_hashes"], hash_block_size=request["hash_block_size"])
    return None


def decisions_of(case: Case, *, fast_forward: bool = True) -> Steps:
    """Our decisions, a record a step."""
    config, cost = case["config"], case["cost"]
    page = config["page_size"]
    make_blocks: Callable[[int, int], KVBlocks] = BlockLedger
    if not config["disable_radix_cache"]:
        make_blocks = partial(RadixCache, block_size=page)
    group = ReplicaGroup(
        lambda: policy_of(case),
        Memory(config["max_total_tokens"] // page + 1, page),
        Linear(cost["a"], cost["b"], cost["c"]),
        make_blocks=make_blocks,
        speculation=speculation_of(case),
    )
    run = simulate_fleet(workload_of(case), [group], fast_forward=fast_forward, log_decisions=True)
    assert run.decisions is not None
    return run.decisions


def first_difference(case: Case, ours: Steps, theirs: Iterable[dict[str, Any]]) -> str | None:
    """Where the two part, in words; None if they never do.

    The harness adds a step's seconds term by term, so that ends may differ in the last bits, and an arrival in between
    is seen a step later: such a step is not held against the queue.
    """
    page = case["config"]["page_size"]
    arrivals = sorted([request["arrival_time"] for request in case["requests"]])
    for number, (a, b) in enumerate(zip_longest(ours, theirs)):
        if not (a and b):
            return f"step {number} is the end {'there' if a else 'here'}"
        told = {key: a[key] for key in ("scheduled", "preempted", "admitted", "waiting")}
        told |= {"free": a["num_free_blocks"] * page, "free_end": a["num_free_blocks_end"] * page}
        seen_s: float = a["t_schedule_s"] if "t_schedule_s" in a else a["t_start_s"]
        after = bisect(arrivals, seen_s + 1e-9)
        if after and seen_s - arrivals[after - 1] < 1e-9:
            del told["waiting"]
        for key, value in told.items():
            if value != b[key]:
                return f"step {number}: {key} is {value} here, and {b[key]} there"
        if sorted(a["finished"]) != sorted(b["finished"]):
            return f"step {number}: {a['finished']} finish here, and {b['finished']} there"
        if abs(a["t_end_s"] - b["t_end"]) > 1e-9:
            return f"step {number} ends at {a['t_end_s']} here, and at {b['t_end']} there"
    return None
