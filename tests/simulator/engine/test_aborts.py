"""Aborts by hand: steps of one second each, and what becomes of one request in each state."""

from typing import Any

import pytest

from simulator.results.records import Cause, Records, Status
from simulator.timing.formula_cost import Linear
from tests.laws.reacting import End, Script
from tests.laws.scenarios import Memory, Scenario, make_policy, make_workload

MODES = pytest.mark.parametrize("fast_forward", [True, False])
FINISHED, REJECTED, ABORTED = Status.FINISHED, Status.REJECTED, Status.ABORTED


def served(
    name: str,
    arrival_s: list[float],
    lengths: list[tuple[int, int]],
    script: Script,
    *,
    fast_forward: bool = True,
    slots: int = 4,
    budget: int = 16,
    blocks: int = 20,
    replicas: int = 1,
    **options: Any,
) -> tuple[Records, list[End], list[dict[str, Any]]]:
    scenario = Scenario(
        make_workload(arrival_s, lengths),
        make_policy(name, slots, budget, **options),
        Memory(blocks + 1, 4, 20),
        Linear(1.0),
        replicas=replicas,
    )
    run, ends = script.run(scenario, fast_forward=fast_forward)
    assert run.decisions is not None
    return run.records, ends, run.decisions


@MODES
def test_a_step_in_execution_is_not_interrupted_and_its_token_is_dropped(fast_forward: bool) -> None:
    records, ends, steps = served(
        "chunked_prefill", [0.0, 0.0], [(4, 10), (4, 3)], Script([(0, 4.5)]), fast_forward=fast_forward
    )
    assert ends == [(1, FINISHED, 3.0, None), (0, ABORTED, 5.0, None)]
    requests = records.requests
    assert requests.output_tokens.tolist() == [4, 3], "the tokens of 1, 2, 3 and 4 s; that of 5 s is dropped"
    assert requests.last_token_s.tolist() == [4.0, 3.0]
    assert requests.released_s.tolist() == [5.0, 3.0]
    assert requests.aborted_tokens.tolist() == [8, 0], "its prompt, and a step for each of four tokens"
    assert [step.get("aborted") for step in steps] == [None] * 4 + [["0"]]
    assert steps[-1]["num_free_blocks_end"] == 20


@MODES
@pytest.mark.parametrize("at_s", [3.0, 2.5])
def test_the_last_token_is_dropped_by_an_abort_up_to_its_time(at_s: float, fast_forward: bool) -> None:
    records, ends, _ = served("chunked_prefill", [0.0], [(4, 3)], Script([(0, at_s)]), fast_forward=fast_forward)
    assert ends == [(0, ABORTED, 3.0, None)]
    assert records.requests.output_tokens.tolist() == [2]


@MODES
def test_an_abort_of_a_request_that_has_ended_has_no_effect(fast_forward: bool) -> None:
    _records, ends, steps = served(
        "chunked_prefill", [0.0, 0.0], [(4, 3), (4, 6)], Script([(0, 3.5), (7, 1.0)]), fast_forward=fast_forward
    )
    assert ends == [(0, FINISHED, 3.0, None), (1, FINISHED, 6.0, None)]
    assert len(steps) == 6


@MODES
def test_a_waiting_request_leaves_the_queue(fast_forward: bool) -> None:
    """It is never scheduled, and makes way for the next; an abort at its arrival counts."""
    records, ends, _ = served(
        "chunked_prefill",
        [0.0, 0.5, 0.5, 1.0],
        [(4, 4), (4, 4), (4, 1), (4, 1)],
        Script([(1, 2.5), (3, 1.0)]),
        slots=1,
        fast_forward=fast_forward,
    )
    assert ends == [
        (3, ABORTED, 1.0, None),
        (1, ABORTED, 3.0, None),
        (0, FINISHED, 4.0, None),
        (2, FINISHED, 5.0, None),
    ]
    assert records.requests.scheduled_s.tolist()[::2] == [0.0, 4.0]
    assert records.requests.aborted_tokens.tolist() == [0] * 4


@MODES
def test_a_prompt_half_computed_is_thrown_away(fast_forward: bool) -> None:
    records, ends, steps = served("chunked_prefill", [0.0], [(40, 5)], Script([(0, 1.5)]), fast_forward=fast_forward)
    assert ends == [(0, ABORTED, 2.0, None)]
    assert records.requests.aborted_tokens.tolist() == [32]
    assert records.requests.output_tokens.tolist() == [0]
    assert steps[-1]["num_free_blocks"] == 12
    assert steps[-1]["num_free_blocks_end"] == 20


