"""Prefix affinity against round robin and least loaded on the conversations of Mooncake."""

from collections.abc import Mapping

import numpy as np

import scenarios
from docs.writers.claims.claim import Columns, Expectation, Table, cells
from docs.writers.claims.runs import figure
from docs.writers.studies.study import Line, Panel, Study, StudyResult
from scenarios.assembly.workloads import build_workload

SCENARIO = "study-prefix-affinity"
TRACE = "traces/mooncake_conversation_trace.jsonl.gz"
REPLICAS = (4, 6, 8, 12, 16)
ROUTERS: Mapping[str, str] = {
    "round_robin": "round_robin",
    "least_loaded": "least_loaded",
    "prefix_affinity": "{kind: prefix_affinity, block_size: 512, balance_abs_threshold: 16}",
    "weighted": "{kind: weighted, block_size: 512, load: 10, kv: 0, prefix: 1}",
}
_COLUMNS: Columns = {
    "prefix hits, %": ("prefix_cache_hit_rate", 100, ".1f"), "TTFT p50, ms": ("p50_ttft_ms", 1, ".0f"),
    "TTFT p99, s": ("p99_ttft_ms", 1e-3, ".1f"), "imbalance (CV)": ("balance_cv", 1, ".3f"),
    "busy, %": ("busy_fraction", 100, ".0f"),
}  # fmt: skip

Found = Mapping[tuple[str, int], Mapping[str, float]]
"""By router and number of replicas."""


def measure() -> StudyResult:
    """Every router with every number of replicas, on the same requests."""
    found: Found = {(router, count): _figures(router, count) for router in ROUTERS for count in REPLICAS}
    fewest, most = REPLICAS[0], REPLICAS[-1]
    figures = {
        f"{short}_{router}_{count}": found[router, count][key] * scale
        for router in ROUTERS
        for count in (fewest, 8, most)
        for short, key, scale in (
            ("hits", "prefix_cache_hit_rate", 100.0), ("p50", "p50_ttft_ms", 1.0), ("p99", "p99_ttft_ms", 1e-3),
            ("cv", "balance_cv", 1.0), ("busy", "busy_fraction", 100.0),
        )
    }  # fmt: skip
    figures |= {
        "gain_few": _ratio(found, "prefix_cache_hit_rate", "prefix_affinity", "round_robin", fewest),
        "gain_many": _ratio(found, "prefix_cache_hit_rate", "prefix_affinity", "round_robin", most),
        "ideal": 100.0 * ideal_hits(SCENARIO),
    }
    figures |= _tail()
    ample = scenarios.load(SCENARIO, [f"replicas={fewest}", "hardware.num_gpu_blocks=2000000"])
    figures["ample"] = 100.0 * figure(scenarios.run(ample), "prefix_cache_hit_rate")
    figures["ample_of_ideal"] = figures["ample"] / figures["ideal"]
    figures["of_ideal"] = figures[f"hits_prefix_affinity_{most}"] / figures["ideal"]
    return StudyResult(figures, [_table(found)], _panels(found))


def ideal_hits(scenario: str) -> float:
    """The share of prompt tokens that one cache for all, which forgets nothing, would find."""
    workload = build_workload(scenarios.load(scenario))
    seen: set[int] = set()
    found = 0
    for tokens, content in zip(workload.input_tokens.tolist(), workload.content or (), strict=True):
        if content is None:
            continue
        for place, value in enumerate(content.block_hashes):
            if value not in seen:
                break
            found += min(content.hash_block_size, tokens - place * content.hash_block_size)
        seen.update(content.block_hashes)
    return found / int(workload.input_tokens.sum())


def _figures(router: str, count: int) -> dict[str, float]:
    chosen = scenarios.load(SCENARIO, [f"replicas={count}", f"router={ROUTERS[router]}"])
    result = scenarios.run(chosen)
    return {name: figure(result, name) for name, _, _ in _COLUMNS.values()}


