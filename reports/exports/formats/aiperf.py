"""AIPerf's exports: profile_export.jsonl, a record a request, and profile_export_aiperf.json, their statistics.

Records hold `metadata`, `metrics` (each a value with its unit) and `error`; statistics are avg, min, max, std and
percentiles of each metric (ai-dynamo/aiperf, working-with-profile-exports.md of its tutorials, and
src/aiperf/common/models/export_models.py). Times are nanoseconds since 1970 there; here the run begins at second 0.
AIPerf's "inter token latency" is our tpot, its "inter chunk latency" our gaps.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reports.exports.exported_run import Exported, ExportFormat, as_ns, write_json, write_lines
from simulator.metrics.latency import token_times_s
from simulator.results.records import Floats, Status

RECORDS, SUMMARY = "profile_export.jsonl", "profile_export_aiperf.json"
_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_MS, _TOKENS = "ms", "tokens"
_ERRORS = {  # HTTP's codes; 499 is AIPerf's own
    Status.REJECTED: {"code": 503, "type": "RequestRejectedError"},
    Status.UNFINISHED: {"code": 504, "type": "RequestTimeoutError"},
    Status.ABORTED: {"code": 499, "type": "RequestCancellationError"},
}


def _write(run: Exported, folder: Path) -> None:
    tokens = dict(token_times_s(run.records))
    records = [_record(run, place, row, tokens.get(row)) for place, row in enumerate(run.in_order_sent())]
    write_lines(folder / RECORDS, records)
    write_json(folder / SUMMARY, _statistics(run, records))


def _record(run: Exported, place: int, row: int, token_s: Floats | None) -> dict[str, Any]:
    requests, sessions, turns = run.records.requests, run.records.session_ids, run.records.turns
    status = Status(int(requests.status[row]))
    arrival_s = float(requests.arrival_s[row])
    left_s = requests.released_s[row] if token_s is None else token_s[-1]
    end_ns = as_ns(run.end_s if np.isnan(left_s) else float(left_s))
    name = run.request_ids[row]
    session = (sessions[row] if sessions else None) or name
    cancelled = status is Status.ABORTED
    return {
        "metadata": {
            "session_num": place,
            "x_request_id": name,
            "x_correlation_id": session,
            "conversation_id": session,
            "turn_index": max(int(turns[row]) - 1, 0) if turns is not None else 0,
            "request_start_ns": as_ns(arrival_s),
            "request_ack_ns": None if token_s is None else as_ns(float(token_s[0])),
            "request_end_ns": end_ns,
            "worker_id": f"replica_{int(requests.replica[row])}",
            "record_processor_id": "batchlab",
            "benchmark_phase": "profiling",
            "was_cancelled": cancelled,
            "cancellation_time_ns": end_ns if cancelled else None,
        },
        "metrics": _metrics(run, row, token_s),
        "error": None if token_s is not None else {**_ERRORS[status], "message": run.failure(row)},
    }


def _metrics(run: Exported, row: int, token_s: Floats | None) -> dict[str, Any]:
    requests = run.records.requests
    inputs = int(requests.input_tokens[row])
    if token_s is None:
        return {"error_isl": {"value": inputs, "unit": _TOKENS}}
    outputs, arrival_s = int(requests.output_tokens[row]), float(requests.arrival_s[row])
    found: dict[str, Any] = {
        "input_sequence_length": (inputs, _TOKENS),
        "time_to_first_token": (_ms(float(token_s[0]) - arrival_s), _MS),
        "request_latency": (_ms(float(token_s[-1]) - arrival_s), _MS),
        "output_token_count": (outputs, _TOKENS),
        "output_sequence_length": (outputs, _TOKENS),
    }
    if len(token_s) > 1:
        gaps = np.round(1e3 * np.diff(token_s), 6)
        tpot = _ms(float(token_s[-1] - token_s[0]) / (outputs - 1))
        found["time_to_second_token"] = (float(gaps[0]), _MS)
        found["inter_chunk_latency"] = (gaps.tolist(), _MS)
        found["inter_token_latency"] = (tpot, _MS)
        if tpot:
            found["output_token_throughput_per_user"] = (round(1e3 / tpot, 6), "tokens/sec/user")
    return {name: {"value": value, "unit": unit} for name, (value, unit) in found.items()}


def _statistics(run: Exported, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The summary: statistics of each metric over the requests answered, and figures of the whole run."""
    requests, summary = run.records.requests, run.summary
    answered = [record for record in records if record["error"] is None]
    columns: dict[str, list[Any]] = {}
    units: dict[str, str] = {}
    for record in answered:
        for name, metric in record["metrics"].items():
            values = metric["value"] if isinstance(metric["value"], list) else [metric["value"]]
            columns.setdefault(name, []).extend(values)
            units[name] = metric["unit"]
    failed = Counter((error["code"], error["type"], error["message"]) for r in records if (error := r["error"]))
    starts, ends = ([r["metadata"][key] for r in answered] for key in ("request_start_ns", "request_end_ns"))
    single: dict[str, tuple[float | None, str]] = {
        "request_throughput": (summary["request_throughput"], "requests/sec"),
        "request_count": (len(answered), "requests"),
        "output_token_throughput": (summary["output_throughput"], "tokens/sec"),
        "goodput": (summary["request_goodput"], "requests/sec"),
        "benchmark_duration": (summary["duration"], "sec"),
        "total_isl": (summary["total_input_tokens"], _TOKENS),
        "total_osl": (summary["total_output_tokens"], _TOKENS),
        "total_output_tokens": (summary["total_output_tokens"], _TOKENS),
        "error_request_count": (len(records) - len(answered), "requests"),
        "min_request_timestamp": (min(starts, default=None), "ns"),
        "max_response_timestamp": (max(ends, default=None), "ns"),
    }
    return {
        "schema_version": "1.0",
        "aiperf_version": None,
        "benchmark_id": f"batchlab-{run.about['scenario']}-{run.label}-{run.about['seed']}",
        **{name: {"unit": unit, "avg": value} for name, (value, unit) in single.items() if value is not None},
        **{name: _statistic(units[name], np.array(values)) for name, values in columns.items()},
        "was_cancelled": bool((requests.status == Status.ABORTED).any()),
        "error_summary": [
            {"error_details": {"code": code, "type": kind, "message": message}, "count": count}
            for (code, kind, message), count in sorted(failed.items())
        ],
    }


def _statistic(unit: str, values: Floats) -> dict[str, Any]:
    points = np.percentile(values, _PERCENTILES).tolist()
    return {
        "unit": unit,
        "avg": float(values.mean()),
        **{f"p{q}": point for q, point in zip(_PERCENTILES, points, strict=True)},
        "min": values.min().item(),
        "max": values.max().item(),
        "std": float(values.std()),
    }


def _ms(seconds: float) -> float:
    """Milliseconds, to the nanosecond."""
    return round(1e3 * seconds, 6)


FORMAT = ExportFormat(
    title="whatever reads AIPerf's records and summary",
    note="records, one a request, and their statistics; its ITL is our TPOT, its ICL our gaps",
    files=(RECORDS, SUMMARY),
    write=_write,
)
