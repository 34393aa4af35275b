"""AIPerf's profile_export.jsonl: a record a line, of `metadata`, `metrics` and `error`.

Read are metadata.request_start_ns and x_request_id, and of the metrics (each a value with its unit)
time_to_first_token, request_latency, input_sequence_length and output_sequence_length. Times are the client's.
Records of a phase other than `profiling` are left out, and those cancelled or with an error. Source:
ai-dynamo/aiperf/docs/tutorials/working-with-profile-exports.md.
"""

from scenarios.measured.measured_run import LogFile, LogFormat, MeasuredRun, Row, Served, Summary, assemble

_UNIT_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "nanoseconds": 1e-9, "milliseconds": 1e-3}


def _read(log: LogFile, which: int | None) -> MeasuredRun:
    served, rows = [], 0
    for record in log.objects():
        metadata = record.part("metadata")
        if metadata.fields.get("benchmark_phase", "profiling") != "profiling":
            continue
        rows += 1
        if record.fields.get("error") is None and not metadata.fields.get("was_cancelled"):
            served.append(_served(rows - 1, metadata, record.part("metrics")))
    why = "they failed or were cancelled"
    return assemble(served, format_="aiperf", file=log.name, rows=rows, at_client=True, failed=why)


def _served(row: int, metadata: Row, metrics: Row) -> Served:
    start_ns = metadata.number("request_start_ns", optional=True)
    return Served(
        row=row,
        place=metrics.place,
        input_tokens=_metric(metrics, "input_sequence_length").tokens("value"),
        output_tokens=_metric(metrics, "output_sequence_length").tokens("value"),
        ttft_s=_seconds(metrics, "time_to_first_token"),
        e2el_s=_seconds(metrics, "request_latency"),
        arrival_s=start_ns / 1e9,
        request_id=metadata.text("x_request_id"),
    )


def _seconds(metrics: Row, name: str) -> float:
    metric = _metric(metrics, name)
    unit = metric.fields.get("unit")
    if unit not in _UNIT_S:
        raise metrics.error(f"{name} is in an unknown unit, {unit!a}", f"known: {', '.join(_UNIT_S)}")
    return metric.number("value") * _UNIT_S[unit]


def _metric(metrics: Row, name: str) -> Row:
    if isinstance(metrics.fields.get(name), dict):
        return metrics.part(name)
    hint = "was the answer streamed (--streaming)?" if name == "time_to_first_token" else None
    raise metrics.error(f"metrics has no {name}", hint)


FORMAT = LogFormat(
    "aiperf",
    _read,
    keys=frozenset({"metadata", "metrics"}),
    summary=Summary("input_config", "AIPerf's summary", "give its profile_export.jsonl"),
)
