"""GuideLLM's benchmarks.json: `benchmarks[i].requests.successful[j]`, beside `errored` and `incomplete`.

Read are prompt_tokens, output_tokens, time_to_first_token_ms, request_start_time and request_latency (both s), and
where they are there info.timings' request_start, first_token_iteration and last_token_iteration: GuideLLM's own ITL
ends with the last token, its request_latency with the response. request_totals counts the requests, of which the file
keeps a random sample unless it is told to keep all (`--sample-requests`). Older files (0.2) call the times start_time
and end_time. Times are the client's. (vllm-project/guidellm, src/guidellm/schemas/request_stats.py.)
"""

import math
from collections.abc import Mapping
from typing import Any

from scenarios.measured.measured_run import LogFile, LogFormat, MeasuredRun, Row, Served, Totals, assemble, whole
from simulator.errors import InputError


def _read(log: LogFile, which: int | None) -> MeasuredRun:
    """Read the only benchmark of the file, or the chosen one."""
    document, file = log.document(), log.name
    runs = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(runs, list) or not runs:
        raise InputError("benchmarks is not a list of runs", file=file)
    index = log.chosen(runs, which, "benchmark")
    place = f"benchmarks[{index}].requests"
    requests = runs[index].get("requests") if isinstance(runs[index], dict) else None
    if not isinstance(requests, dict) or not isinstance(requests.get("successful"), list):
        raise InputError(f"{place}.successful is not a list", file=file, hint="GuideLLM's JSON output holds it")
    served = [
        _served(row, Row(each, file, f"{place}.successful[{row}]")) for row, each in enumerate(requests["successful"])
    ]
    rows = len(served) + sum(len(requests.get(name) or ()) for name in ("errored", "incomplete"))
    served.sort(key=lambda each: each.arrival_s)  # they are listed as they ended
    why = "they failed or were not completed"
    return assemble(
        served, format_="guidellm", file=file, rows=rows, at_client=True, failed=why,
        duration_s=_duration_s(runs[index]), totals=_totals(runs[index]),
    )  # fmt: skip


def _totals(benchmark: Mapping[str, Any]) -> Totals:
    """What GuideLLM counted: by default it keeps only a few requests of each status."""
    places = (("metrics", "request_totals"), ("request_totals",), ("run_stats", "requests_made"))
    counts = (whole(benchmark, *place, "successful") for place in places)
    keeps_all = "`guidellm benchmark --sample-requests N` keeps N, which must be at least their number"
    return Totals(next((count for count in counts if count is not None), None), keeps_all=keeps_all)


def _duration_s(benchmark: Mapping[str, Any]) -> float:
    """From the first request to the end of the last; NaN where the file does not say."""
    begin, end = (benchmark.get(name) for name in ("start_time", "end_time"))
    if not isinstance(begin, (int, float)) or not isinstance(end, (int, float)):
        return math.nan
    return float(end - begin) if end > begin >= 0 else math.nan


def _served(row: int, request: Row) -> Served:
    if not isinstance(request.fields, dict):
        raise request.error("is not an object")
    info = request.fields.get("info")
    stamps = info.get("timings") if isinstance(info, dict) else None
    timings = Row(stamps if isinstance(stamps, dict) else {}, request.file, f"{request.place}.info.timings")
    start_s, first_s, last_s = (
        _first(timings, name) for name in ("request_start", "first_token_iteration", "last_token_iteration")
    )
    if math.isnan(start_s):
        start_s = _first(request, "request_start_time", "start_time")
    if math.isnan(first_s):
        first_s = start_s + request.number("time_to_first_token_ms") / 1e3
    if math.isnan(last_s):
        last_s = _first(request, "last_token_time")
    if math.isnan(last_s):
        last_s = start_s + request.number("request_latency")
    return Served(
        row=row,
        place=request.place,
        input_tokens=request.tokens("prompt_tokens"),
        output_tokens=request.tokens("output_tokens"),
        ttft_s=first_s - start_s,
        e2el_s=last_s - start_s,
        arrival_s=start_s,
        request_id=request.text("request_id"),
    )


def _first(row: Row, *names: str) -> float:
    """Return the first of the numbers that is there; NaN where none is."""
    return next((row.number(name) for name in names if row.fields.get(name) is not None), math.nan)


FORMAT = LogFormat("guidellm", _read, keys=frozenset({"benchmarks"}), several=True)
