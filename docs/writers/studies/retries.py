"""Retries that keep an overload alive after its cause is gone, and what a limit on the queue does."""

from collections.abc import Mapping

import numpy as np

from docs.writers.claims.claim import Expectation, Table
from docs.writers.claims.runs import figure, percent, run
from docs.writers.studies.study import Line, Panel, Study, StudyResult
from scenarios.runs.result import Result
from simulator.results.records import Status

SCENARIO = "study-retries"
POLICY = "chunked_prefill"
LIMITS = (16, 32, 64, 128, 192, 256, 384, 512)
TIMEOUT_S = 20.0
SPIKE_S = (120.0, 180.0)
LATE_S = (300.0, 450.0)  # two minutes after the spike, and time for six attempts before the end
BIN_S = 30.0

_BACKOFF = ("workload.client.backoff_factor=2", "workload.client.jitter=1")
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "clients that wait": ("workload.client=null",),
    "timeout of 20 s": ("workload.client.max_attempts=1",),
    "3 attempts": ("workload.client.max_attempts=3",),
    "6 attempts": (),
    "6, backoff doubles": _BACKOFF,
    "6, not cancelled": ("workload.client.cancel=false",),
    "6, queue limit 64": ("engine.max_queued_requests=64",),
}
SHOWN = ("clients that wait", "timeout of 20 s", "6 attempts", "6, queue limit 64")


def measure() -> StudyResult:
    """Each kind of client through the same spike, and the impatient ones before queues of several lengths."""
    results = {label: run(SCENARIO, POLICY, *keys) for label, keys in VARIANTS.items()}
    by_limit = {
        limit: _served_share(run(SCENARIO, POLICY, f"engine.max_queued_requests={limit}"), LATE_S) for limit in LIMITS
    }
    patient = results["clients that wait"].records.requests
    busy = (patient.last_token_s >= SPIKE_S[0] + 10) & (patient.last_token_s < SPIKE_S[1])
    capacity = float(busy.sum()) / (SPIKE_S[1] - SPIKE_S[0] - 10)
    service_s = float((patient.last_token_s - patient.scheduled_s)[busy].mean())
    rule = capacity * (TIMEOUT_S - service_s)
    recovering = max(limit for limit, share in by_limit.items() if share > 0.99)
    late = {label: _served_share(result, LATE_S) for label, result in results.items()}
    figures = {
        "capacity": capacity,
        "service_s": service_s,
        "rule": rule,
        "recovering": float(recovering),
        "recovering_share": recovering / rule,
        "patient_drained_s": _drained_s(results["clients that wait"]),
        "attempts": figure(results["6 attempts"], "attempts_per_request"),
        "limited_rejected": figure(results["6, queue limit 64"], "rejected"),
        "limited_served": _served_share(results["6, queue limit 64"], (0.0, 600.0)),
        "timeout_served": _served_share(results["timeout of 20 s"], (0.0, 600.0)),
        "after_timeout": late["timeout of 20 s"],
        "after_three": late["3 attempts"],
        "after_six": late["6 attempts"],
        "after_backoff": late["6, backoff doubles"],
        "after_uncancelled": late["6, not cancelled"],
        "after_limited": late["6, queue limit 64"],
        "wasted": _wasted_share(results["6 attempts"]),
    }
    panels = [
        Panel(
            "Through the spike",
            "s since it began",
            "answers/s",
            [Line(label, _rates(results[label])) for label in SHOWN],
        ),
        Panel(
            "By the limit of the queue",
            "requests that may wait",
            "share served, 2 minutes after the spike",
            [Line("6 attempts", list(by_limit.items())), Line("the rule", [(rule, 0.0), (rule, 1.0)], dashed=True)],
        ),
    ]
    run.cache_clear()
    return StudyResult(figures, [_table(results, late), _limits(by_limit)], panels)


def _served_share(result: Result, within_s: tuple[float, float]) -> float:
    """Share of the requests first sent in this time that one of their attempts served."""
    records = result.records
    requests, calls = records.requests, records.calls
    first = np.arange(len(requests.row)) if calls is None else calls.first_row
    asked = (first == requests.row) & (requests.arrival_s >= within_s[0]) & (requests.arrival_s < within_s[1])
    served = np.zeros(len(first), dtype=np.bool_)
    served[first[requests.status == Status.FINISHED]] = True
    return float(served[asked].mean())


