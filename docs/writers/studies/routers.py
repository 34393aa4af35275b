"""Routers as they are deployed, on the same conversations of Mooncake."""

from collections.abc import Mapping

import scenarios
from docs.writers.claims.claim import Columns, Expectation, Table, cells
from docs.writers.claims.runs import figure
from docs.writers.studies.prefix_affinity import TRACE, ideal_hits
from docs.writers.studies.study import Line, Panel, Study, StudyResult

SCENARIO = "study-routers"
_OTHERS = {
    "dynamo_kv": "knowledge: approximate, block_size: 512",
    "prefix_hash": "prefix_tokens: 512",
    "weighted": "block_size: 512, load: 10, kv: 0, prefix: 1",
}
ROUTERS = (
    "round_robin", "least_loaded", "vllm_prefix_aware", "prefix_hash", "prefix_affinity", "sglang_cache_aware",
    "ray_prefix_aware", "llm_d", "weighted", "dynamo_kv",
)  # fmt: skip
_COLUMNS: Columns = {
    "TTFT mean, ms": ("mean_ttft_ms", 1, ".0f"), "TTFT p50, ms": ("p50_ttft_ms", 1, ".0f"),
    "TTFT p99, s": ("p99_ttft_ms", 1e-3, ".2f"), "prefix hits, %": ("prefix_cache_hit_rate", 100, ".1f"),
    "imbalance (CV)": ("balance_cv", 1, ".3f"), "TPOT, ms": ("mean_tpot_ms", 1, ".2f"),
}  # fmt: skip


def measure() -> StudyResult:
    """Every router, on the same requests."""
    found = {router: _figures(router) for router in ROUTERS}
    figures = {
        f"{short}_{router}": each[key] * scale
        for router, each in found.items()
        for short, key, scale in (
            ("ttft", "mean_ttft_ms", 1.0), ("p99", "p99_ttft_ms", 1e-3), ("hits", "prefix_cache_hit_rate", 100.0),
            ("cv", "balance_cv", 1.0),
        )
    }  # fmt: skip
    figures["ideal"] = 100.0 * ideal_hits(SCENARIO)
    figures["of_ideal"] = max(figures[f"hits_{router}"] for router in ROUTERS) / figures["ideal"]
    figures["gain"] = figures["ttft_dynamo_kv"] / figures["ttft_round_robin"]
    return StudyResult(figures, [_table(found)], _panels(found))


def _figures(router: str) -> dict[str, float]:
    usual = "" if router in ("round_robin", "least_loaded") else "block_size: 512"
    options = _OTHERS.get(router, usual)
    chosen = scenarios.load(SCENARIO, [f"router={{kind: {router}{', ' * bool(options)}{options}}}"])
    result = scenarios.run(chosen)
    return {name: figure(result, name) for name, _, _ in _COLUMNS.values()}


def _table(found: Mapping[str, Mapping[str, float]]) -> Table:
    rows = [[router, *cells(each, _COLUMNS)] for router, each in found.items()]
    return Table(["router", *_COLUMNS], rows, "The same 1,000 requests on eight replicas")


def _panels(found: Mapping[str, Mapping[str, float]]) -> list[Panel]:
    def points(x: str, scale: float) -> list[Line]:
        shown = {router: each for router, each in found.items() if router != "vllm_prefix_aware"}
        return [Line(router, [(scale * each[x], each["mean_ttft_ms"])]) for router, each in shown.items()]

    balance = "standard deviation / mean of tokens served"
    return [
        Panel("Saved prefill", "prompt tokens found, %", "mean TTFT, ms", points("prefix_cache_hit_rate", 100.0)),
        Panel("Balance", balance, "mean TTFT, ms", points("balance_cv", 1.0)),
    ]


STUDY = Study(
    name="routers",
    setup="Llama-3.1-8B on eight replicas; a step takes 6 ms, 16 µs a token and 20 ns a token of context; 1,048,576"
    " tokens of KV each, with a prefix cache; the first 1,000 requests of Mooncake's conversation trace. Routers that"
    " remember prompts do so in blocks of 512 tokens; all else has its default.",
    alt="Mean time to first token of nine routers against the prefix hits that they reach and their imbalance",
    answer=(
        "**Take a router that knows prefixes and loads; which one matters little. Prefixes alone are a trap.**"
        " Round robin takes {ttft_round_robin:.0f} ms to the first token in the mean and finds"
        " {hits_round_robin:.1f} % of the prompt tokens in a cache; least loaded {ttft_least_loaded:.0f} ms and"
        " {hits_least_loaded:.1f} %. The six that weigh both take {ttft_ray_prefix_aware:.0f} to {ttft_llm_d:.0f}"
        " ms: Ray's {ttft_ray_prefix_aware:.0f}, the weighted sum {ttft_weighted:.0f}, prefix affinity"
        " {ttft_prefix_affinity:.0f}, SGLang's {ttft_sglang_cache_aware:.0f}, Dynamo's {ttft_dynamo_kv:.0f}, and"
        " llm-d's {ttft_llm_d:.0f}, which sees queues and KV as of its last look, up to 50 ms ago. They find"
        " {hits_dynamo_kv:.1f} to {hits_sglang_cache_aware:.1f} %; one cache that forgets nothing would find"
        " {ideal:.1f} %.",
        "All prompts of this trace begin with the same 512 tokens. The production stack's prefix-aware router takes"
        " whoever has the longest match, and looks at no load: the first replica gets everything"
        " ({ttft_vllm_prefix_aware:,.0f} ms; the picture leaves it out). `prefix_hash` hashes these 512 tokens"
        " alone: its bound on loads saves it, but it finds {hits_prefix_hash:.1f} %. Where balance counts, as with"
        " long answers, take Ray's or Dynamo's: the tokens served vary by {cv_ray_prefix_aware:.2f} and"
        " {cv_dynamo_kv:.2f} of their mean, under SGLang's by {cv_sglang_cache_aware:.2f}.",
    ),
    limits="the load is moderate and the trace is one service's. All routers but `llm_d` see current loads;"
    " `dynamo_kv` here takes what it sent to be cached. With longer queues a router that ignores loads loses more.",
    expected=(
        Expectation("of_ideal", 0.65, 0.35, "at most 1", "no router finds more than a cache that forgets nothing"),
        Expectation("gain", 0.8, 0.2, "at most 1", "a router that knows prefixes and loads is not worse than neither"),
    ),
    measure=measure,
    trace=TRACE,
)
