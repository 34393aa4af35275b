"""Sarathi-Serve by hand: decodes, then the prompt under way, then new ones, in one budget."""

from hypothesis import given

from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.policies.sarathi import Sarathi
from tests.examples import examples
from tests.hand import serve
from tests.laws.scenarios import Memory, Scenario, scenarios

WIDE = Sarathi(max_num_seqs=8, max_num_batched_tokens=64)


def test_the_budget_is_512_tokens_unless_told() -> None:
    told = serve(Sarathi(), [(500, 3), (600, 2)])
    assert told.scheduled == [{"0": 500, "1": 12}, {"0": 1, "1": 511}, {"0": 1, "1": 77}, {"1": 1}]


def test_decodes_then_the_prompt_under_way_then_new_ones() -> None:
    """8 tokens a step: a decode, 12 tokens in chunks of 7 and 5, and 2 left for the next prompt."""
    told = serve(Sarathi(8, 8), [(2, 5), (12, 2), (6, 2)], [0.0, 0.5, 1.5])
    assert told.scheduled == [
        {"0": 2},
        {"0": 1, "1": 7},
        {"0": 1, "1": 5, "2": 2},
        {"0": 1, "1": 1, "2": 4},
        {"0": 1, "2": 1},
    ]


@given(scenario=scenarios("sarathi"))
@examples(150)
def test_nobody_who_runs_ever_stalls(scenario: Scenario) -> None:
    """Whoever is in the batch computes in every step, prompt or decode; and the tokens of a step are bounded."""
    policy = scenario.policy
    assert isinstance(policy, Sarathi)
    for step in scenario.run(log_decisions=True).decisions or []:
        assert set(step["scheduled"]) == set(step["running"])
        assert sum(step["scheduled"].values()) <= policy.max_num_batched_tokens


@given(scenario=scenarios("sarathi"))
@examples(150)
def test_one_prompt_is_under_way_at_most(scenario: Scenario) -> None:
    """A new one begins only with what the one before it leaves of the budget."""
    run = scenario.run(log_decisions=True)
    workload = scenario.workload
    computed: dict[str, int] = {}
    goal: dict[str, int] = {}
    for step in run.decisions or []:
        for request_id in step["preempted"]:
            # Its sampled tokens are to be computed again too.
            goal[request_id] = max(goal[request_id], computed[request_id] + (computed[request_id] >= goal[request_id]))
            computed[request_id] = 0
        for request_id, tokens in step["scheduled"].items():
            goal.setdefault(request_id, int(workload.input_tokens[int(request_id)]))
            computed[request_id] = computed.get(request_id, 0) + tokens
        assert sum(computed[request_id] < goal[request_id] for request_id in step["running"]) <= 1


def test_a_prompt_owns_the_room_for_all_of_it() -> None:
    """10 blocks of 4, chunks of 4. The second takes the 8 that are left for its 32 tokens, all at once.

    At 5 s it has computed 16 of them when the first needs a third block: 4 blocks hold nothing yet, but they are
    promised. vLLM's v1 would let the first have one of these.
    """
    lengths, arrivals, memory = [(4, 8), (32, 2)], [0.0, 0.5], Memory(11, 4)
    told = serve(Sarathi(8, 5), lengths, arrivals, memory=memory)
    assert told.scheduled == [
        {"0": 4},
        *[{"0": 1, "1": 4}] * 4,
        *[{"0": 1}] * 3,
        *[{"1": 5}] * 6,
        {"1": 2},
        {"1": 1},
    ]
    assert told.steps("preempted")[5] == ["1"]
    assert told.column("recomputed_tokens") == [0, 16]
    v1 = serve(ChunkedPrefill(8, 5), lengths, arrivals, memory=memory)
    assert v1.scheduled[5] == {"0": 1, "1": 4}


def test_a_prompt_that_gives_way_gives_all_of_its_room() -> None:
    """10 blocks of 4. At 4 s two need a block each; the prompt owns one and is promised 7, and nobody else leaves."""
    told = serve(Sarathi(8, 3, 0.0), [(1, 6), (1, 6), (32, 1)], [0.0, 0.0, 2.5], memory=Memory(11, 4))
    assert told.scheduled[3:5] == [{"0": 1, "1": 1, "2": 1}, {"0": 1, "1": 1}]
    assert told.steps("preempted")[4] == ["2"]


