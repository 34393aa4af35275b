"""GuideLLM's benchmarks.json: `benchmarks[i].requests.successful[j]`, beside `errored` and `incomplete`.

Read are prompt_tokens, output_tokens, time_to_first_token_ms, request_start_time and request_latency (both s), and
where they are there info.timings' request_start, first_token_iteration and last_token_iteration: GuideLLM's own ITL
ends with the last token, its request_latency with the response. Older files (0.2) call the times start_time and
end_time. Times are the client's. (vllm-project/guidellm, src/guidellm/schemas/request_stats.py.)
"""

from __future__ import annotations

import math
from typing import Any

from scenarios.measured.log_format import LogFile, LogFormat
from scenarios.measured.measured_run import MeasuredRun, Served, assemble, bad_row, number, token_count
from simulator.errors import InputError


def _read(log: LogFile, which: int | None) -> MeasuredRun:
    """The one benchmark of the file, or the one that was chosen."""
    document, file = log.document(), log.name
    runs = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(runs, list) or not runs:
        raise InputError("benchmarks is not a list of runs", file=file)
    if which is None and len(runs) > 1:
        raise InputError(f"the file holds {len(runs)} benchmarks", file=file, hint="choose one: --benchmark 1, ...")
    if which is not None and not 1 <= which <= len(runs):
        raise InputError(f"the file holds no benchmark {which}", file=file, hint=f"allowed: 1 to {len(runs)}")
    index = (which or 1) - 1
    place = f"benchmarks[{index}].requests"
    requests = runs[index].get("requests") if isinstance(runs[index], dict) else None
    if not isinstance(requests, dict) or not isinstance(requests.get("successful"), list):
        raise InputError(f"{place}.successful is not a list", file=file, hint="GuideLLM's JSON output holds it")
    served = [_served(row, f"{place}.successful[{row}]", each, file) for row, each in enumerate(requests["successful"])]
    others = sum(len(requests.get(name) or ()) for name in ("errored", "incomplete"))
    served.sort(key=lambda each: each.arrival_s)  # they are listed as they ended
    return assemble(
        served,
        format_="guidellm",
        file=file,
        rows=len(served) + others,
        at_client=True,
        failed="they failed or were not completed",
    )


def _served(row: int, place: str, fields: Any, file: str) -> Served:
    if not isinstance(fields, dict):
        raise bad_row(file, place, "is not an object")
    info = fields.get("info")
    timings = info.get("timings") if isinstance(info, dict) else None
    timings = timings if isinstance(timings, dict) else {}
    start_s = _first(timings, ("request_start",), file, f"{place}.info.timings")
    if math.isnan(start_s):
        start_s = _first(fields, ("request_start_time", "start_time"), file, place)
    first_s = _first(timings, ("first_token_iteration",), file, f"{place}.info.timings")
    last_s = _first(timings, ("last_token_iteration",), file, f"{place}.info.timings")
    if math.isnan(first_s):
        first_s = start_s + number(fields, "time_to_first_token_ms", file, place) / 1e3
    if math.isnan(last_s):
        last_s = _first(fields, ("last_token_time",), file, place)
    if math.isnan(last_s):
        last_s = start_s + number(fields, "request_latency", file, place)
    name = fields.get("request_id")
    return Served(
        row=row,
        place=place,
        input_tokens=token_count(fields, "prompt_tokens", file, place),
        output_tokens=token_count(fields, "output_tokens", file, place),
        ttft_s=first_s - start_s,
        e2el_s=last_s - start_s,
        arrival_s=start_s,
        request_id=name if isinstance(name, str) else None,
    )


def _first(fields: dict[str, Any], names: tuple[str, ...], file: str, place: str) -> float:
    """The first of the numbers that is there; NaN where none is."""
    for name in names:
        if fields.get(name) is not None:
            return number(fields, name, file, place)
    return math.nan


FORMAT = LogFormat("guidellm", _read, keys=frozenset({"benchmarks"}), several=True)