def _tail() -> dict[str, float]:
    """The hundredth of requests that wait longest under prefix affinity: their median prompt, and what of it hits."""
    requests = scenarios.run(scenarios.load(SCENARIO)).records.requests
    waited_s = requests.first_token_s - requests.arrival_s
    tail = np.argsort(-waited_s, kind="stable")[: len(waited_s) // 100]
    prompts = requests.input_tokens[tail]
    hits = 100.0 * float(requests.cached_tokens[tail].sum() / prompts.sum())
    return {"tail_tokens": float(np.median(prompts)), "tail_hits": hits}


def _ratio(found: Found, key: str, router: str, other: str, count: int) -> float:
    return found[router, count][key] / found[other, count][key]


def _table(found: Found) -> Table:
    rows = [[str(count), router, *cells(found[router, count], _COLUMNS)] for count in REPLICAS for router in ROUTERS]
    return Table(["replicas", "router", *_COLUMNS], rows, "The same 4,000 requests")


def _panels(found: Found) -> list[Panel]:
    def lines(key: str, scale: float) -> list[Line]:
        return [Line(router, [(n, found[router, n][key] * scale) for n in REPLICAS]) for router in ROUTERS]

    return [
        Panel("Prompt tokens found in the cache", "replicas", "%", lines("prefix_cache_hit_rate", 100.0)),
        Panel("Median time to first token", "replicas", "ms", lines("p50_ttft_ms", 1.0)),
    ]


STUDY = Study(
    name="prefix-affinity",
    setup="Llama-3.1-8B, one H200 a replica, step times by roofline, chunked prefill with a prefix cache; the first"
    " 4,000 requests of Mooncake's conversation trace at their own rate of 3.4 per second, with a jitter of"
    " three seconds. Each router remembers where it sent which blocks of 512 tokens.",
    alt="Prefix hits and median time to first token by number of replicas under four routers",
    answer=(
        "**With affinity many caches work as one. Without it every replica keeps its own copy of the same tokens.**"
        " Round robin finds {hits_round_robin_4:.1f} % of the prompt tokens in the cache with four replicas and"
        " {hits_round_robin_16:.1f} % with sixteen. Four times the memory finds not one token more, because a"
        " conversation's next turn goes to another replica. Prefix affinity finds {hits_prefix_affinity_4:.1f} % with"
        " four, {hits_prefix_affinity_8:.1f} % with eight and {hits_prefix_affinity_16:.1f} % with sixteen,"
        " {gain_few:.1f} to {gain_many:.1f} times as much. A single cache that forgets nothing would find {ideal:.1f}"
        " %. With four replicas memory is the limit: with room for everything, they find {ample:.1f} %.",
        "Affinity saves prefill, so the time to first token falls. With eight replicas the median is"
        " {p50_round_robin_8:.0f} ms under round robin, {p50_least_loaded_8:.0f} ms under least loaded, and"
        " {p50_prefix_affinity_8:.0f} ms under prefix affinity. The tail hardly changes ({p99_round_robin_8:.1f} s,"
        " {p99_least_loaded_8:.1f} s and {p99_prefix_affinity_8:.1f} s at p99): the 1 % of requests that wait longest"
        " have prompts of {tail_tokens:,.0f} tokens in the median, of which {tail_hits:.1f} % were cached. The price"
        " is balance. The tokens served by each of sixteen replicas vary by {cv_prefix_affinity_16:.2f} of their"
        " mean; under round robin by {cv_round_robin_16:.2f}. But least loaded varies as much"
        " ({cv_least_loaded_16:.2f}), because it takes the first of equally idle replicas. No replica is overloaded"
        " there: under all three routers they are busy for about 40 % of the time. The weighted sum (load x 10,"
        " prefix x 1) gives the same as prefix affinity with its thresholds.",
    ),
    limits="lengths and hashes come from one service; blocks that are shared by chance count as well. The trace has"
    " no content of answers. So the generated part of the next prompt counts as found only if its hash occurs"
    " again. At a load where queues form, the thresholds decide, and the routers' results come closer"
    " together, as with four replicas. The router does not learn of evictions: its memory is an estimate, as"
    " in production.",
    expected=(
        Expectation("of_ideal", 0.65, 0.35, "at most 1", "no router finds more than a cache that forgets nothing"),
        Expectation("ample_of_ideal", 1.0, 0.03, "1 ± 3 %", "with room for everything, affinity is such a cache"),
    ),
    measure=measure,
    trace=TRACE,
)
