"""A real trace with block hashes through the prefix cache: what is hit follows from the hashes alone."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import pytest

import scenarios
from scenarios.runs.result import Result
from scenarios.traces import TraceOptions, read_trace
from simulator.memory.ledger import PrefixLedger
from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.laws.scenarios import Memory, Scenario
from tests.shared_data import shared

pytestmark = pytest.mark.shared

TRACE = "traces/mooncake_conversation_trace.jsonl.gz"
HASHED = 512  # tokens that a hash names


@cache
def trace() -> Workload:
    return read_trace(shared(TRACE), TraceOptions())


def first_requests(count: int) -> Workload:
    whole = trace()
    names = ("arrival_s", "input_tokens", "output_tokens", "max_tokens", "priority", "class_index")
    columns = {name: getattr(whole, name)[:count] for name in names}
    assert whole.content is not None
    return replace(whole, **columns, content=whole.content[:count], request_ids=None)


def hash_ids(workload: Workload) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Prompt and output tokens and the hashes of each request."""
    assert workload.content is not None
    lengths = zip(workload.input_tokens.tolist(), workload.output_tokens.tolist(), strict=True)
    for (prompt, answer), content in zip(lengths, workload.content, strict=True):
        assert content is not None
        yield prompt, answer, content.block_hashes


