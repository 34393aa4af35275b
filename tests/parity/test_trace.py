"""Ten minutes of a real chat trace through vLLM's own scheduler and ours, with a cost, short of memory."""

import time

import pytest

from scenarios.traces import TraceOptions, read_trace
from tests.parity import live
from tests.parity.cases import Case, decisions_of, first_difference
from tests.shared_data import shared

pytestmark = [pytest.mark.vllm, pytest.mark.shared]


def chat_case(*, asynchronous: bool = False) -> Case:
    """2,867 requests; 1,500 blocks are so few that many hundreds of them are preempted.

    The asynchronous case has the trace's largest answer as everybody's `max_tokens`, as most clients have: answers
    end by themselves.
    """
    workload = read_trace(shared("traces/AzureLLMInferenceTrace_conv.csv.gz"), TraceOptions(duration_s=600))
    return {
        "config": {
            "max_num_seqs": 256,
            "max_num_batched_tokens": 2048,
            "block_size": 16,
            "num_gpu_blocks": 1500,
            "scheduler_reserve_full_isl": False,
            "async_scheduling": asynchronous,
        },
        "cost": {"a": 0.005, "b": 2e-5, "c": 2e-7},
        "requests": [
            {"id": f"r{row}", "arrival_time": float(at_s), "prompt_len": int(prompt), "output_len": int(output)}
            | ({"max_tokens": int(most)} if asynchronous else {})
            for row, (at_s, prompt, output, most) in enumerate(
                zip(
                    workload.arrival_s,
                    workload.input_tokens,
                    workload.output_tokens,
                    workload.max_tokens,
                    strict=True,
                )
            )
        ],
    }


@pytest.mark.parametrize("asynchronous", [False, True])
def test_chat_trace_is_scheduled_as_vllm_does(asynchronous: bool) -> None:
    case = chat_case(asynchronous=asynchronous)
    assert len(case["requests"]) == 2867
    started_s = time.perf_counter()
    [theirs] = live.answers([case], shared("oracle"))
    vllm_s = time.perf_counter() - started_s
    preemptions = sum(len(step["preempted"]) for step in theirs)
    assert preemptions > 1000
    for fast_forward in (True, False):
        started_s = time.perf_counter()
        ours = decisions_of(case, fast_forward=fast_forward)
        ours_s = time.perf_counter() - started_s
        print(f"{len(theirs)} steps, {preemptions} preemptions: vLLM {vllm_s:.1f} s, ours {ours_s:.1f} s")
        assert first_difference(case, ours, theirs) is None
