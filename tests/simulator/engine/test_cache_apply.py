"""Small schedules with a prefix cache, worked out by hand: steps of a second, blocks of 4 tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from simulator.errors import PolicyError
from simulator.plan import Chunk, Holds, Policy, Preemption, StepPlan, View
from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.request import PromptContent
from simulator.simulate import Run
from tests.hand import ONE_SECOND, Told
from tests.laws.caching import CheckingCache, run_cached, with_contents
from tests.laws.scenarios import Memory, Scenario, make_workload
from tests.laws.scripted import Line, Scripted, admit_all, go_on, serve
from tests.laws.test_broken_policies import first, last, two_requests, waiting

WIDE = ChunkedPrefill(8, 64)
A = PromptContent(prefix_group="a", prefix_tokens=1000)
B = PromptContent(prefix_group="b", prefix_tokens=1000)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: prompt, answer, and the rest."""

    input_tokens: int
    output_tokens: int
    content: PromptContent | None = None
    at_s: float = 0.0
    priority: int = 0


def told(policy: Policy, asks: Sequence[Ask], usable: int = 100) -> Told:
    """What happened, the same with and without fast-forward, with a cache that checks itself."""
    workload = make_workload(
        [ask.at_s for ask in asks],
        [(ask.input_tokens, ask.output_tokens) for ask in asks],
        priority=[ask.priority for ask in asks],
    )
    scenario = Scenario(workload, policy, Memory(usable + 1, 4), ONE_SECOND)
    scenario = with_contents(scenario, [ask.content for ask in asks])
    run = run_cached(scenario, make_cache=CheckingCache)
    assert run.decisions == run_cached(scenario, fast_forward=False).decisions
    assert run.decisions is not None
    return Told(run.records, run.decisions)


def test_a_later_request_of_the_same_step_hits_what_an_earlier_one_will_compute() -> None:
    """3 blocks for the first prompt of 10; the second shares two of them and takes one for its last 2 tokens."""
    ran = told(WIDE, [Ask(10, 2, A), Ask(10, 2, A)])
    assert ran.scheduled == [{"0": 10, "1": 2}, {"0": 1, "1": 1}]
    assert ran.steps("admitted") == [{"0": 0, "1": 8}, {}]
    assert ran.steps("num_free_blocks") == [96, 96]
    assert ran.column("cached_tokens") == [0, 8]
    assert ran.records.rows.tokens.tolist() == [12, 2]


def test_hits_reach_as_far_as_chunks_have_been_scheduled() -> None:
    """6 tokens a step: when the second is admitted, the first prompt of 12 is in the cache but for its last token."""
    ran = told(ChunkedPrefill(8, 6), [Ask(12, 3, A), Ask(12, 3, A)])
    assert ran.scheduled[:3] == [{"0": 6}, {"0": 6}, {"0": 1, "1": 4}]
    assert ran.steps("admitted")[2] == {"1": 8}


def test_hits_stop_at_the_chunk_that_is_being_scheduled() -> None:
    """8 tokens a step, the second prompt right behind the first chunk of 6: one block of it is full."""
    ran = told(ChunkedPrefill(8, 8, long_prefill_token_threshold=6), [Ask(12, 1, A), Ask(12, 1, A)])
    assert ran.scheduled == [{"0": 6, "1": 2}, {"0": 6, "1": 2}, {"1": 4}]
    assert ran.steps("admitted")[0] == {"0": 0, "1": 4}


def test_hits_are_no_part_of_the_budget() -> None:
    """Of the second prompt of 40 nothing but the last block is left to compute, in one step of 8."""
    ran = told(ChunkedPrefill(8, 8), [Ask(40, 1, A), Ask(40, 1, A, at_s=6.0)])
    assert ran.scheduled == [{"0": 8}] * 5 + [{"1": 4}]
    assert ran.column("first_token_s") == [5.0, 7.0]


def test_an_answer_is_hit_by_the_next_turn() -> None:
    """8 + 5 tokens, the last of which is never computed: 3 blocks for whoever goes on from there."""
    tokens = tuple(range(30))
    turn = PromptContent(prompt_token_ids=tokens[:8], output_token_ids=tokens[8:13])
    following = PromptContent(prompt_token_ids=tokens[:20])
    other = PromptContent(prompt_token_ids=(*tokens[:10], 99, *tokens[11:20]))
    ran = told(WIDE, [Ask(8, 5, turn), Ask(20, 1, following, at_s=9.0), Ask(20, 1, other, at_s=20.0)])
    assert ran.column("cached_tokens") == [0, 12, 8]