def _rates(result: Result) -> list[tuple[float, float]]:
    """Answers per second over the time since the spike began, each bin at its middle."""
    requests = result.records.requests
    edges = np.arange(0.0, 600.0 + BIN_S, BIN_S)
    counts, _ = np.histogram(requests.last_token_s[requests.status == Status.FINISHED], edges)
    return [
        (float(edge + BIN_S / 2 - SPIKE_S[0]), float(count / BIN_S)) for edge, count in zip(edges, counts, strict=False)
    ]


def _drained_s(result: Result) -> float:
    """When, after the spike, a request is first scheduled as soon as it comes, within a tenth of a second."""
    requests = result.records.requests
    after = requests.arrival_s >= SPIKE_S[1]
    prompt = requests.scheduled_s - requests.arrival_s < 0.1
    return float(requests.arrival_s[after & prompt].min()) - SPIKE_S[1]


def _wasted_share(result: Result) -> float:
    """Share of the computed tokens that went to abandoned attempts."""
    requests = result.records.requests
    done = requests.status == Status.FINISHED
    useful = float((requests.input_tokens + requests.output_tokens - 1)[done].sum())
    wasted = float(requests.aborted_tokens.sum())
    return wasted / (wasted + useful)


def _table(results: Mapping[str, Result], late: Mapping[str, float]) -> Table:
    head = ["", "served, 2 minutes after the spike", "served in all", "attempts per request"]
    rows = []
    for label, result in results.items():
        attempts = result.summary["attempts_per_request"]
        rows.append(
            [
                label,
                percent(late[label]),
                percent(_served_share(result, (0.0, 600.0))),
                "1.0" if attempts is None else f"{attempts:.1f}",
            ]
        )
    return Table(head, rows, "Requests that were first asked 120 to 270 s after the spike, and all")


def _limits(by_limit: Mapping[int, float]) -> Table:
    head = ["requests that may wait", *map(str, by_limit)]
    return Table(head, [["served, 2 minutes after the spike", *map(percent, by_limit.values())]], "Six attempts")


STUDY = Study(
    name="retries",
    setup="Llama-3.1-8B on one H100 with 32 slots, step times by roofline; chat at 8 requests per second, three times"
    " as many for one minute from 120 s on. The server carries {capacity:.1f} requests per second. Clients wait 20 s"
    " for an answer, then cancel and ask again after 1 s, up to six times.",
    alt="Answers per second through a spike for four kinds of clients, and the share served after it by queue limit",
    answer=(
        "**The spike ends, the overload does not.** If clients wait without limit, the backlog of the spike is gone"
        " {patient_drained_s:.0f} s after it. If they leave after 20 s and do not come back, {after_timeout:.0%} of"
        " the requests that come later than two minutes after the spike are served. With six attempts the service"
        " never recovers: {after_six:.1%} of the same requests are served, at a load that it could serve before. Each"
        " request now comes up to six times ({attempts:.1f} on average), 48 a second instead of 8. The queue is as"
        " long as the clients' patience, so a request starts when its client is about to leave. {wasted:.0%} of all"
        " tokens are computed for clients that have gone. The cause is not the load but the queue: a metastable"
        " failure in the sense of N. Bronson et al., Metastable Failures in Distributed Systems (HotOS 2021). Clients"
        " can help with fewer attempts ({after_three:.0%} with three). A backoff that doubles, with full jitter, does"
        " not help ({after_backoff:.1%}): it moves attempts and makes no fewer of them. It is no better if the server"
        " does not learn that a client has left ({after_uncancelled:.1%}).",
        "**A limit on the queue ends it**, because a request that starts then still has a client. The limit must keep"
        " the wait below the timeout less the time of service: fewer than capacity x (timeout - service) ="
        " {capacity:.1f} x (20 - {service_s:.1f}) = {rule:.0f} requests. Measured, the service recovers if at most"
        " {recovering:.0f} may wait. With a limit of 64 the spike itself costs {limited_rejected:.0f} immediate"
        " rejections, and {limited_served:.0%} of all requests are served in the end. Where clients leave and do not"
        " come back, {timeout_served:.0%} are.",
    ),
    limits="there is one server, first come first served, and one patience for all clients. The rule takes the mean"
    " service time. Long answers need more, so the limit found is {recovering_share:.2f} of the rule's."
    " Rejections are free here; a real server pays a little for each.",
    expected=(
        Expectation("after_timeout", 1.0, 0.0, "1", "a backlog without retries drains"),
        Expectation("after_six", 0.0, 0.01, "0", "six attempts of 8 a second are more than the server can serve"),
        Expectation("after_limited", 1.0, 0.0, "1", "64 waiting requests are less than the rule allows"),
        Expectation("recovering_share", 0.85, 0.2, "0.65 to 1.05", "the rule, less what long answers need"),
    ),
    measure=measure,
)
