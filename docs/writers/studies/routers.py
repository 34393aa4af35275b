"""Routers as they are deployed, on conversations of Mooncake and on generated ones, over 8 and 64 replicas."""

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
    "vllm_kv_aware": "chunk_size: 512",
    "vllm_load_aware": "chunk_size: 512",
    "weighted": "block_size: 512, load: 10, kv: 0, prefix: 1",
}
_BY_LOAD = ("random", "round_robin", "power_of_two", "least_loaded", "least_kv", "lora_affinity", "vllm_dp")
_BY_BLOCKS = (
    "vllm_prefix_aware", "prefix_affinity", "sglang_cache_aware", "ray_prefix_aware", "llm_d", "weighted", "dynamo_kv",
)  # fmt: skip
ROUTERS = (
    *_BY_LOAD,
    "sglang_bucket",
    "session_affinity",
    "prefix_hash",
    "vllm_kv_aware",
    "vllm_load_aware",
    *_BY_BLOCKS,
)
_SHOWN = (
    "round_robin", "least_loaded", "session_affinity", "vllm_kv_aware", "prefix_hash", "prefix_affinity",
    "sglang_cache_aware", "ray_prefix_aware", "llm_d", "weighted", "dynamo_kv",
)  # fmt: skip
_HEARING = {
    "prefix_affinity": "knowledge: exact",
    "dynamo_kv": "knowledge: exact, block_size: 512",
    "vllm_kv_aware": "chunk_size: 512",
}
_LAGS_S = (0, 1, 10, 100)
_REGRETS = ("overlap_lost_rate", "mean_queue_excess")
_BOUNDS = ("belady_hit_rate", "belady_pooled_hit_rate")
_CHAT = (
    "workload={{requests: 1000, classes: [{{name: chat, arrival: {{process: poisson, rate: {rate}}},"
    " prefix: {{tokens: 1024}}, input: {{dist: lognormal, median: 500, p99: 8000, max: 20000}},"
    " output: {{dist: lognormal, median: 200, p99: 1000, max: 2000}},"
    " session: {{turns: {{dist: uniform, min: 2, max: 10}}, think_time_s: {{dist: lognormal, median_s: 4,"
    " p99_s: 30}}}}}}]}}"
)
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "Mooncake, 8": (),
    "Mooncake, 64": ("replicas=64", "workload.trace.rate_scale=8", "workload.trace.limit=500"),
    "chat, 8": (_CHAT.format(rate=4),),
    "chat, 64": ("replicas=64", _CHAT.format(rate=8)),
}
"""Requests by trace and replicas: what is set beside the scenario."""
_COLUMNS: Columns = {
    "TTFT mean, ms": ("mean_ttft_ms", 1, ".0f"), "TTFT p50, ms": ("p50_ttft_ms", 1, ".0f"),
    "TTFT p99, s": ("p99_ttft_ms", 1e-3, ".2f"), "prefix hits, %": ("prefix_cache_hit_rate", 100, ".1f"),
    "imbalance (CV)": ("balance_cv", 1, ".3f"), "TPOT, ms": ("mean_tpot_ms", 1, ".2f"),
}  # fmt: skip


def measure() -> StudyResult:
    """Every router, on the same requests, in every setting."""
    by_setting = {setting: {router: _figures(router, setting) for router in ROUTERS} for setting in SETTINGS}
    found = by_setting["Mooncake, 8"]
    figures = {
        f"{short}_{router}{suffix}": by_setting[setting][router][key] * scale
        for setting, suffix in zip(SETTINGS, ("", "_64", "_chat", "_chat64"), strict=True)
        for router in ROUTERS
        for short, key, scale in (
            ("ttft", "mean_ttft_ms", 1.0), ("p99", "p99_ttft_ms", 1e-3), ("hits", "prefix_cache_hit_rate", 100.0),
            ("cv", "balance_cv", 1.0), ("lost", "overlap_lost_rate", 100.0), ("queue", "mean_queue_excess", 1.0),
            ("own", "belady_hit_rate", 100.0), ("pooled", "belady_pooled_hit_rate", 100.0),
        )
    }  # fmt: skip
    figures["ttft_live"] = _figures("llm_d", "Mooncake, 64", ", signal_interval_s: 0")["mean_ttft_ms"]
    scaled = _figures("dynamo_kv", "chat, 8", ", prefill_load_scale: 10")
    figures |= {"ttft_scaled": scaled["mean_ttft_ms"], "hits_scaled": 100.0 * scaled["prefix_cache_hit_rate"]}
    figures["ideal"] = 100.0 * ideal_hits(SCENARIO)
    figures["of_ideal"] = max(figures[f"hits_{router}"] for router in ROUTERS) / figures["ideal"]
    figures["gain"] = figures["ttft_dynamo_kv"] / figures["ttft_round_robin"]
    late = {(router, lag_s): _late(router, lag_s) for router in _HEARING for lag_s in _LAGS_S}
    for (router, lag_s), each in late.items():
        figures |= {f"ttft_{router}_late{lag_s}": each["mean_ttft_ms"]}
        figures |= {f"hits_{router}_late{lag_s}": 100.0 * each["prefix_cache_hit_rate"]}
    figures["of_most"] = max(each["prefix_cache_hit_rate"] / each["belady_hit_rate"] for each in found.values())
    tables = [_table(found), _regrets(by_setting), _foreseen(by_setting), _lags(late)]
    return StudyResult(figures, tables, _panels(by_setting))