def test_cached_blocks_that_nobody_uses_are_free_until_they_are_hit() -> None:
    """4 blocks. The third prompt of 12 would hit two that count as free and take one more: with 2 free it waits.

    Meanwhile the second request grows into the fourth block, and the two it would hit survive.
    """
    ran = told(WIDE, [Ask(8, 1, A), Ask(4, 4), Ask(12, 1, A, at_s=1.0)], usable=4)
    assert ran.scheduled == [{"0": 8, "1": 4}, {"1": 1}, {"1": 1}, {"1": 1}, {"2": 4}]
    assert ran.steps("num_free_blocks") == [1, 2, 2, 2, 1]
    assert ran.steps("num_free_blocks_end") == [3, 2, 2, 4, 4]
    assert ran.column("cached_tokens") == [0, 0, 8]


@pytest.mark.parametrize(("input_tokens", "hits"), [(8, 4), (7, 8)])
def test_running_requests_take_their_blocks_before_anybody_is_admitted(input_tokens: int, hits: int) -> None:
    """7 blocks, and in the second step the free queue is 2, 7, 6: the second block of group a is the first to go.

    If request 2 is at the end of its blocks it takes that very block, just before request 4 would have hit it.
    """
    asks = [Ask(8, 1, A), Ask(5, 4, A), Ask(input_tokens, 4), Ask(8, 1), Ask(9, 1, A, at_s=1.0)]
    ran = told(WIDE, asks, usable=7)
    assert ran.steps("admitted")[:2] == [{"0": 0, "1": 4, "2": 0, "3": 0}, {"4": hits}]
    assert ran.scheduled[1] == {"1": 1, "2": 1, "4": 9 - hits}


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    """5 blocks, two prompts of 7: at their 9th token both need a third block, and the last leaves.

    Its two blocks stay in the cache. It returns when the other has finished and computes its 9th token alone.
    """
    ran = told(WIDE, [Ask(7, 6), Ask(7, 6)], usable=5)
    both = {"0": 1, "1": 1}
    assert ran.scheduled == [{"0": 7, "1": 7}, both, *[{"0": 1}] * 4, {"1": 1}, {"1": 1}, {"1": 1}, {"1": 1}]
    assert ran.steps("preempted")[2] == ["1"]
    assert ran.steps("admitted")[6] == {"1": 8}
    assert ran.column("cached_tokens") == [0, 7], "its prompt; the eighth is a token of its answer"
    assert ran.column("recomputed_tokens") == [0, 0], "8 tokens were lost and all of them found again"


def test_what_is_not_found_again_is_computed_again() -> None:
    """As above, but the other goes on and takes one of the two blocks: the tail first."""
    ran = told(WIDE, [Ask(7, 10), Ask(7, 6)], usable=5)
    assert ran.steps("preempted")[2] == ["1"]
    assert ran.steps("num_free_blocks")[2:11] == [2] * 4 + [1] * 4 + [2]
    assert ran.steps("admitted")[10] == {"1": 4}
    assert ran.scheduled[10] == {"1": 5}
    assert ran.column("cached_tokens") == [0, 4]
    assert ran.column("recomputed_tokens") == [0, 4]


def test_a_victim_already_scheduled_leaves_blocks_that_were_never_computed() -> None:
    """Rule P1 of vLLM: by priority, a victim's chunk of this very step is dropped, but its full blocks stay cached.

    8 blocks, chunks of at most 8. Request 0 has 20 of its 29 tokens (blocks 1 to 5) when it is given 8 more (7 and
    8; block 6 is the other's). The other then needs a block at its 5th token: request 0 leaves, and block 8, the
    tail, is taken. Block 7 stays, as if its 4 tokens had been computed, and request 0 returns with 24 instead of 20.
    """
    policy = ChunkedPrefill(4, 12, long_prefill_token_threshold=8, reserve_full_isl=False, order="priority")
    ran = told(policy, [Ask(29, 1, priority=9), Ask(4, 3, at_s=1.0)], usable=8)
    assert ran.scheduled == [{"0": 12}, {"0": 8, "1": 4}, {"1": 1}, {"1": 1}, {"0": 5}]
    assert ran.steps("preempted") == [[], [], ["0"], [], []]
    assert ran.steps("admitted") == [{"0": 0}, {"1": 0}, {}, {}, {"0": 24}]
    assert ran.steps("num_free_blocks") == [5, 2, 6, 6, 0]
    assert sum(step.get("0", 0) for step in ran.scheduled) == 29 - 4, "4 tokens were never computed"
    assert ran.column("cached_tokens")[0] == 24
    assert ran.column("recomputed_tokens")[0] == 0


