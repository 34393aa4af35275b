"""The JSON of `vllm bench serve --save-result --save-detailed`: lists with an entry a request, in the order sent.

`input_lens`, `output_lens`, `ttfts` (s), `itls` (s, a list each), `errors`; since 0.12 also `start_times` (s, of a
clock that only runs forward), later `latencies` (s). Failed requests have an error and no tokens. Times are the
client's. (vLLM 0.33.0, vllm/benchmarks/serve.py.) Without start_times there are latencies but no arrivals.
"""

import json
import math
from typing import Any

from scenarios.measured.measured_run import (
    LogFile,
    LogFormat,
    MeasuredRun,
    Row,
    Served,
    Summary,
    Totals,
    assemble,
    whole,
)
from simulator.errors import InputError

_LISTS = ("input_lens", "output_lens", "ttfts", "itls")


def _read(log: LogFile, which: int | None) -> MeasuredRun:
    """Read the only result of the file, or the chosen one."""
    results, file = _results(log), log.name
    result = results[log.chosen(results, which, "result")]
    if not isinstance(result, dict):
        raise InputError("this is not a result of `vllm bench serve`: no JSON object", file=file)
    columns = {name: _column(result, name, file) for name in _LISTS}
    rows = len(columns["ttfts"])
    optional = {name: _column(result, name, file) for name in ("start_times", "latencies", "errors") if name in result}
    for name, column in {**columns, **optional}.items():
        if len(column) != rows:
            raise InputError(f"{name} has {len(column)} entries, ttfts {rows}", file=file)
    columns |= optional
    failed = columns.get("errors", [""] * rows)
    served = [_served(row, columns, file) for row in range(rows) if not failed[row] and columns["output_lens"][row]]
    duration_s = result.get("duration")
    return assemble(
        served,
        format_="vllm_bench",
        file=file,
        rows=rows,
        at_client=True,
        failed="they failed (`errors`), or got no token",
        duration_s=float(duration_s) if isinstance(duration_s, (int, float)) else math.nan,
        totals=_totals(result, sum(not error for error in failed), len(served)),
        notes=() if "start_times" in columns else ("the log has no start_times: no arrivals to compare",),
    )


def _totals(result: dict[str, Any], answered: int, served: int) -> Totals:
    """What the tool counted. It counts an answer without a token as completed, which is left out here."""
    completed = whole(result, "completed")
    empty = answered - served
    requests = None if completed is None else completed - empty
    tokens = whole(result, "total_input_tokens") if not empty else None
    return Totals(requests, tokens, whole(result, "total_output_tokens"))


def _results(log: LogFile) -> list[Any]:
    """Return the results: one, or several with a line each (`--append-result`)."""
    if len(log.lines) > 1:
        try:
            each = [json.loads(text) for _, text in log.lines]
        except (ValueError, RecursionError):
            return [log.document()]
        if all(isinstance(result, dict) for result in each):
            return each
    return [log.document()]


def _served(row: int, columns: dict[str, list[Any]], file: str) -> Served:
    each = Row({name: column[row] for name, column in columns.items()}, file, f"request {row}")
    ttft_s = each.number("ttfts")
    if "latencies" in columns:
        e2el_s = each.number("latencies")
    else:
        gaps = each.fields["itls"]
        if not isinstance(gaps, list) or not all(isinstance(gap, (int, float)) for gap in gaps):
            raise each.error("itls is not a list of numbers")
        e2el_s = ttft_s + math.fsum(gaps)
    return Served(
        row=row,
        place=each.place,
        input_tokens=each.tokens("input_lens"),
        output_tokens=each.tokens("output_lens"),
        ttft_s=ttft_s,
        e2el_s=e2el_s,
        arrival_s=each.number("start_times") if "start_times" in columns else math.nan,
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
