"""Autoscaling through a spike: what it saves, and what the start-up time of a replica costs."""

from collections.abc import Mapping

import numpy as np

from docs.writers.claims.claim import Columns, Expectation, Table, cells
from docs.writers.claims.runs import figure, run
from docs.writers.studies.study import Line, Panel, Study, StudyResult
from scenarios.runs.result import Result

SCENARIO = "study-autoscaling"
POLICY = "chunked_prefill"
SPIKE_S = (300.0, 480.0)
STARTUPS_S = (0, 15, 30, 60, 90, 120, 180)
SHOWN_S = (0, 60, 180)
FEWEST, MOST = 2, 8

_RULE = "fleet.0.autoscaling"
_COLUMNS: Columns = {
    "TTFT within 1 s, %": ("slo_attainment", 100, ".1f"), "p99 TTFT, s": ("p99_ttft_ms", 1e-3, ".1f"),
    "replicas, mean": ("mean_replicas", 1, ".2f"), "GPU-hours": ("gpu_hours", 1, ".2f"),
}  # fmt: skip


def _fixed(count: int) -> Result:
    return run(SCENARIO, POLICY, f"{_RULE}.min_replicas={count}", f"{_RULE}.max_replicas={count}")


def measure() -> StudyResult:
    """Runs one spike on fleets of fixed size, on autoscaled fleets, and on one with replicas in reserve."""
    scaled = {startup_s: run(SCENARIO, POLICY, f"{_RULE}.startup_s={startup_s}") for startup_s in STARTUPS_S}
    fixed = {count: _fixed(count) for count in (FEWEST, 4, MOST)}
    reserve = run(SCENARIO, POLICY, f"{_RULE}.min_replicas=4")
    lives = scaled[60].records.lives
    assert lives is not None
    figures = {
        "reaction_s": float(lives.start_s[lives.start_s > SPIKE_S[0]].min()) - SPIKE_S[0],
        "late_p99": figure(scaled[180], "p99_ttft_ms") / figure(fixed[FEWEST], "p99_ttft_ms"),
        "late_queue": figure(scaled[180], "queue_depth_max") / figure(fixed[FEWEST], "queue_depth_max"),
        "saved": 1 - figure(scaled[60], "gpu_hours") / figure(fixed[MOST], "gpu_hours"),
        "reserve_attained": figure(reserve, "slo_attainment"),
        "reserve_hours": figure(reserve, "gpu_hours"),
        "first_drain_s": _first_drain_s(scaled[0]),
    }
    for count, result in fixed.items():
        figures |= {
            f"fixed_{count}": figure(result, "slo_attainment"),
            f"fixed_hours_{count}": figure(result, "gpu_hours"),
            f"fixed_p99_{count}": figure(result, "p99_ttft_ms") / 1e3,
        }
    for startup_s, result in scaled.items():
        figures |= {
            f"attained_{startup_s}": figure(result, "slo_attainment"),
            f"hours_{startup_s}": figure(result, "gpu_hours"),
            f"p99_{startup_s}": figure(result, "p99_ttft_ms") / 1e3,
        }
    run.cache_clear()
    return StudyResult(figures, [_table(fixed, scaled, reserve)], _panels(fixed, scaled))


def _first_drain_s(result: Result) -> float:
    lives = result.records.lives
    assert lives is not None
    return float(lives.drain_s[lives.drain_s > SPIKE_S[0]].min())


def _table(fixed: Mapping[int, Result], scaled: Mapping[int, Result], reserve: Result) -> Table:
    named = {f"{count} replicas, fixed": result for count, result in fixed.items()}
    named |= {f"{FEWEST} to {MOST}, ready after {startup_s} s": result for startup_s, result in scaled.items()}
    named[f"4 to {MOST}, ready after 60 s"] = reserve
    keys = [name for name, _, _ in _COLUMNS.values()]
    rows = [[name, *cells({key: figure(result, key) for key in keys}, _COLUMNS)] for name, result in named.items()]
    return Table(["", *_COLUMNS], rows)


