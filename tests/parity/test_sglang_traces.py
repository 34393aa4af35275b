"""Real traces through SGLang's own scheduler and ours, short of memory: every decision of every step is the same.

BATCHLAB_SGLANG_PYTHON names a python with SGLang, BATCHLAB_PARITY_SECONDS how much of each trace is replayed (ten
minutes without it, which take SGLang's scheduler some minutes). Arrivals and the coefficients of the cost are multiples
of powers of two, so that times are exact on both sides: no rounding decides which step sees an arrival.
"""

import os
import time
from dataclasses import dataclass
from typing import Any

import pytest

from scenarios.traces import TraceOptions, read_trace
from simulator.workload import Workload
from tests.parity.cases import Case
from tests.parity.sglang_cases import decisions_of, first_difference
from tests.parity.sglang_live import answers, python
from tests.shared_data import shared

SECONDS = float(os.environ.get("BATCHLAB_PARITY_SECONDS", "600"))


@dataclass(frozen=True, slots=True)
class Slice:
    """The first seconds of a trace on a GPU of its own: memory in tokens, seconds a step, a token, a context token."""

    file: str
    memory: int
    cost: tuple[float, float, float]
    schedule_conservativeness: float


SLICES = {
    "chat": Slice("AzureLLMInferenceTrace_conv.csv.gz", 40_000, (2**-6, 2**-15, 2**-24), 0.05),
    "mooncake": Slice("mooncake_conversation_trace.jsonl.gz", 300_000, (2**-7, 2**-16, 2**-27), 0.3),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "overlap, lpm": {},
    "overlap, fcfs": {"schedule_policy": "fcfs"},
    "overlap, lpm, mixed, pages of 64": {"page_size": 64, "enable_mixed_chunk": True},
    "lpm": {"overlap": False},
}

pytestmark = [pytest.mark.slow, pytest.mark.shared]


def case_of(part: Slice, workload: Workload, settings: dict[str, Any]) -> Case:
    """The slice under SGLang's defaults, but for `settings`; who ends is a surprise, for all may answer as long."""
    config = {
        "max_running_requests": 128,
        "max_total_tokens": part.memory // 64 * 64,
        "chunked_prefill_size": 8192,
        "max_prefill_tokens": 16384,
        "page_size": 1,
        "schedule_policy": "lpm",
        "schedule_conservativeness": part.schedule_conservativeness,
        "enable_mixed_chunk": False,
        "disable_radix_cache": False,
        "overlap": True,
    }
    requests = [request_of(workload, row) for row in range(len(workload.arrival_s))]
    return {"config": config | settings, "cost": dict(zip("abc", part.cost, strict=True)), "requests": requests}


def request_of(workload: Workload, row: int) -> dict[str, Any]:
    content = workload.content[row] if workload.content else None
    hashes = {"block_hashes": content.block_hashes, "hash_block_size": content.hash_block_size} if content else {}
    return {
        "id": f"r{row}",
        "arrival_time": round(float(workload.arrival_s[row]) * 2**20) / 2**20,
        "prompt_len": int(workload.input_tokens[row]),
        "output_len": int(workload.output_tokens[row]),
        "max_tokens": int(workload.max_tokens[row]),
    } | hashes


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", SLICES)
def test_a_trace_is_scheduled_as_sglang_does(name: str, settings: str) -> None:
    python()
    part = SLICES[name]
    workload = read_trace(shared(f"traces/{part.file}"), TraceOptions(duration_s=SECONDS))
    case = case_of(part, workload, SETTINGS[settings])
    started_s = time.perf_counter()
    ours = decisions_of(case)
    ours_s = time.perf_counter() - started_s
    [different] = [first_difference(case, ours, theirs) for theirs in answers([case], shared("oracle/engines"))]
    retracted = sum(len(step["preempted"]) for step in ours)
    hits = sum(sum(step["admitted"].values()) for step in ours)
    print(
        f"{name}, {settings}: {len(case['requests'])} requests, {len(ours)} steps, {retracted} retractions, "
        f"{hits} tokens of {workload.input_tokens.sum()} found in the tree, "
        f"at most {max(len(step['waiting']) for step in ours)} waiting: "
        f"ours {ours_s:.0f} s, SGLang {time.perf_counter() - started_s - ours_s:.0f} s"
    )
    assert different is None