def test_nobody_enters_the_room_of_a_prompt_under_way() -> None:
    """At 1 s half of 16 tokens are computed, with 2 blocks of 8; a prompt of 20 needs 5, and 4 are free for it."""
    told = serve(Sarathi(8, 9), [(16, 2), (20, 1)], [0.0, 0.5], memory=Memory(9, 4))
    assert told.scheduled == [{"0": 9}, {"0": 7}, {"0": 1}, {"1": 9}, {"1": 9}, {"1": 2}]
    less = serve(Sarathi(8, 9), [(16, 2), (16, 1)], [0.0, 0.5], memory=Memory(9, 4))
    assert less.scheduled[1] == {"0": 7, "1": 2}


def test_the_watermark_is_a_hundredth_of_the_blocks() -> None:
    """100 blocks, one of them kept free. The first holds 1: a prompt of 98 enters beside it, one of 99 waits."""
    for tokens, scheduled_s in ((392, 0.0), (393, 6.0)):
        told = serve(Sarathi(8, 1000), [(4, 6), (tokens, 2)], memory=Memory(101, 4))
        assert told.column("scheduled_s") == [0.0, scheduled_s]
    off = serve(Sarathi(8, 1000, 0.0), [(4, 6), (396, 2)], memory=Memory(101, 4))
    assert off.column("scheduled_s") == [0.0, 0.0]


def test_a_prompt_that_never_clears_the_watermark_is_refused() -> None:
    told = serve(Sarathi(), [(396, 2), (397, 2)], memory=Memory(101, 4))
    assert list(told.records.reject_reasons) == [1]
    assert "the watermark keeps 1 free" in told.records.reject_reasons[1]


def test_the_latest_gives_way_and_is_computed_again() -> None:
    """5 blocks of 4. Prompts of 7 take 2 each; in the second decode both need one more, and one is left."""
    told = serve(WIDE, [(7, 6), (7, 6)], memory=Memory(6, 4))
    assert told.scheduled == [{"0": 7, "1": 7}, {"0": 1, "1": 1}, *[{"0": 1}] * 4, {"1": 9}, *[{"1": 1}] * 3]
    assert told.steps("preempted")[2] == ["1"]


def test_a_prompt_under_way_goes_on_when_somebody_else_gives_way() -> None:
    """With priorities: at 2 s two who decode need a block each and one is free; the less important of them leaves.

    The prompt, most important of all, has its chunk as if nothing had happened.
    """
    policy = Sarathi(8, 8, 0.0, "priority")
    told = serve(policy, [(3, 9), (3, 9), (14, 2)], [0.0, 0.0, 0.5], priority=[1, 2, 0], memory=Memory(8, 4))
    assert told.scheduled[:3] == [{"0": 3, "1": 3}, {"0": 1, "1": 1, "2": 6}, {"0": 1, "2": 7}]
    assert told.steps("preempted")[2] == ["1"]


def test_who_has_outgrown_the_watermark_returns_when_nobody_runs() -> None:
    """28 tokens in, 7 blocks of 10, 2 kept. Preempted with 38 tokens it needs all 10, and gets them as it is alone."""
    told = serve(Sarathi(8, 64, 0.2), [(3, 10), (28, 12)], memory=Memory(11, 4))
    assert told.steps("preempted")[2] == ["1"]
    assert told.scheduled[10] == {"1": 30}
    assert told.scheduled[19] == {"1": 38}
    assert told.column("last_token_s") == [10.0, 20.0]


def test_a_prompt_that_gives_way_may_enter_again_at_once() -> None:
    """9 blocks of 4, chunks of 6. At 4 s nothing is free, and the prompt leaves for the decode before it.

    Of its 32 tokens it had 15 left: it begins again with as many as the step has left, for 8 blocks are free again.
    """
    told = serve(Sarathi(8, 6, 0.0), [(1, 9), (32, 1)], [0.0, 0.5], memory=Memory(10, 4))
    assert told.steps("preempted")[1:4] == [[], ["1"], ["1"]]
    assert told.scheduled[:4] == [{"0": 1}, {"0": 1, "1": 5}, {"0": 1, "1": 5}, {"0": 1, "1": 5}]