def _panels(fixed: Mapping[int, Result], scaled: Mapping[int, Result]) -> list[Panel]:
    ready = [Line(f"ready after {startup_s} s", _ready(scaled[startup_s]), steps=True) for startup_s in SHOWN_S]
    ends = STARTUPS_S[0], STARTUPS_S[-1]

    def over_startup(name: str) -> list[Line]:
        measured = [(float(startup_s), figure(result, name)) for startup_s, result in scaled.items()]
        limits = [
            Line(f"{count} fixed", [(float(x), figure(fixed[count], name)) for x in ends], dashed=True)
            for count in (FEWEST, MOST)
        ]
        return [Line("autoscaled", measured), *limits]

    return [
        Panel("Replicas that take requests", "time, s", "replicas", ready),
        Panel("Requests within 1 s", "start-up time, s", "share of requests", over_startup("slo_attainment")),
        Panel("What it takes", "start-up time, s", "GPU-hours", over_startup("gpu_hours")),
    ]


def _ready(result: Result) -> list[tuple[float, float]]:
    """How many replicas take requests, every ten seconds."""
    lives = result.records.lives
    assert lives is not None
    times = np.arange(200.0, 1200.0, 10.0)
    count = [(lives.ready_s <= t).sum() - (lives.drain_s <= t).sum() for t in times]
    return [(float(t), float(n)) for t, n in zip(times, count, strict=True)]


STUDY = Study(
    name="autoscaling",
    setup="Llama-3.1-8B on one H100 a replica, 16 slots each, step times by roofline; lengths of the preset `chat`,"
    " Poisson arrivals of 6 a second, and 36 a second between 300 s and 480 s. The rule is that of the"
    " Kubernetes HPA: it looks every 15 s and asks for waiting requests / 4 replicas. Replicas leave after two"
    " minutes of a lower number.",
    alt="Replicas over time, requests within their SLO and GPU-hours, by the start-up time of a replica",
    answer=(
        "**It saves idle GPU time, and the start of the spike pays for that.** Eight replicas serve the spike without"
        " a queue: {fixed_8:.1%} of the requests have their first token within a second. Before and after it they are"
        " hardly used: {fixed_hours_8:.2f} GPU-hours. Two to eight replicas take {hours_60:.2f}, {saved:.0%} less,"
        " and with a start-up time of a minute {attained_60:.1%} of the requests are in time. Two alone"
        " ({fixed_hours_2:.2f}) reach {fixed_2:.1%}. The rule itself reacts {reaction_s:.0f} s after the spike"
        " begins, and asks for all six at once. The rest of the delay is start-up time, in which the queue grows."
        " Replicas that were ready at once would keep {attained_0:.1%} in time, and not all: once there are enough,"
        " the rule sees no queue and lets replicas go from {first_drain_s:.0f} s on, although the spike lasts until"
        " 480 s.",
        "**A request that waits at a replica stays there.** So a new replica shortens the future queue, not the"
        " present one. With a start-up time as long as the spike (180 s) the fleet grows when the spike is over. The"
        " longest queue and the p99 of the time to first token ({p99_180:.0f} s) are then those of two replicas"
        " without an autoscaler, for {hours_180:.2f} GPU-hours instead of {fixed_hours_2:.2f}. From 15 s up slower"
        " starts cost more GPU time, because the old queue keeps asking for replicas that cannot take it. Two"
        " replicas in reserve (four to eight) reach {reserve_attained:.1%} for {reserve_hours:.2f} GPU-hours. Against"
        " a sudden spike, spare replicas or faster starts help.",
    ),
    limits="a spike that comes suddenly is the hardest case; a load that rises over minutes gives the rule time. A"
    " router that holds requests back until a replica has room would let new replicas take the old queue. The"
    " start of a replica (loading weights) costs only its GPU time here. Rate limits of the HPA's behaviour"
    " are not modelled.",
    expected=(
        Expectation("late_p99", 1.0, 0.02, "1 ± 2 %", "replicas that come after the spike cannot take its queue"),
        Expectation("late_queue", 1.0, 0.02, "1 ± 2 %", "the same reason"),
        Expectation("reaction_s", 15.0, 0.0, "15", "the first look after the queue has grown"),
    ),
    measure=measure,
)
