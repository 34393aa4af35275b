"""LLMServingSim's requests.jsonl of a real vLLM server: the engine's own stamps of each request (bench/core/runner.py).

`input_toks`, `output_toks`, `arrival_time` (wall clock), `queued_ts`, `scheduled_ts`, `first_token_ts`, `last_token_ts`
(a clock that only runs forward), all in seconds. Where arrivals are on the other clock, the smallest difference
between a request's queued_ts and its arrival_time is taken for the distance of the clocks: that request found the
engine idle. `queued_ts` itself is no arrival: a busy engine takes a request off its socket after the step.
"""

from __future__ import annotations

from dataclasses import dataclass

from scenarios.measured.log_format import LogFile, LogFormat
from scenarios.measured.measured_run import MeasuredRun, Served, assemble, bad_row, number, token_count, whole
from scenarios.traces.rows import RowError, json_object

SAME_CLOCK_S = 1e5  # stamps of one request this far apart come from two clocks


@dataclass(frozen=True, slots=True)
class _Stamps:
    line: int
    request_id: str | None
    input_tokens: int
    output_tokens: int
    preemptions: int | None
    arrival_s: float
    queued_s: float
    scheduled_s: float
    first_s: float
    last_s: float


def _read(log: LogFile, which: int | None) -> MeasuredRun:
    file = log.name
    stamps = [_stamps(line, text, file) for line, text in log.lines]
    apart = [each.queued_s - each.arrival_s for each in stamps]
    two_clocks = max(map(abs, apart)) > SAME_CLOCK_S
    offset_s = min(apart) if two_clocks else 0.0
    served = [
        Served(
            row=row,
            place=each.line,
            input_tokens=each.input_tokens,
            output_tokens=each.output_tokens,
            ttft_s=each.first_s - (each.arrival_s + offset_s),
            e2el_s=each.last_s - (each.arrival_s + offset_s),
            arrival_s=each.arrival_s + offset_s,
            scheduled_s=each.scheduled_s,
            request_id=each.request_id,
            preemptions=each.preemptions,
        )
        for row, each in enumerate(stamps)
    ]
    note = "arrivals are on another clock: moved by the smallest queued_ts - arrival_time"
    return assemble(
        served,
        format_="llmservingsim",
        file=file,
        rows=len(served),
        at_client=False,
        notes=(note,) if two_clocks else (),
    )


def _stamps(line: int, text: str, file: str) -> _Stamps:
    try:
        fields = json_object(text)
    except RowError as error:
        raise bad_row(file, line, error.detail) from None
    name = fields.get("request_id")
    return _Stamps(
        line=line,
        request_id=name if isinstance(name, str) else None,
        input_tokens=token_count(fields, "input_toks", file, line),
        output_tokens=token_count(fields, "output_toks", file, line),
        preemptions=whole(fields, "num_preemptions", file, line),
        arrival_s=number(fields, "arrival_time", file, line),
        queued_s=number(fields, "queued_ts", file, line),
        scheduled_s=number(fields, "scheduled_ts", file, line),
        first_s=number(fields, "first_token_ts", file, line),
        last_s=number(fields, "last_token_ts", file, line),
    )


FORMAT = LogFormat(
    "llmservingsim",
    _read,
    keys=frozenset({"arrival_time", "first_token_ts", "last_token_ts"}),
)