def test_others_hit_what_a_victim_leaves() -> None:
    """5 blocks: at the second step request 1 finds none for its 13th token and leaves three full ones in the cache.

    They count as free, and taking them with a fourth would need one more than there is until request 0 has finished.
    Then both come back to them in the same step: the second no longer pays for what the first has taken.
    """
    ran = told(WIDE, [Ask(4, 5), Ask(12, 4, A), Ask(13, 1, A, at_s=2.0)], usable=5)
    assert ran.steps("preempted")[1] == ["1"]
    assert ran.scheduled == [{"0": 4, "1": 12}, *[{"0": 1}] * 4, {"1": 1, "2": 1}, {"1": 1}, {"1": 1}]
    assert ran.steps("admitted")[5] == {"1": 12, "2": 12}
    assert ran.steps("num_free_blocks") == [1, 3, 3, 3, 3, 0, 1, 1]


def test_priority_decides_who_looks_first() -> None:
    """The more urgent is admitted first and finds nothing; the other finds what it brings."""
    policy = ChunkedPrefill(8, 64, order="priority")
    ran = told(policy, [Ask(9, 1, A, priority=2), Ask(9, 1, A, priority=1)])
    assert list(ran.steps("admitted")[0].items()) == [("1", 0), ("0", 8)]


def test_every_replica_has_a_cache_of_its_own() -> None:
    workload = make_workload([0.0, 0.0, 5.0, 5.0], [(9, 1)] * 4)
    scenario = Scenario(workload, WIDE, Memory(100, 4), ONE_SECOND, replicas=2)
    requests = run_cached(with_contents(scenario, [A, B, A, A])).records.requests
    assert requests.replica.tolist() == [0, 1, 0, 1]
    assert requests.cached_tokens.tolist() == [0, 0, 8, 0]


# ------------------------------------------------------------------------------------------------- plans that cannot be


