"""FastServe's multi-level feedback queue by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from simulator.errors import InputError
from simulator.policies import load_policy
from simulator.policies.fastserve import Fastserve
from tests.examples import examples
from tests.hand import Told, serve
from tests.laws.scenarios import Memory, Scenario, scenarios

ONE_SLOT = Fastserve(1, 64, starve_limit_s=1e6)
PLENTY = Memory(1001, 4, 1000)


def who(told: Told) -> str:
    """The request of each step, where there is one slot."""
    return "".join(name for step in told.scheduled for name in step)


def test_two_answers_take_turns_of_double_length() -> None:
    """1 token each on level 0, 2 on level 1, 4 on level 2. Equals go on: each goes down a level and then some."""
    told = serve(ONE_SLOT, [(4, 8), (4, 8)], memory=PLENTY)
    assert who(told) == "0" + "111" + "000000" + "11111" + "0"
    assert told.steps("swapped_out")[1] == ["0"]
    assert told.steps("swapped_in")[4] == ["0"]
    assert told.column("last_token_s") == [16.0, 15.0]


def test_a_longer_quantum() -> None:
    """3 tokens on level 0, 6 on level 1."""
    told = serve(replace(ONE_SLOT, min_quantum_tokens=3), [(4, 12), (4, 12)], memory=PLENTY)
    assert who(told) == "000" + "1" * 9 + "0" * 9 + "111"


def test_a_short_answer_overtakes_a_long_one_at_the_next_iteration() -> None:
    """It arrives at 4.5 s and enters at 5 s. What was computed of the other comes back from the host, 2 blocks."""
    told = serve(ONE_SLOT, [(4, 20), (4, 2)], [0.0, 4.5], memory=PLENTY)
    assert who(told) == "00000" + "11" + "0" * 15
    assert told.scheduled[5:8] == [{"1": 4}, {"1": 1}, {"0": 1}]
    assert told.column("scheduled_s") == [0.0, 5.0]
    assert told.column("swapped_out_blocks") == [2, 0]
    assert told.column("recomputed_tokens") == [0, 0]


def test_where_the_host_has_no_room_it_is_computed_again() -> None:
    told = serve(ONE_SLOT, [(4, 20), (4, 2)], [0.0, 4.5], memory=Memory(1001, 4, 1))
    assert who(told) == "00000" + "11" + "0" * 15
    assert told.scheduled[7] == {"0": 9}
    assert told.column("recomputed_tokens") == [8, 0]
    assert told.column("swapped_out_blocks") == [0, 0]


def test_a_long_prompt_joins_a_lower_level() -> None:
    """28 tokens count as 7 quanta of 4: level 3. The other's prompt is 1 quantum, and 14 tokens make it level 4."""
    skip = replace(ONE_SLOT, prompt_tokens_per_quantum=4)
    told = serve(skip, [(4, 30), (28, 2)], [0.0, 2.5], memory=PLENTY)
    assert told.column("scheduled_s") == [0.0, 14.0]
    # As a short prompt it would enter at once.
    assert serve(ONE_SLOT, [(4, 30), (28, 2)], [0.0, 2.5], memory=PLENTY).column("scheduled_s") == [0.0, 3.0]


def test_while_there_is_room_nobody_leaves() -> None:
    told = serve(replace(ONE_SLOT, max_num_seqs=2), [(4, 20), (4, 2)], [0.0, 4.5], memory=PLENTY)
    assert told.column("preemptions") == [0, 0]
    assert told.scheduled[5] == {"0": 1, "1": 4}, "prompts are computed beside the decodes"


def test_the_lowest_level_leaves_and_of_equals_the_latest() -> None:
    """At 8 s the first has 8 tokens, the others 4: levels 3, 2 and 2."""
    policy = replace(ONE_SLOT, max_num_seqs=3)
    told = serve(policy, [(4, 20)] * 3 + [(4, 2)], [0.0, 3.5, 3.5, 7.5], memory=PLENTY)
    assert told.steps("preempted")[8] == ["0"]
    told = serve(policy, [(4, 20)] * 3 + [(4, 2)], [0.0, 0.0, 0.0, 7.5], memory=PLENTY)
    assert told.steps("preempted")[8] == ["2"]


def test_as_many_leave_as_must_for_memory() -> None:
    """10 blocks of 4: three with 10 tokens hold 3 each; a prompt of 16 needs 4, and nobody needs a block now."""
    policy = replace(ONE_SLOT, max_num_seqs=4)
    told = serve(policy, [(5, 20)] * 3 + [(16, 2)], [0.0] * 3 + [5.5], memory=Memory(11, 4, 100))
    assert told.steps("preempted")[6] == ["2"]
    told = serve(policy, [(5, 20)] * 3 + [(20, 2)], [0.0] * 3 + [5.5], memory=Memory(11, 4, 100))
    assert told.steps("preempted")[6] == ["2", "1"]