def _figures(router: str, setting: str, more: str = "") -> dict[str, float]:
    usual = ", block_size: 512" if router in _BY_BLOCKS else ""
    options = f", {_OTHERS[router]}" if router in _OTHERS else usual
    chosen = scenarios.load(SCENARIO, [*SETTINGS[setting], f"router={{kind: {router}, regret: true{options}{more}}}"])
    result = scenarios.run(chosen)
    names = *(key for key, _, _ in _COLUMNS.values()), *_REGRETS, *_BOUNDS
    return {name: figure(result, name) for name in names}


def _late(router: str, lag_s: int) -> dict[str, float]:
    """TTFT and hits of a router that hears of the caches so much later."""
    chosen = f"router={{kind: {router}, {_HEARING[router]}, kv_event_lag_s: {lag_s}}}"
    result = scenarios.run(scenarios.load(SCENARIO, [*SETTINGS["chat, 8"], chosen]))
    return {name: figure(result, name) for name in ("mean_ttft_ms", "prefix_cache_hit_rate")}


def _foreseen(by_setting: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Table:
    """Hits of every router, and the most that caches could find which know the future."""
    rows = [
        [router]
        + [
            " · ".join(f"{100 * each[key]:.1f}" for key in ("prefix_cache_hit_rate", *_BOUNDS))
            for each in (by_setting[setting][router] for setting in SETTINGS)
        ]
        for router in ROUTERS
    ]
    head = ["router", *(f"{setting} replicas" for setting in SETTINGS)]
    return Table(head, rows, data="routers-hits.csv", parts=("hits_found", "hits_at_most", "hits_one_memory"))


def _lags(late: Mapping[tuple[str, int], Mapping[str, float]]) -> Table:
    rows = [
        [router]
        + [
            f"{each['mean_ttft_ms']:.0f} · {100 * each['prefix_cache_hit_rate']:.1f}"
            for each in (late[router, lag_s] for lag_s in _LAGS_S)
        ]
        for router in _HEARING
    ]
    head = ["router, exact", *(f"{lag_s} s late" if lag_s else "at once" for lag_s in _LAGS_S)]
    return Table(head, rows, "Chat on eight replicas, events of the caches late: mean TTFT in ms · prefix hits in %")


def _regrets(by_setting: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Table:
    """TTFT, hits and regret of every router in every setting."""
    head = ["router", *(f"{setting} replicas" for setting in SETTINGS)]
    rows = [
        [router]
        + [
            f"{each['mean_ttft_ms']:.0f} · {100 * each['prefix_cache_hit_rate']:.1f} ·"
            f" {100 * each['overlap_lost_rate']:.1f} · {each['mean_queue_excess']:.2f}"
            for each in (by_setting[setting][router] for setting in SETTINGS)
        ]
        for router in ROUTERS
    ]
    parts = ("mean_ttft_ms", "hits", "overlap_lost", "queued_too_many")
    return Table(head, rows, data="routers-regret.csv", parts=parts)


def _table(found: Mapping[str, Mapping[str, float]]) -> Table:
    rows = [[router, *cells(each, _COLUMNS)] for router, each in found.items()]
    return Table(["router", *_COLUMNS], rows, "The same 1,000 requests on eight replicas")


def _panels(by_setting: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[Panel]:
    def panel(setting: str, x_label: str, key: str, scale: float) -> Panel:
        lines = [
            Line(router, [(scale * each[key], each["mean_ttft_ms"])])
            for router, each in by_setting[setting].items()
            if router in _SHOWN
        ]
        return Panel(f"{setting} replicas", x_label, "mean TTFT, ms", lines)

    return [
        panel(setting, x_label, key, scale)
        for setting in ("Mooncake, 8", "chat, 8")
        for x_label, key, scale in (
            ("prompt tokens found, %", "prefix_cache_hit_rate", 100.0),
            ("standard deviation / mean of tokens served", "balance_cv", 1.0),
        )
    ]


STUDY = Study(
    name="routers",
    setup="Llama-3.1-8B; a step takes 6 ms, 16 µs a token and 20 ns a token of context; 1,048,576 tokens of KV a"
    " replica, with a prefix cache. Mooncake: the first 1,000 requests of its conversation trace on eight"
    " replicas, 500 at eight times the rate on 64. Chat: 1,000 turns of generated conversations of 2 to 10 turns,"
    " which share 1,024 tokens; 4 new ones a second on eight replicas, 8 on 64. Routers that remember prompts do"
    " so in blocks of 512 tokens; all else has its default.",
    alt="Mean time to first token of eleven routers against their prefix hits and their imbalance, Mooncake and chat",
    answer=(
        "**Where clients name their conversation, take session affinity. Where only the text tells, take a router that"
        " weighs prefixes and loads at every request: Ray's, the weighted sum or prefix affinity. Loads alone find less"
        " than half of what is cached; prefixes alone are a trap, and so is a beginning that all prompts share.** On"
        " Mooncake's requests, which name no session, round robin takes {ttft_round_robin:.0f} ms to the first token in"
        " the mean and finds {hits_round_robin:.1f} % of the prompt tokens in a cache; least loaded"
        " {ttft_least_loaded:.0f} ms and {hits_least_loaded:.1f} %, and no other that looks at loads alone finds more"
        " than {hits_lora_affinity:.1f} %. The six that know both take {ttft_ray_prefix_aware:.0f} to {ttft_llm_d:.0f}"
        " ms: Ray's {ttft_ray_prefix_aware:.0f}, the weighted sum {ttft_weighted:.0f}, prefix affinity"
        " {ttft_prefix_affinity:.0f}, SGLang's {ttft_sglang_cache_aware:.0f}, Dynamo's {ttft_dynamo_kv:.0f}, and"
        " llm-d's {ttft_llm_d:.0f}, which sees queues and KV as of its last look, up to 50 ms ago. They find"
        " {hits_dynamo_kv:.1f} to {hits_sglang_cache_aware:.1f} %; one cache that forgets nothing would find"
        " {ideal:.1f} %.",
        "In chats, which repeat what was said, a router decides more: {ttft_round_robin_chat:.0f} ms under round"
        " robin, {ttft_ray_prefix_aware_chat:.0f} under Ray's and {ttft_session_affinity_chat:.0f} with session"
        " affinity, which remembers nothing. The regret says why. Round robin sends a request"
        " where {lost_round_robin_chat:.0f} % less of its prompt is cached than the fullest cache for it has, session"
        " affinity where {lost_session_affinity_chat:.1f} % less is;"
        " Dynamo's still {lost_dynamo_kv_chat:.0f} %, as a block in use weighs as much there as one to prefill:"
        " among those that know prefixes it balances best (CV {cv_dynamo_kv_chat:.2f}). With"
        " `prefill_load_scale: 10` it takes {ttft_scaled:.0f} ms and finds {hits_scaled:.0f} %. SGLang's and llm-d's"
        " lose"
        " {lost_sglang_cache_aware_chat:.1f} and {lost_llm_d_chat:.1f} %, but join a queue of"
        " {queue_sglang_cache_aware_chat:.0f} and {queue_llm_d_chat:.0f} requests more than the shortest: all"
        " conversations begin alike, and both send the new ones to whoever has that beginning, the one until"
        " loads differ by 64 requests, the other while few wait. A few replicas do all the work (CV"
        " {cv_sglang_cache_aware_chat:.1f} and {cv_llm_d_chat:.1f}).",
        "Over 64 replicas round robin finds less still: on Mooncake, where fewer come to each, it finds"
        " {hits_round_robin_64:.1f} % and takes {ttft_round_robin_64:.0f} ms, Ray's"
        " {hits_ray_prefix_aware_64:.1f} % and {ttft_ray_prefix_aware_64:.0f} ms; in chats"
        " {ttft_round_robin_chat64:.0f} against {ttft_ray_prefix_aware_chat64:.0f} ms, and"
        " {ttft_session_affinity_chat64:.0f} with session affinity. llm-d's takes"
        " {ttft_llm_d_64:.0f} ms on Mooncake, {ttft_live:.0f} with current loads: what all prompts share fills a"
        " few replicas (CV {cv_llm_d_64:.1f}), and at eight times the rate more comes between two looks.",
        "All prompts of both begin with the same tokens. The production stack's prefix-aware router takes whoever"
        " has the longest match, and looks at no load: the first replica gets everything"
        " ({ttft_vllm_prefix_aware:,.0f} ms on Mooncake; the picture leaves it out). `prefix_hash` hashes these"
        " tokens alone: its bound on loads saves it, but it finds {hits_prefix_hash:.1f} %. `vllm_kv_aware` goes to"
        " the first replica that has the first 512 tokens, if all but 2,000 tokens of the prompt are there, and else"
        " where the fewest went in the last minute: {ttft_vllm_kv_aware:.0f} ms and {hits_vllm_kv_aware:.1f} %."
        " `vllm_load_aware` weighs what the same look-up tells against loads: {ttft_vllm_load_aware:.0f} ms and"
        " {hits_vllm_load_aware:.1f} %, and in chats {ttft_vllm_load_aware_chat:.0f} ms instead of"
        " {ttft_vllm_kv_aware_chat:.0f}.",
        "It is the choice that costs hits here, not the eviction. With round robin's choices caches that know the"
        " future (Belady's rule) could find at most {own_round_robin:.1f} % on Mooncake, where vLLM's find"
        " {hits_round_robin:.1f}; one memory as large as all eight at most {pooled_round_robin:.1f} %, as much as one"
        " that forgets nothing. With prefix affinity's they could find {own_prefix_affinity:.1f} %, vLLM's find"
        " {hits_prefix_affinity:.1f}. Only where one replica gets everything would eviction be worth a lot: at most"
        " {own_vllm_prefix_aware:.1f} % instead of {hits_vllm_prefix_aware:.1f}.",
        "A router that hears of the caches by events may hear late. Up to a second that does not matter in chats:"
        " prefix affinity with exact knowledge takes {ttft_prefix_affinity_late0:.0f} ms at once and"
        " {ttft_prefix_affinity_late1:.0f} a second late. Ten seconds late, about the time to the next turn, it takes"
        " {ttft_prefix_affinity_late10:.0f} ms, and at 100 s it finds {hits_prefix_affinity_late100:.1f} %, as least"
        " loaded does. `vllm_kv_aware` falls back on sessions: {ttft_vllm_kv_aware_late100:.0f} ms at 100 s.",
    ),
    limits="the load is moderate. All routers but `llm_d` see current loads; `dynamo_kv` here takes what it sent"
    " to be cached. With longer queues a router that ignores loads loses more. Regret takes each choice by"
    " itself: what the best replica had at that moment, after all choices before. The bounds by Belady's rule hold"
    " for the times of each run, at which requests are scheduled and end; the one with one memory for every router"
    " that keeps these. What routers remember costs little here: on Mooncake and eight replicas a process of its own"
    " took 89 to 103 MB under each but `vllm_kv_aware` (119) and the one that overloads a replica (69), and 0.8 to 1.2"
    " times the CPU time that it took under round robin, 2.4 times under `vllm_kv_aware`, which asks the caches at"
    " every request (pure Python, one round, without regret).",
    expected=(
        Expectation("of_ideal", 0.65, 0.35, "at most 1", "no router finds more than a cache that forgets nothing"),
        Expectation("of_most", 0.5, 0.501, "at most 1", "no cache finds more than one that knows the future"),
        Expectation("gain", 0.8, 0.2, "at most 1", "a router that knows prefixes and loads is not worse than neither"),
    ),
    measure=measure,
    trace=TRACE,
)