@MODES
def test_asynchronous_scheduling_drops_two_tokens(fast_forward: bool) -> None:
    """When the results of 4 s are there, the step that ends at 5 s is on its way."""
    records, ends, steps = served(
        "chunked_prefill async", [0.0], [(4, 10)], Script([(0, 3.5)]), fast_forward=fast_forward
    )
    assert ends == [(0, ABORTED, 4.0, None)]
    assert records.requests.output_tokens.tolist() == [3]
    assert records.requests.last_token_s.tolist() == [3.0]
    assert len(steps) == 5
    assert steps[-1]["aborted"] == ["0"]


@MODES
def test_a_static_batch_keeps_the_aborted_as_padding(fast_forward: bool) -> None:
    records, ends, _ = served(
        "static", [0.0, 0.0], [(4, 6), (4, 3)], Script([(0, 2.5), (1, 5.0)]), slots=2, fast_forward=fast_forward
    )
    assert ends == [(0, ABORTED, 3.0, None), (1, FINISHED, 3.0, None)], "then the batch is over"
    assert records.requests.released_s.tolist() == [3.0, 3.0]
    records, ends, _ = served(
        "static", [0.0, 0.0], [(4, 6), (4, 3)], Script([(1, 1.5)]), slots=2, fast_forward=fast_forward
    )
    assert ends == [(1, ABORTED, 2.0, None), (0, FINISHED, 6.0, None)]
    assert records.requests.released_s.tolist() == [6.0, 6.0]
    assert records.requests.output_tokens.tolist() == [6, 1]
    assert (records.rows.padded_tokens * records.rows.repeat).sum() == 4, "of the steps that end at 3, 4, 5 and 6 s"


@MODES
def test_an_answer_that_comes_whole_can_be_given_up_until_it_comes(fast_forward: bool) -> None:
    records, ends, _ = served(
        "static", [0.0, 0.0], [(4, 6), (4, 3)], Script([(1, 4.5)]), slots=2, fast_forward=fast_forward, stream=False
    )
    assert ends == [(1, ABORTED, 5.0, None), (0, FINISHED, 6.0, None)]
    assert records.requests.first_token_s[1] != records.requests.first_token_s[1]


@MODES
def test_a_swapped_request_frees_its_blocks_on_the_host(fast_forward: bool) -> None:
    """Request 1 is moved out when memory is short, and given up there."""
    records, ends, steps = served(
        "vllm_v0",
        [0.0, 0.0],
        [(8, 12), (8, 12)],
        Script([(1, 6.5)]),
        blocks=7,
        preemption_mode="swap",
        watermark=0.0,
        fast_forward=fast_forward,
    )
    assert [step["swapped_out"] for step in steps if step["swapped_out"]] == [["1"]]
    assert ends == [(1, ABORTED, 7.0, None), (0, FINISHED, 12.0, None)]
    assert records.requests.swapped_in_blocks.tolist() == [0, 0]
    assert records.requeues.to_s.tolist() != records.requeues.to_s.tolist(), "it never came back"


@MODES
def test_a_full_queue_rejects_and_says_so(fast_forward: bool) -> None:
    records, ends, _ = served(
        "chunked_prefill",
        [0.0, 0.5, 0.6, 0.7, 1.5],
        [(4, 3)] * 4 + [(400, 1)],
        Script([], max_queued_requests=2),
        slots=1,
        fast_forward=fast_forward,
    )
    assert ends[:2] == [(3, REJECTED, 0.7, Cause.QUEUE_FULL), (4, REJECTED, 1.5, Cause.TOO_LARGE)]
    assert records.reject_reasons[3] == "the queue is full: max_queued_requests is 2"
    assert "need 101 KV blocks" not in records.reject_reasons[3]


@MODES
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_follow_up_is_seen_at_the_moment_of_its_birth(replicas: int, fast_forward: bool) -> None:
    """Each answer calls for the next request at once, which the decision of that very moment admits."""
    lengths = [(4, 3), (4, 3), (4, 3), (4, 2), (4, 2), (4, 2)]
    records, ends, _ = served(
        "chunked_prefill",
        [0.0] * 6,
        lengths,
        Script([], [(0.0, None)] * 3, first=3),
        replicas=replicas,
        fast_forward=fast_forward,
    )
    assert [end_s for _, _, end_s, _ in ends] == [3.0] * 3 + [5.0] * 3
    assert records.requests.scheduled_s.tolist() == [0.0] * 3 + [3.0] * 3