def test_when_decoding_lacks_a_block_the_lowest_leaves() -> None:
    """5 blocks of 4: in their second decode both need one more, and one is left; the later goes, and comes back."""
    told = serve(replace(ONE_SLOT, max_num_seqs=8), [(7, 6), (7, 6)], memory=Memory(6, 4, 10))
    assert told.steps("swapped_out")[2] == ["1"]
    # With its third token the first has fallen to level 2: they change places, and then they are equals.
    assert who(told) == "01" + "01" + "0" + "1111" + "000"
    assert told.column("last_token_s") == [10.0, 7.0]


def test_prompts_are_computed_whole() -> None:
    """10 tokens a step: the second prompt does not fit beside the first, and one of 25 takes what there is."""
    told = serve(Fastserve(8, 10), [(6, 2), (6, 2), (25, 2)], memory=PLENTY)
    assert told.scheduled[:5] == [{"0": 6}, {"0": 1, "1": 6}, {"1": 1, "2": 9}, {"2": 10}, {"2": 6}]


STREAM = [0.0] + [2.5 + 2 * i for i in range(15)]


@pytest.mark.parametrize(("starve_limit_s", "longest_s"), [(1e6, 30.0), (5.0, 5.0)])
def test_a_promotion_ends_starvation(starve_limit_s: float, longest_s: float) -> None:
    """Short ones fill the only slot from 3 s to 33 s. The long one waits till then, or 5 s at most."""
    policy = replace(ONE_SLOT, starve_limit_s=starve_limit_s)
    told = serve(policy, [(4, 40)] + [(4, 2)] * 15, STREAM, memory=PLENTY)
    requeues = told.records.requeues
    waits = (requeues.to_s - requeues.from_s)[requeues.row == 0]
    assert waits.max() == longest_s
    assert told.column("output_tokens") == [40] + [2] * 15


def test_what_was_promoted_is_as_if_new() -> None:
    """The long one has 3 tokens, waits from 3 s to 8 s, enters above one that has its first token (level 1).

    Served from nothing, it falls to level 1 with a token: the next short one, of level 0, displaces it at 9 s. It is
    back before that one's fourth token and before the third answer's, which wait on level 2.
    """
    policy = replace(ONE_SLOT, starve_limit_s=5.0)
    told = serve(policy, [(4, 40), (4, 4), (4, 4), (4, 4)], [0.0, 2.5, 6.5, 8.5], memory=PLENTY)
    assert who(told)[:16] == "000" + "1111" + "2" + "0" + "333" + "22" + "00"


def test_steps_without_service_do_not_count() -> None:
    """A promotion counts from the preemption, not from the arrival."""
    policy = replace(ONE_SLOT, starve_limit_s=5.0)
    told = serve(policy, [(4, 20), (4, 3)], [0.0, 9.5], memory=PLENTY)
    assert who(told) == "0" * 10 + "111" + "0" * 10


@given(scenario=scenarios("fastserve"))
@examples(100)
def test_nobody_runs_while_a_higher_level_waits_for_a_slot(scenario: Scenario) -> None:
    """With memory and budget for all: after each decision who waits is of no higher level than anybody who runs."""
    policy = scenario.policy
    assert isinstance(policy, Fastserve)
    policy = replace(policy, max_num_batched_tokens=10_000, starve_limit_s=1e6)
    memory = replace(scenario.memory, num_gpu_blocks=10_000, num_host_blocks=10_000)
    run = replace(scenario, policy=policy, memory=memory, replicas=1).run(log_decisions=True)
    assert run.decisions is not None
    inputs, outputs = run.records.requests.input_tokens, np.zeros(len(scenario.workload), dtype=int)

    def level(name: str) -> int:
        row = int(name)
        quanta = int(inputs[row]) // policy.prompt_tokens_per_quantum + int(outputs[row]) // policy.min_quantum_tokens
        return (quanta + 1).bit_length() - 1

    for step in run.decisions:
        if step["waiting"]:
            assert len(step["running"]) == policy.max_num_seqs
            assert min(map(level, step["waiting"])) >= max(map(level, step["running"]))
        for name in step["scheduled"]:
            outputs[int(name)] += 1


@given(scenario=scenarios("fastserve"))
@examples(60)
def test_nothing_is_computed_again_where_the_host_has_room(scenario: Scenario) -> None:
    """But prompts under way: with a budget for whole prompts there are none."""
    policy = scenario.policy
    assert isinstance(policy, Fastserve)
    policy = replace(policy, max_num_batched_tokens=10_000)
    memory = replace(scenario.memory, num_host_blocks=10_000)
    requests = replace(scenario, policy=policy, memory=memory).run().records.requests
    assert (requests.recomputed_tokens == 0).all()
    assert (requests.swapped_in_blocks == requests.swapped_out_blocks).all()


def test_parameters_that_make_no_levels() -> None:
    with pytest.raises(InputError, match="fastserve refuses its parameters: min_quantum_tokens"):
        load_policy("fastserve", {"min_quantum_tokens": 0})
    with pytest.raises(InputError, match="fastserve refuses its parameters: starve_limit_s"):
        load_policy("fastserve", {"starve_limit_s": -1.0})
