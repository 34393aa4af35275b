"""Which tool wrote a log, by what is in it and never by its name; and the way to the reader of its format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenarios.measured import aiperf, guidellm, llmservingsim, llmservingsim_sim, plain_csv, vllm_bench
from scenarios.measured.log import MeasuredRun
from scenarios.schema.source.hints import did_you_mean
from scenarios.traces.lines import Line, numbered_lines
from scenarios.traces.rows import RowError, split_csv
from simulator.errors import InputError

FORMATS = ("vllm_bench", "aiperf", "guidellm", "llmservingsim", "llmservingsim_sim", "csv")
"""`vllm bench serve --save-detailed`, AIPerf's profile_export.jsonl, GuideLLM's benchmarks.json, LLMServingSim's
requests.jsonl of a real server and its simulator's CSV, and any CSV with our columns (`plain_csv`)."""

_LINES: Mapping[str, Callable[[list[Line], str], MeasuredRun]] = {
    "aiperf": aiperf.read,
    "llmservingsim": llmservingsim.read,
    "llmservingsim_sim": llmservingsim_sim.read,
    "csv": plain_csv.read,
}
_SUMMARIES = (
    ("mean_ttft_ms", "the summary of `vllm bench serve`: it lacks the times of single requests", "--save-detailed"),
    ("input_config", "AIPerf's summary: it lacks the times of single requests", "give its profile_export.jsonl"),
)


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    lines: list[Line]

    def document(self) -> Any:
        """The JSON document that the whole file holds. Raises InputError with the line where it breaks."""
        texts = dict(self.lines)
        text = "\n".join(texts.get(line, "") for line in range(1, self.lines[-1][0] + 1))
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(
                f"this is no whole JSON document: {error.msg}", file=self.name, line=error.lineno, column=error.colno
            ) from None
        except RecursionError:
            raise InputError("the JSON document is nested too deeply", file=self.name) from None


def read_measured(path: Path, *, format_: str = "auto", benchmark: int | None = None) -> MeasuredRun:
    """The log of a real server, plain or gzipped.

    `benchmark` chooses one of several runs in a file, counted from 1 (GuideLLM's sweeps, appended vLLM results).
    Raises InputError with file and line for what cannot be read.
    """
    if format_ not in ("auto", *FORMATS):
        raise InputError(f"unknown format of a log: {format_!r}", hint=did_you_mean(format_, ("auto", *FORMATS)))
    file = _File(str(path), list(numbered_lines(path)))
    if not file.lines:
        raise InputError("the file is empty", file=file.name)
    name = _detect(file) if format_ == "auto" else format_
    if name in _LINES:
        if benchmark is not None:
            raise InputError(f"--benchmark does not apply to {name}: the file holds one run", file=file.name)
        return _LINES[name](file.lines, file.name)
    if name == "guidellm":
        return guidellm.read(file.document(), file.name, benchmark)
    return vllm_bench.read(_results(file), file.name, benchmark)


def _results(file: _File) -> list[Any]:
    """One result, or several, each on a line of its own (`--append-result`)."""
    whole = [_object(text) for _, text in file.lines]
    if len(whole) > 1 and all(each is not None for each in whole):
        return whole
    return [file.document()]


def _detect(file: _File) -> str:
    number, first = file.lines[0]
    if first.lstrip().startswith("{"):
        found = _object(first)
        if found is None:
            found = file.document()
        return _by_keys(found, file.name)
    if first.lstrip().startswith("["):
        raise InputError("a JSON array is no log that is known", file=file.name, line=number, hint=_known())
    try:
        header = [name.strip() for name in split_csv(first)]
    except RowError as error:
        raise InputError(f"the header cannot be read: {error.detail}", file=file.name, line=number) from None
    if set(llmservingsim_sim.COLUMNS) <= set(header):
        return "llmservingsim_sim"
    return "csv"  # its reader says which columns it misses


def _by_keys(found: Any, file: str) -> str:
    keys = set(found) if isinstance(found, dict) else set()
    if {"ttfts", "input_lens"} <= keys:
        return "vllm_bench"
    if {"metadata", "metrics"} <= keys:
        return "aiperf"
    if "benchmarks" in keys:
        return "guidellm"
    if {"arrival_time", "first_token_ts", "last_token_ts"} <= keys:
        return "llmservingsim"
    for key, what, hint in _SUMMARIES:
        if key in keys:
            raise InputError(f"this is {what}", file=file, hint=hint)
    seen = ", ".join(sorted(keys)[:12])
    raise InputError("unknown format of a log", file=file, hint=f"keys seen: {seen}; {_known()}")


def _object(text: str) -> Any:
    """The object that a line holds, None if it holds no whole one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _known() -> str:
    return f"known: {', '.join(FORMATS)} (--format); a CSV needs {', '.join(plain_csv.REQUIRED)} and latencies"