def lru_hits(workload: Workload, usable: int, size: int) -> list[int]:
    """Tokens that each request finds, served one after the other: a plain least-recently-used list of `usable` blocks.

    A block holds `size` tokens of a hash's, at a place counted within that hash. Of a request that ends, the last
    block is the least recently used. A block that is not full holds nothing anybody could find.
    """
    kept: OrderedDict[int, object] = OrderedDict()  # number of the entry -> content, the least recently used first
    entries: dict[object, list[int]] = {}  # content -> numbers of the entries that hold it, the first to come first
    number = 0
    found = []
    for row, (prompt, answer, names) in enumerate(hash_ids(workload)):
        known: list[object] = [
            (names[place * size // HASHED], place * size % HASHED) for place in range(prompt // size)
        ]
        tokens = prompt + answer - 1
        held: list[tuple[int, object]] = []
        for shared_with in known[: (prompt - 1) // size]:
            if shared_with not in entries:
                break
            oldest = entries[shared_with][0]
            del kept[oldest]
            held.append((oldest, shared_with))
        found.append(len(held) * size)
        for place in range(len(held), -(-tokens // size)):
            if len(kept) + len(held) == usable:
                gone, forgotten = kept.popitem(last=False)
                entries[forgotten].remove(gone)
                if not entries[forgotten]:
                    del entries[forgotten]
            content: object = known[place] if place < len(known) else ("own", row, place)
            held.append((number, content))
            if (place + 1) * size <= tokens:
                entries.setdefault(content, []).append(number)
            number += 1
        partial = held.pop() if tokens % size else None
        assert partial is None or partial[1] == ("own", row, tokens // size)
        for entry, content in reversed(held):
            kept[entry] = content
    return found


def serve_one_by_one(workload: Workload, usable: int, size: int) -> list[int]:
    """As the simulator has it: one slot, so that one request after the other uses the cache."""
    policy = ChunkedPrefill(max_num_seqs=1, max_num_batched_tokens=8192)
    scenario = Scenario(workload, policy, Memory(usable + 1, size), Linear(0.005, 2e-5))
    records = scenario.run(make_blocks=partial(PrefixLedger, block_size=size)).records
    assert not records.requests.preemptions.any()
    assert not records.reject_reasons
    found: list[int] = records.requests.cached_tokens.tolist()
    return found


@pytest.mark.parametrize(
    ("count", "usable", "size"),
    [
        (600, 400, 512),
        (150, 9000, 16),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                (1500, 400, 512),
                (1500, 1500, 512),
                (1500, 6000, 512),
                (1500, 20_000, 512),
                (300, 9000, 16),
                (300, 60_000, 16),
            )
        ),
    ],
)
def test_hits_are_those_of_a_list_of_recently_used_blocks(count: int, usable: int, size: int) -> None:
    workload = first_requests(count)
    found = serve_one_by_one(workload, usable, size)
    assert found == lru_hits(workload, usable, size)
    assert sum(tokens > 0 for tokens in found) > count / 2
    print(f"{usable} blocks of {size} tokens: {sum(found) / workload.input_tokens.sum():.2%} of the prompts found")


def test_more_memory_finds_more() -> None:
    """With one slot the list is a stack: what a smaller one finds, a larger one finds too."""
    workload = first_requests(600)
    small, large, huge = (serve_one_by_one(workload, usable, HASHED) for usable in (400, 3000, 60_000))
    assert all(a <= b <= c for a, b, c in zip(small, large, huge, strict=True))
    assert sum(small) < sum(large) < sum(huge)


def run_trace(count: int, *overrides: str) -> Result:
    data = {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h200"},
        "cost": {"kind": "linear", "base_s": 0.005, "per_token_s": 2e-5, "per_context_token_s": 0},
        "workload": {"trace": {"path": str(shared(TRACE)), "limit": count, "rate_scale": 0.1}},
        "engine": {"policy": "chunked_prefill", "max_num_batched_tokens": 8192, "enable_prefix_caching": True},
    }
    return scenarios.run(scenarios.load(data, overrides))


def ideal_hits(workload: Workload, size: int) -> list[int]:
    """Tokens found by a cache that forgets nothing: the leading tokens whose hashes earlier prompts had as well.

    Full blocks of the cache only; and one token at least is left to compute.
    """
    told: dict[int, int] = {}  # hash -> how many of its tokens a prompt has had, the partial last one included
    found = []
    for prompt, _, names in hash_ids(workload):
        tokens = 0
        for place, name in enumerate(names):
            here = min(HASHED, prompt - place * HASHED)
            both = min(here, told.get(name, 0) // size * size)
            tokens += both
            if both < HASHED:
                break
        for place, name in enumerate(names):
            here = min(HASHED, prompt - place * HASHED)
            told[name] = max(told.get(name, 0), here)
        found.append(min(tokens, prompt - 1) // size * size)
    return found


@pytest.mark.parametrize(
    ("count", "size", "blocks"),
    [
        (1500, 512, 400_000),
        (300, 16, 600_000),
        pytest.param(12_031, 512, 400_000, marks=pytest.mark.long),
        pytest.param(600, 16, 600_000, marks=pytest.mark.long),
    ],
)
def test_a_cache_that_forgets_nothing_finds_all_there_is(count: int, size: int, blocks: int) -> None:
    """Many at a time, in the order of their arrival: whoever is admitted finds all that came before."""
    result = run_trace(count, f"engine.block_size={size}", f"hardware.num_gpu_blocks={blocks}")
    workload = first_requests(count)
    requests = result.records.requests
    assert requests.input_tokens.tolist() == workload.input_tokens.tolist()
    ideal = ideal_hits(workload, size)
    assert requests.cached_tokens.tolist() == ideal
    assert result.summary["prefix_cache_hit_rate"] == sum(ideal) / int(workload.input_tokens.sum())
    print(f"blocks of {size}: {result.summary['prefix_cache_hit_rate']:.2%} of the prompts found")


def test_the_cache_spares_computation_and_nothing_else() -> None:
    """The same answers to the same requests; what is computed less is what was found, and first tokens come sooner."""
    on, off = run_trace(400), run_trace(400, "engine.enable_prefix_caching=false")
    assert off.summary["prefix_cache_hit_rate"] == 0.0
    rows = [result.records.rows for result in (on, off)]
    computed = [int((row.tokens * row.repeat).sum()) for row in rows]
    assert computed[1] - computed[0] == on.records.requests.cached_tokens.sum() > 0
    assert on.summary["total_output_tokens"] == off.summary["total_output_tokens"]
    assert float(on.summary["mean_ttft_ms"] or 0) < float(off.summary["mean_ttft_ms"] or 0)
