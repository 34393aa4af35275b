"""The JSON of `vllm bench serve --save-result --save-detailed`: lists with an entry a request, in the order sent.

`input_lens`, `output_lens`, `ttfts` (s), `itls` (s, a list each), `errors`; since 0.12 also `start_times` (s, of a
clock that only runs forward), later `latencies` (s). Failed requests have an error and no tokens. Times are the
client's. (vLLM 0.33.0, vllm/benchmarks/serve.py.) Without start_times there are latencies but no arrivals.
"""

from __future__ import annotations

import json
import math
from typing import Any

from scenarios.measured.log_format import LogFile, LogFormat, Summary
from scenarios.measured.measured_run import MeasuredRun, Served, assemble, number, token_count
from simulator.errors import InputError

_LISTS = ("input_lens", "output_lens", "ttfts", "itls")


def _read(log: LogFile, which: int | None) -> MeasuredRun:
    """The one result of the file, or the one that was chosen."""
    results, file = _results(log), log.name
    if which is None and len(results) > 1:
        raise InputError(f"the file holds {len(results)} results", file=file, hint="choose one: --benchmark 1, ...")
    if which is not None and not 1 <= which <= len(results):
        raise InputError(f"the file holds no result {which}", file=file, hint=f"allowed: 1 to {len(results)}")
    result = results[(which or 1) - 1]
    if not isinstance(result, dict):
        raise InputError("this is not a result of `vllm bench serve`: no JSON object", file=file)
    columns = {name: _column(result, name, file) for name in _LISTS}
    rows = len(columns["ttfts"])
    optional = {name: _column(result, name, file) for name in ("start_times", "latencies", "errors") if name in result}
    for name, column in {**columns, **optional}.items():
        if len(column) != rows:
            raise InputError(f"{name} has {len(column)} entries, ttfts {rows}", file=file)
    served = []
    for row in range(rows):
        if (optional["errors"][row] if "errors" in optional else "") or not columns["output_lens"][row]:
            continue
        served.append(_served(row, columns, optional, file))
    duration_s = result.get("duration")
    return assemble(
        served,
        format_="vllm_bench",
        file=file,
        rows=rows,
        at_client=True,
        failed="they failed (`errors`), or got no token",
        duration_s=float(duration_s) if isinstance(duration_s, (int, float)) else math.nan,
        notes=() if "start_times" in optional else ("the log has no start_times: no arrivals to compare",),
    )


def _results(log: LogFile) -> list[Any]:
    """One result, or several, each on a line of its own (`--append-result`)."""
    if len(log.lines) > 1:
        try:
            each = [json.loads(text) for _, text in log.lines]
        except (ValueError, RecursionError):
            return [log.document()]
        if all(isinstance(result, dict) for result in each):
            return each
    return [log.document()]


def _served(row: int, columns: dict[str, list[Any]], optional: dict[str, list[Any]], file: str) -> Served:
    fields = {name: column[row] for name, column in {**columns, **optional}.items()}
    place = f"request {row}"
    ttft_s = number(fields, "ttfts", file, place)
    if "latencies" in fields:
        e2el_s = number(fields, "latencies", file, place)
    else:
        gaps = fields["itls"]
        if not isinstance(gaps, list) or not all(isinstance(gap, (int, float)) for gap in gaps):
            raise InputError(f"{place}: itls is not a list of numbers", file=file)
        e2el_s = ttft_s + math.fsum(gaps)
    return Served(
        row=row,
        place=place,
        input_tokens=token_count(fields, "input_lens", file, place),
        output_tokens=token_count(fields, "output_lens", file, place),
        ttft_s=ttft_s,
        e2el_s=e2el_s,
        arrival_s=number(fields, "start_times", file, place) if "start_times" in fields else math.nan,
    )


def _column(result: dict[str, Any], name: str, file: str) -> list[Any]:
    column = result.get(name)
    if not isinstance(column, list):
        raise InputError(f"{name} is not a list", file=file, hint="run `vllm bench serve` with --save-detailed")
    return column


FORMAT = LogFormat(
    "vllm_bench",
    _read,
    keys=frozenset({"ttfts", "input_lens"}),
    several=True,
    summary=Summary("mean_ttft_ms", "the summary of `vllm bench serve`", "--save-detailed"),
)
