"""AIPerf's profile_export.jsonl: a record a line, of `metadata`, `metrics` and `error`.

Read are metadata.request_start_ns and x_request_id, and of the metrics (each a value with its unit)
time_to_first_token, request_latency, input_sequence_length and output_sequence_length. Times are the client's.
Records of a phase other than `profiling` are left out, and those cancelled or with an error. Source:
ai-dynamo/aiperf/docs/tutorials/working-with-profile-exports.md.
"""

from __future__ import annotations

import math
from typing import Any

from scenarios.measured.log_format import LogFile, LogFormat, Summary
from scenarios.measured.measured_run import MeasuredRun, Served, assemble, bad_row, number, token_count
from scenarios.traces.rows import RowError, json_object

_UNIT_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "nanoseconds": 1e-9, "milliseconds": 1e-3}


def _read(log: LogFile, which: int | None) -> MeasuredRun:
    file, served, rows = log.name, [], 0
    for line, text in log.lines:
        try:
            record = json_object(text)
        except RowError as error:
            raise bad_row(file, line, error.detail) from None
        metadata = _part(record, "metadata", file, line)
        if metadata.get("benchmark_phase", "profiling") != "profiling":
            continue
        rows += 1
        if record.get("error") is None and not metadata.get("was_cancelled"):
            served.append(_served(rows - 1, line, metadata, _part(record, "metrics", file, line), file))
    return assemble(
        served, format_="aiperf", file=file, rows=rows, at_client=True, failed="they failed or were cancelled"
    )


def _served(row: int, line: int, metadata: dict[str, Any], metrics: dict[str, Any], file: str) -> Served:
    start_ns = number(metadata, "request_start_ns", file, line, optional=True)
    name = metadata.get("x_request_id")
    return Served(
        row=row,
        place=line,
        input_tokens=token_count(_value(metrics, "input_sequence_length", file, line), "value", file, line),
        output_tokens=token_count(_value(metrics, "output_sequence_length", file, line), "value", file, line),
        ttft_s=_seconds(metrics, "time_to_first_token", file, line),
        e2el_s=_seconds(metrics, "request_latency", file, line),
        arrival_s=start_ns / 1e9 if math.isfinite(start_ns) else math.nan,
        request_id=name if isinstance(name, str) else None,
    )


def _seconds(metrics: dict[str, Any], name: str, file: str, line: int) -> float:
    metric = _value(metrics, name, file, line)
    unit = metric.get("unit")
    if unit not in _UNIT_S:
        raise bad_row(file, line, f"{name} is in an unknown unit, {unit!a}", f"known: {', '.join(_UNIT_S)}")
    return number(metric, "value", file, line) * _UNIT_S[unit]


def _value(metrics: dict[str, Any], name: str, file: str, line: int) -> dict[str, Any]:
    hint = "was the answer streamed (--streaming)?" if name == "time_to_first_token" else None
    metric = metrics.get(name)
    if not isinstance(metric, dict):
        raise bad_row(file, line, f"metrics has no {name}", hint)
    return metric


def _part(record: dict[str, Any], name: str, file: str, line: int) -> dict[str, Any]:
    part = record.get(name)
    if not isinstance(part, dict):
        raise bad_row(file, line, f"{name} is not an object")
    return part


FORMAT = LogFormat(
    "aiperf",
    _read,
    keys=frozenset({"metadata", "metrics"}),
    summary=Summary("input_config", "AIPerf's summary", "give its profile_export.jsonl"),
)