NO_PLAN: Any = None
BROKEN: dict[str, tuple[list[Line], str]] = {
    "swaps out": ([admit_all, lambda v: StepPlan(preempt=(Preemption(last(v), swap=True),))], "swaps, which a prefix"),
    "swaps in": ([admit_all, lambda v: StepPlan(resume=(last(v),))], "swaps, which a prefix cache does not allow"),
    "computes what is cached": (
        [admit_all, go_on, lambda v: StepPlan(preempt=(Preemption(last(v)),)), admit_all],
        "has 2 left",
    ),
    "adds nothing and asks again": (
        [lambda v: StepPlan(more=True), lambda v: StepPlan(more=True)],
        "sets more=True but admits nothing",
    ),
    "adds what is no plan": ([lambda v: StepPlan(more=True), lambda v: NO_PLAN], "later parts may only admit requests"),
    "preempts late": (
        [admit_all, lambda v: StepPlan(more=True), lambda v: StepPlan(preempt=(Preemption(last(v)),))],
        "later parts may only admit requests",
    ),
    "pauses late": (
        [admit_all, lambda v: StepPlan(more=True), lambda v: StepPlan(paused=(last(v),))],
        "later parts may only admit requests",
    ),
    "goes on with a prompt late": (
        [
            lambda v: StepPlan(prefill=(Chunk(waiting(v), 1),)),
            lambda v: StepPlan(more=True),
            lambda v: StepPlan(prefill=(Chunk(first(v), 1),), more=True),
        ],
        "later parts may only admit requests",
    ),
    "computes twice over two parts": (
        [
            lambda v: StepPlan(prefill=(Chunk(waiting(v), 1),), more=True),
            lambda v: StepPlan(prefill=(Chunk(first(v), 1),)),
        ],
        "later parts may only admit requests",
    ),
    "computes a running request twice": (
        [
            lambda v: StepPlan(prefill=(Chunk(waiting(v), 1),)),
            lambda v: StepPlan(prefill=(Chunk(first(v), 1), Chunk(first(v), 2))),
        ],
        "computes a request twice",
    ),
    "computes more than there is": (
        [lambda v: StepPlan(prefill=(Chunk(waiting(v), 1),)), lambda v: StepPlan(prefill=(Chunk(first(v), 9),))],
        "which has 5 left",
    ),
    "computes who decodes": ([admit_all, lambda v: StepPlan(prefill=(Chunk(first(v), 1),))], "decoding"),
    "preempts and computes": (
        [admit_all, lambda v: StepPlan(preempt=(Preemption(last(v)),), prefill=(Chunk(last(v), 1),))],
        "preempts and computes request 1 in the same step",
    ),
    "had given a victim too much": (
        [admit_all, lambda v: StepPlan(preempt=(Preemption(last(v), scheduled_tokens=2),))],
        "gives 2 tokens to its victim 1, which has 1 left",
    ),
    "preempts twice": (
        [admit_all, lambda v: StepPlan(preempt=(Preemption(first(v)), Preemption(first(v))))],
        "waiting",
    ),
    "preempts who waits": ([lambda v: StepPlan(preempt=(Preemption(waiting(v)),))], "waiting"),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_plan_that_cannot_be_is_an_error(what: str, fast_forward: bool) -> None:
    lines, says = BROKEN[what]
    scenario = two_requests(lines)
    with pytest.raises(PolicyError, match=r"Scripted at step .* s\): plan") as caught:
        run_cached(scenario, fast_forward=fast_forward)
    assert says in str(caught.value)


@pytest.mark.parametrize("more", [True, False])
def test_decoding_without_a_block_is_an_error(more: bool) -> None:
    """Two prompts of 6 in 6 blocks of 2 tokens: nobody can decode, and the plan throws nobody out."""
    with pytest.raises(PolicyError, match=r"takes [12] blocks.*0 are free"):
        run_cached(two_requests([admit_all, lambda v: StepPlan(more=more)], blocks=6))


def test_more_is_for_a_prefix_cache() -> None:
    with pytest.raises(PolicyError, match="plan sets more=True, which is for replicas with a prefix cache"):
        two_requests([lambda v: StepPlan(more=True)]).run()


def test_a_policy_may_preempt_without_need() -> None:
    """Its blocks stay where they are: 6 tokens and one sampled, of which 3 blocks of 2 are found again."""
    policy_lines: list[Line] = [
        admit_all,
        lambda v: StepPlan(preempt=(Preemption(last(v)),)),
        lambda v: StepPlan(prefill=(Chunk(waiting(v), 1),)),
        serve,
    ]
    run = run_cached(two_requests(policy_lines), make_cache=CheckingCache)
    assert run.records.requests.cached_tokens.tolist() == [0, 6]
    assert run.records.requests.recomputed_tokens.tolist() == [0, 0]
    assert run.decisions is not None
    assert [step["scheduled"] for step in run.decisions[:3]] == [{"0": 6, "1": 6}, {"0": 1}, {"0": 1, "1": 1}]


def test_how_long_a_plan_holds_is_said_by_its_last_part() -> None:
    """Four parts for two steps, none for the three that follow, and one when all have left: STEP does not count."""
    lines: list[Line] = [
        lambda v: StepPlan(prefill=tuple(Chunk(r, r.num_tokens_to_compute) for r in v.waiting), more=True),
        lambda v: StepPlan(),
        lambda v: StepPlan(more=True),
        lambda v: StepPlan(holds=Holds.CHANGE),
    ]
    policy = Scripted(lines)
    run = run_cached(replace(two_requests([]), policy=policy))
    assert policy.said == 5
    assert run.records.step_end_s.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


C = PromptContent(conversation="c")


@dataclass(frozen=True)
class Counted:
    """ChunkedPrefill, and how often it was asked."""

    asked: list[float]
    inner: ChunkedPrefill = WIDE
    max_num_seqs: int = 8
    caches_prefixes = True

    def plan(self, view: View) -> StepPlan:
        self.asked.append(view.now_s)
        return self.inner.plan(view)


def asked(asks: Sequence[Ask], usable: int, *, fast_forward: bool = True) -> tuple[Run, list[float]]:
    """A run, and when its policy was asked."""
    workload = make_workload([ask.at_s for ask in asks], [(ask.input_tokens, ask.output_tokens) for ask in asks])
    times: list[float] = []
    scenario = with_contents(
        Scenario(workload, Counted(times), Memory(usable + 1, 4), ONE_SECOND), [ask.content for ask in asks]
    )
    run = run_cached(scenario, fast_forward=fast_forward, make_policy=lambda: Counted(times))
    return run, times


@pytest.mark.parametrize("content", [None, B, C])
def test_steps_in_which_the_head_of_the_queue_cannot_be_admitted_are_run_at_once(content: PromptContent | None) -> None:
    """28 of 30 blocks are asked for, 27 are free at most. What decodes is of no use to the head, and takes blocks."""
    asks = [Ask(8, 100, content), Ask(110, 5, A, at_s=0.5), Ask(110, 5, A, at_s=0.6)]
    fast, times = asked(asks, 30)
    stepwise, each = asked(asks, 30, fast_forward=False)
    assert fast.decisions == stepwise.decisions
    assert fast.records.requests.scheduled_s[1:].tolist() == [100.0, 101.0], "when the first has ended"
    assert len(set(each)) > 100
    assert len(set(times)) < 20


def test_the_head_of_the_queue_is_admitted_as_soon_as_a_decode_fills_what_it_hits() -> None:
    """10 blocks. At 1 s the first has 2, of which one is full, and the second would take 9 more; 8 are free.

    With its eighth token the first fills the other, 3 s before it ends: now the second takes but 8.
    """
    ran = told(WIDE, [Ask(5, 6, C), Ask(40, 1, C, at_s=0.5)], usable=10)
    assert ran.steps("admitted")[:4] == [{"0": 0}, {}, {}, {"1": 8}]
    assert ran.steps("num_free_blocks")[:4] == [8, 8, 8, 0]
