"""Routing and prefix caching under coding agents: what a task takes from its first request to its last answer."""

from collections.abc import Mapping

import scenarios
from docs.writers.claims.claim import Columns, Expectation, Table, cells
from docs.writers.claims.runs import figure
from docs.writers.studies.study import Line, Panel, Study, StudyResult

SCENARIO = "study-agents"
RATES = (0.6, 1.2, 2.4, 4.8)
ROUTERS = ("round_robin", "least_loaded", "session_affinity")
_CACHELESS = "round_robin, no cache"
_COLUMNS: Columns = {
    "task mean, s": ("mean_task_s", 1, ".0f"), "task p99, s": ("p99_task_s", 1, ".0f"),
    "TTFT p50, ms": ("p50_ttft_ms", 1, ".0f"), "prefix hits, %": ("prefix_cache_hit_rate", 100, ".1f"),
    "busy, %": ("busy_fraction", 100, ".0f"),
}  # fmt: skip
_MEASURES = (*(name for name, _, _ in _COLUMNS.values()), "tasks_done", "tasks")

Found = Mapping[tuple[str, float], Mapping[str, float]]
"""By router and rate of sessions."""


def measure() -> StudyResult:
    """Every router at every rate, on the same sessions; and one of them without a cache."""
    found: dict[tuple[str, float], dict[str, float]] = {}
    for rate in RATES:
        for router in (*ROUTERS, _CACHELESS):
            settings = [f"workload.classes.0.arrival.rate={rate}", f"router={router.partition(',')[0]}"]
            if router == _CACHELESS:
                settings.append("engine.enable_prefix_caching=false")
            result = scenarios.run(scenarios.load(SCENARIO, settings))
            found[router, rate] = {name: figure(result, name) for name in _MEASURES}
    alone = scenarios.run(scenarios.load(SCENARIO, ["workload.classes.0.arrival.rate=0.01", "replicas=16"]))
    few, many = RATES[0], RATES[-1]
    figures = {
        f"{short}_{name}_{when}": found[router, rate][key] * scale
        for name, router in (("rr", ROUTERS[0]), ("ll", ROUTERS[1]), ("sa", ROUTERS[2]), ("no", _CACHELESS))
        for when, rate in (("few", few), ("many", many))
        for short, key, scale in (
            ("task", "mean_task_s", 1.0), ("p99", "p99_task_s", 1.0), ("ttft", "p50_ttft_ms", 1.0),
            ("hits", "prefix_cache_hit_rate", 100.0), ("busy", "busy_fraction", 100.0),
        )
    }  # fmt: skip
    figures["alone"] = figure(alone, "mean_task_s")
    figures["done"] = min(each["tasks_done"] / each["tasks"] for each in found.values())
    figures["least"] = min(each["mean_task_s"] for each in found.values()) / figures["alone"]
    return StudyResult(figures, [_table(found)], _panels(found))


def _table(found: Found) -> Table:
    rows = [
        [f"{rate:g}", router, *cells(found[router, rate], _COLUMNS)]
        for rate in RATES
        for router in (*ROUTERS, _CACHELESS)
    ]
    return Table(["sessions/s", "router", *_COLUMNS], rows, "The same sessions")


def _panels(found: Found) -> list[Panel]:
    def lines(key: str) -> list[Line]:
        return [Line(router, [(rate, found[router, rate][key]) for rate in RATES]) for router in (*ROUTERS, _CACHELESS)]

    return [
        Panel("Mean time of a task", "sessions/s", "s", lines("mean_task_s")),
        Panel("Median time to first token", "sessions/s", "ms", lines("p50_ttft_ms")),
    ]


STUDY = Study(
    name="agents",
    setup="Llama-3.1-8B, one H200 for each of four replicas, step times by roofline, chunked prefill; 4,000 requests of"
    " coding agents: outputs and tools as TraceLab published them, a shared system prompt of 12,000 tokens, agents of"
    " their own in a tenth of the tool calls.",
    alt="Mean time of a task and median time to first token by rate of sessions, three routers and no cache",
    answer=(
        "**A prefix cache nearly halves the time of a task, and a router that keeps a conversation where it is takes"
        " off a seventh more.** On an idle fleet of sixteen replicas a task takes {alone:.0f} s, most of it tools and"
        " decoding. On four, at 0.6 sessions a second, it takes {task_no_few:.0f} s without a cache,"
        " {task_rr_few:.0f} s with one under round robin, {task_ll_few:.0f} s under least loaded and"
        " {task_sa_few:.0f} s with session affinity. At 4.8 it takes {task_no_many:.0f} s, {task_rr_many:.0f} s,"
        " {task_ll_many:.0f} s and {task_sa_many:.0f} s.",
        "Almost all of an agent's prompt is the prompt before. Session affinity finds {hits_sa_many:.1f} % of it on the"
        " replica that it goes to, round robin {hits_rr_many:.1f} % and least loaded {hits_ll_many:.1f} %. The first"
        " token comes after {ttft_sa_many:.0f} ms, {ttft_rr_many:.0f} ms and {ttft_ll_many:.0f} ms in the median"
        " ({ttft_no_many:,.0f} ms without a cache). A task has some fifteen requests, and steps that wait for the"
        " slowest of several agents. At p99 the routers are alike ({p99_sa_many:.0f} s, {p99_rr_many:.0f} s and"
        " {p99_ll_many:.0f} s): the longest tasks are those with the most steps.",
    ),
    limits="tools and people do not react to the server. A session that would exceed its context ends, where real"
    " agents compact it. The run is short: about a"
    " hundred sessions, most of them at once at every rate, and its last tasks run on a fleet that"
    " empties.",
    expected=(
        Expectation("done", 1.0, 0.0, "1", "every request of every task is answered"),
        Expectation("least", 1.5, 0.51, "at least 1", "no task is faster than on an idle fleet"),
    ),
    measure=measure,
)
