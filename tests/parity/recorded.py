"""Cases with vLLM's own answers, kept as JSON lines: a header, then a case and its steps a line."""

import gzip
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.parity.cases import COMPARED, Case, aborts_of
from tests.parity.live import Steps

FILE = Path(__file__).with_name("data") / "recorded.jsonl.gz"
CACHING_FILE = FILE.with_name("recorded_caching.jsonl.gz")  # with prefix caching
ASYNC_FILE = FILE.with_name("recorded_async.jsonl.gz")  # with asynchronous scheduling, half of them with caching
ABORTS_FILE = FILE.with_name("recorded_aborts.jsonl.gz")  # with aborts, of every kind
TIMES = ("t_start", "t_end")  # of cases with a cost


@dataclass(frozen=True, slots=True)
class Recorded:
    """What vLLM `version` answered to each of the cases."""

    version: str
    cases: list[Case]
    answers: list[Steps]


def columns_of(case: Case) -> tuple[str, ...]:
    timed = (*COMPARED, *TIMES) if case.get("cost") else COMPARED
    return (*timed, "aborted") if aborts_of(case) else timed


def write(recorded: Recorded, path: Path = FILE) -> None:
    """The same bytes for the same answers."""
    header = {"vllm": recorded.version, "columns": COMPARED, "columns_with_cost": (*COMPARED, *TIMES)}
    lines: list[dict[str, Any]] = [header]
    for case, steps in zip(recorded.cases, recorded.answers, strict=True):
        lines.append({"case": case, "steps": [_row(case, step) for step in steps]})
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=9, mtime=0) as file:
        for line in lines:
            file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    path.write_bytes(packed.getvalue())


def read(path: Path = FILE) -> Recorded:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        header, *lines = [json.loads(line) for line in file]
    cases = [line["case"] for line in lines]
    answers = [_steps(line["case"], line["steps"]) for line in lines]
    return Recorded(header["vllm"], cases, answers)


def _row(case: Case, step: Mapping[str, Any]) -> list[Any]:
    return [step.get(name, []) if name == "aborted" else step[name] for name in columns_of(case)]


def _steps(case: Case, rows: Sequence[Sequence[Any]]) -> Steps:
    return [dict(zip(columns_of(case), row, strict=True)) for row in rows]
