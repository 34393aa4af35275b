"""LLMServingSim's requests.jsonl of a real vLLM server: the engine's own stamps of each request (bench/core/runner.py).

`input_toks`, `output_toks`, `arrival_time` (wall clock), `queued_ts`, `scheduled_ts`, `first_token_ts`, `last_token_ts`
(a clock that only runs forward), all in seconds. Where arrivals are on the other clock, the smallest difference
between a request's queued_ts and its arrival_time is taken for the distance of the clocks: that request found the
engine idle. `queued_ts` itself is no arrival: a busy engine takes a request off its socket after the step.
"""

from dataclasses import replace

from scenarios.measured.measured_run import LogFile, LogFormat, MeasuredRun, Row, Served, assemble

SAME_CLOCK_S = 1e5  # stamps of one request this far apart come from two clocks


def _read(log: LogFile, which: int | None) -> MeasuredRun:
    rows = list(log.objects())
    served = [_served(row, fields) for row, fields in enumerate(rows)]
    apart = [fields.number("queued_ts") - each.arrival_s for fields, each in zip(rows, served, strict=True)]
    two_clocks = max(map(abs, apart)) > SAME_CLOCK_S
    offset_s = min(apart) if two_clocks else 0.0
    note = "arrivals are on another clock: moved by the smallest queued_ts - arrival_time"
    return assemble(
        [_after_arrival(each, each.arrival_s + offset_s) for each in served],
        format_="llmservingsim",
        file=log.name,
        rows=len(served),
        at_client=False,
        notes=(note,) if two_clocks else (),
    )


def _served(row: int, fields: Row) -> Served:
    """Return the request with its first and last token by the log's clock, not yet counted from its arrival."""
    return Served(
        row=row,
        place=fields.place,
        input_tokens=fields.tokens("input_toks"),
        output_tokens=fields.tokens("output_toks"),
        preemptions=fields.whole("num_preemptions"),
        arrival_s=fields.number("arrival_time"),
        scheduled_s=fields.number("scheduled_ts"),
        ttft_s=fields.number("first_token_ts"),
        e2el_s=fields.number("last_token_ts"),
        request_id=fields.text("request_id"),
    )


def _after_arrival(each: Served, arrival_s: float) -> Served:
    return replace(each, arrival_s=arrival_s, ttft_s=each.ttft_s - arrival_s, e2el_s=each.e2el_s - arrival_s)


FORMAT = LogFormat("llmservingsim", _read, keys=frozenset({"arrival_time", "first_token_ts", "last_token_ts"}))
