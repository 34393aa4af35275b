"""SGLang by hand: a step lasts a second, blocks hold one token unless told."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from scenarios.assembly.engines import build_policy
from scenarios.schema.loader import load
from simulator.errors import InputError
from simulator.memory.radix_cache import RadixCache
from simulator.plan import StepPlan, Traits, View
from simulator.policies.sglang import Sglang
from simulator.policies.sglang.next_batch_to_run import (
    Note,
    fallen_ratio,
    first_ratio,
    ratio_after_retraction,
    tokens_to_come,
)
from simulator.request import PromptContent, Request
from tests.examples import examples
from tests.hand import ONE_SECOND, Told, serve
from tests.laws.scenarios import Memory, Scenario, make_workload, scenarios
from tests.traffic import one_class

sync = partial(Sglang, async_scheduling=False)


class Notes:
    """The policy, with what it remembers at each plan: (decode steps, note)."""

    def __init__(self, policy: Sglang) -> None:
        self.policy = policy
        self.max_num_seqs = policy.max_num_seqs
        self.caps, self.refuses = policy.caps, policy.refuses
        self.seen: list[tuple[int, Note | None]] = []

    @property
    def traits(self) -> Traits:
        return self.policy.traits

    def plan(self, view: View) -> StepPlan:
        plan = self.policy.plan(view)
        assert plan.note is None or isinstance(plan.note, Note)
        self.seen.append((view.decode_steps, plan.note))
        return plan


def watch(policy: Sglang, lengths: Sequence[tuple[int, int]], blocks: int, **options: Any) -> tuple[Told, Notes]:
    notes = Notes(policy)
    return serve(notes, lengths, memory=Memory(blocks + 1, 1), **options), notes


def live(input_tokens: int, outputs: int, max_tokens: int) -> Any:
    """As much of a request as the estimate asks for."""
    return type("R", (), {"input_tokens": input_tokens, "output_tokens_so_far": outputs, "max_tokens": max_tokens})()


# --------------------------------------------------------------------------------------------------------- the ratio


def test_the_ratio_falls_in_600_steps() -> None:
    assert first_ratio(1.0) == pytest.approx(0.7)
    assert first_ratio(0.5) == pytest.approx(0.35)
    assert first_ratio(2.0) == 1.0
    assert fallen_ratio(0.7, 300, 1.0) == pytest.approx((0.7 + 0.098) / 2)
    assert fallen_ratio(0.7, 600, 1.0) == pytest.approx(0.098)
    assert fallen_ratio(0.7, 10_000, 1.0) == pytest.approx(0.098)
    assert fallen_ratio(1.0, 0, 0.0) == 1.0
    assert fallen_ratio(1.0, 10_000, 0.0) == 1.0, "with no conservativeness nothing falls"


def test_the_ratio_after_a_retraction() -> None:
    """Three outputs and 20 tokens for each of two, of 100 + 30 + 1."""
    assert ratio_after_retraction([live(5, 1, 100), live(5, 2, 30)], 3) == pytest.approx(43 / 131)
    assert ratio_after_retraction([live(5, 9, 10)], 9) == 1.0
    assert ratio_after_retraction([], 0) == 0.0


def test_long_answers_are_not_believed() -> None:
    assert [tokens_to_come(live(1, done, most)) for done, most in ((0, 5000), (1000, 5000), (4, 10), (11, 10))] == [
        4096, 4000, 6, 0,
    ]  # fmt: skip


def test_the_ratio_falls_with_decodes_alone_and_is_forgotten_at_rest() -> None:
    """A prefill step does not count; when nobody is left it begins anew."""
    told, notes = watch(sync(8, 64), [(4, 4), (4, 3), (4, 2)], 500, arrivals=[0.0, 1.5, 20.0])
    assert told.scheduled == [{"0": 4}, {"0": 1}, {"1": 4}, {"0": 1, "1": 1}, {"0": 1, "1": 1}, {"2": 4}, {"2": 1}]
    begun = [note.since for _, note in notes.seen if note is not None]
    assert set(begun) == {0, 3}, "for the first two requests, and for the one that finds an idle server"
    assert any(note is None for _, note in notes.seen)


def test_a_mixed_step_does_not_count() -> None:
    policy = sync(8, 64, enable_mixed_chunk=True)
    _, notes = watch(policy, [(4, 6), (4, 2)], 500, arrivals=[0.0, 1.5])
    assert [note.since for _, note in notes.seen if note is not None][-1] == 1


# --------------------------------------------------------------------------------------------------------- admission


@pytest.mark.parametrize(("second", "enters_s"), [(18, 1.0), (19, 10.0)])
def test_what_running_requests_may_come_to_need_is_kept(second: int, enters_s: float) -> None:
    """The first holds 4 tokens and may sample 9 more: 6.3 at a ratio of 0.7. Of 40, that leaves 29.7.

    The second needs its prompt, 10 to come and 1 for rounding, and less than that is left.
    """
    told, _ = watch(sync(8, 64), [(4, 10), (second, 2)], 40, arrivals=[0.0, 0.5], max_tokens=10)
    assert told.column("scheduled_s") == [0.0, enters_s]


def test_in_one_prefill_everybody_keeps_all_of_it() -> None:
    """4 and 10 and 1 each: two of three do not fit 40 with a third; then they run, and keep 0.7 of 9 each."""
    told, _ = watch(sync(8, 64), [(4, 10)] * 3, 40)
    assert told.scheduled[:2] == [{"0": 4, "1": 4}, {"2": 4}]


def test_who_found_no_room_is_tried_again_when_somebody_leaves() -> None:
    """At 2 s there would be room, as the ratio has fallen and tokens have been sampled; SGLang does not look."""
    policy = sync(8, 64, schedule_conservativeness=1.4)
    lengths = [(4, 30), (4, 8), (4, 2)]
    told, notes = watch(policy, lengths, 68, arrivals=[0.0, 0.5, 1.5], max_tokens=30)
    assert told.column("scheduled_s")[1] == 1.0
    left_s = told.column("last_token_s")[1]
    assert told.column("scheduled_s")[2] == left_s
    assert sum(note is not None and note.full == 2 for _, note in notes.seen) == 1, "the plan holds until then"


def test_nor_who_found_no_room_beside_one_that_entered() -> None:
    """In its own prefill the second keeps all 10 and 1: the third has 14.7 of the 40 blocks, and needs 15.

    A step later the second keeps 6.3, and there would be room.
    """
    told, _ = watch(sync(8, 64), [(4, 10)] * 3, 40, arrivals=[0.0, 0.5, 0.5])
    assert told.column("scheduled_s") == [0.0, 1.0, told.column("last_token_s")[0]]
    together, _ = watch(sync(8, 64), [(4, 10)] * 3, 41, arrivals=[0.0, 0.5, 0.5])
    assert together.column("scheduled_s") == [0.0, 1.0, 1.0]


def test_an_empty_server_takes_whoever_fits() -> None:
    """5 and up to 100 do not fit 20 blocks: the server allows 13, and the answer turns out to be shorter."""
    told, _ = watch(sync(8, 64), [(5, 10), (5, 10)], 20, max_tokens=100)
    assert told.column("scheduled_s") == [0.0, 10.0]


def test_nobody_passes_the_head() -> None:
    told, _ = watch(sync(8, 64), [(4, 10), (30, 2), (1, 2)], 40, arrivals=[0.0, 0.5, 0.5], max_tokens=10)
    assert told.column("scheduled_s") == [0.0, 10.0, 12.0]


# ---------------------------------------------------------------------------------------------------------- prefills


def test_a_prefill_pauses_decodes() -> None:
    told, _ = watch(sync(8, 64), [(4, 4), (4, 2)], 500, arrivals=[0.0, 1.5])
    assert told.scheduled == [{"0": 4}, {"0": 1}, {"1": 4}, {"0": 1, "1": 1}, {"0": 1}]


def test_unless_they_are_mixed() -> None:
    told, _ = watch(sync(8, 64, enable_mixed_chunk=True), [(4, 4), (4, 2)], 500, arrivals=[0.0, 1.5])
    assert told.scheduled == [{"0": 4}, {"0": 1}, {"0": 1, "1": 4}, {"0": 1, "1": 1}]


def test_one_prompt_is_cut_at_a_time() -> None:
    """10 tokens a prefill: the second is cut, the third waits until that is done, and is cut then."""
    told, _ = watch(sync(8, 64, chunked_prefill_size=10), [(4, 2), (13, 2), (12, 2)], 500)
    assert told.scheduled[:3] == [{"0": 4, "1": 6}, {"1": 7, "2": 3}, {"2": 9}]


def test_it_is_cut_at_a_multiple_of_the_block_size() -> None:
    told = serve(sync(8, 64, chunked_prefill_size=10), [(4, 2), (13, 2), (12, 2)])
    assert told.scheduled[:4] == [{"0": 4, "1": 4}, {"1": 9}, {"2": 8}, {"2": 4}]


def test_decodes_leave_the_rest_of_a_mixed_step() -> None:
    policy = sync(8, 64, chunked_prefill_size=10, enable_mixed_chunk=True)
    told, _ = watch(policy, [(4, 9), (4, 9), (13, 2)], 500, arrivals=[0.0, 0.0, 0.5])
    assert told.scheduled[1:4] == [{"0": 1, "1": 1, "2": 8}, {"0": 1, "1": 1, "2": 5}, {"0": 1, "1": 1, "2": 1}]


def test_without_chunks_prompts_are_whole() -> None:
    """Together below 20; one longer than that comes alone, and one longer than a step is cut all the same."""
    policy = sync(8, 32, chunked_prefill_size=-1, max_prefill_tokens=20)
    told, _ = watch(policy, [(9, 2), (10, 2), (1, 2), (25, 2), (40, 2)], 500)
    assert told.scheduled[:5] == [{"0": 9, "1": 10}, {"2": 1}, {"3": 25}, {"4": 32}, {"4": 8}]


def test_with_chunks_no_prompt_is_begun_beyond_the_limit() -> None:
    told, _ = watch(sync(8, 64, max_prefill_tokens=10), [(9, 2), (9, 2), (1, 2)], 500)
    assert told.scheduled[:2] == [{"0": 9, "1": 9}, {"2": 1}]


def test_arrivals_are_seen_behind_a_prefill_and_at_each_third_decode() -> None:
    """It looks at 1 s, behind the first prompt, and three decodes later; then behind that prefill, at 5 s."""
    told = serve(sync(8, 64, scheduler_recv_interval=3), [(4, 12), (4, 2), (5, 9), (6, 2)], [0.0, 1.5, 3.5, 4.5])
    first, both = {"0": 1}, {"1": 4, "2": 5}
    assert told.scheduled[:7] == [{"0": 4}, first, first, first, both, {"3": 6}, {"0": 1, "1": 1, "2": 1, "3": 1}]


def test_a_server_at_rest_sees_arrivals_at_once() -> None:
    told = serve(sync(8, 64, scheduler_recv_interval=30), [(4, 2), (4, 2)], [0.0, 7.25])
    assert told.column("scheduled_s") == [0.0, 7.25]


def test_a_full_batch_looks_at_its_decode_steps_too() -> None:
    """The second came after the look at 4 s; that at 7 s is after the first has left, at 6 s."""
    policy = sync(1, 64, scheduler_recv_interval=3)
    told = serve(policy, [(4, 6), (4, 6), (4, 2)], [0.0, 1.5, 4.5])
    assert told.column("scheduled_s") == [0.0, 6.0, 12.0]


# -------------------------------------------------------------------------------------------------------- retraction


RECKLESS = sync(8, 64, schedule_conservativeness=0.0)  # the running ones keep nothing for their answers


def victims(told: Told) -> list[str]:
    return [name for step in told.decisions for name in step["preempted"]]


def test_the_fewest_outputs_leave_first() -> None:
    """The third entered last and has sampled least; the second has the longest prompt."""
    told, _ = watch(RECKLESS, [(4, 12), (8, 12), (4, 12)], 34, arrivals=[0.0, 2.5, 4.5])
    assert victims(told)[0] == "2"


def test_then_the_longest_prompt() -> None:
    """All have five outputs at 7 s, when 26 of 28 blocks are full. The longest goes to the end of the queue.

    The others have decoded 10 of 24: with 20 for each the ratio is above 1, and falls from the next step on.
    """
    told, notes = watch(RECKLESS, [(4, 12), (6, 12), (4, 12), (6, 3)], 28, arrivals=[0.0, 0.5, 1.5, 4.5])
    step = next(step for step in told.decisions if step["preempted"])
    assert (step["t_start_s"], step["preempted"], step["waiting"]) == (7.0, ["1"], ["3", "1"])
    assert step["scheduled"] == {"0": 1, "2": 1}
    assert next(note for _, note in notes.seen if note is not None and note.ratio > 0) == Note(1.0, 5)


def test_then_the_latest() -> None:
    told, _ = watch(RECKLESS, [(4, 12)] * 3, 26, arrivals=[0.0, 0.5, 1.5])
    assert victims(told)[0] == "2"


def test_one_always_stays() -> None:
    """Both need 15 of 22 blocks in the end: the second leaves when nothing is left, and returns when it is alone."""
    told, _ = watch(RECKLESS, [(4, 12)] * 2, 22, arrivals=[0.0, 0.5])
    assert told.column("preemptions") == [0, 1]
    assert all(step["running"] for step in told.decisions)


def test_the_ratio_makes_the_next_admissions_careful() -> None:
    """After the retraction everybody keeps all of what is left: who was retracted must wait, though its prompt fits."""
    told, _ = watch(RECKLESS, [(4, 12)] * 2, 22, arrivals=[0.0, 0.5])
    assert [step["running"] for step in told.decisions if step["t_start_s"] >= 9.0][:4] == [["0"]] * 4


@given(scenario=scenarios("sglang"))
@examples(60)
def test_at_most_one_prompt_is_unfinished(scenario: Scenario) -> None:
    """At the end of a step: whose prompt is not complete goes on with the next."""
    run = replace(scenario, replicas=1).run(log_decisions=True)
    assert run.decisions is not None
    inputs = scenario.workload.input_tokens.tolist()
    left: dict[str, int] = {}
    outputs: dict[str, int] = {}
    for step in run.decisions:
        for request_id in step["preempted"]:
            left.pop(request_id, None)
        for request_id in step["admitted"]:
            left[request_id] = inputs[int(request_id)] + outputs.get(request_id, 0)
        for request_id, tokens in step["scheduled"].items():
            if request_id in left:
                left[request_id] -= tokens
            if not left.get(request_id):
                left.pop(request_id, None)
                outputs[request_id] = outputs.get(request_id, 0) + 1
        assert len(left) <= 1


@given(scenario=scenarios("sglang"))
@examples(60)
def test_prefills_and_decodes_share_no_step_unless_mixed(scenario: Scenario) -> None:
    policy: Any = scenario.policy
    rows = replace(scenario, policy=replace(policy, enable_mixed_chunk=False)).run().records.rows
    assert ((rows.decoding == 0) | (rows.prefilling == 0)).all()


# ------------------------------------------------------------------------------------------------- prefixes and lpm


def cached(policy: Sglang, prompts: Sequence[str], outputs: int, blocks: int, **options: Any) -> list[dict[str, Any]]:
    """Decisions for prompts that are spelt out, with a radix tree over pages of one token."""
    arrivals = options.get("arrivals") or [0.0] * len(prompts)
    workload = make_workload(arrivals, [(len(prompt), outputs) for prompt in prompts])
    content = [PromptContent(prompt_token_ids=tuple(map(ord, prompt))) for prompt in prompts]
    scenario = Scenario(replace(workload, content=content), policy, Memory(blocks + 1, 1), ONE_SECOND)
    decisions = scenario.run(log_decisions=True, make_blocks=partial(RadixCache, block_size=1)).decisions
    assert decisions is not None
    return decisions


def test_a_retracted_request_does_not_find_its_prompt_again() -> None:
    """Or would: the retraction makes room for 20 tokens of each that stays, and evicts what only its victim used."""
    steps = cached(RECKLESS, ["abcd", "efgh", "ijklmn"], 8, 28, arrivals=[0.0, 0.5, 1.5])
    gone = next(step for step in steps if step["preempted"])
    assert gone["preempted"] == ["2"]
    back = next(step for step in steps if step["admitted"] and step["step"] > gone["step"])
    assert (back["admitted"], back["scheduled"]) == ({"2": 0}, {"2": 11})


def test_the_longest_prefix_enters_first() -> None:
    """All wait for the one slot; when the first has ended, who shares the most with it is next, then by arrival."""
    prompts = ["abcdef", "xxxxxx", "abxxxx", "abcdxx", "yyyyyy"]
    admitted = {}
    for order in ("fcfs", "lpm"):
        steps = cached(sync(1, 64, order=order), prompts, 2, 500)
        admitted[order] = [name for step in steps for name in step["admitted"]]
    assert admitted["fcfs"] == ["0", "1", "2", "3", "4"]
    assert admitted["lpm"] == ["0", "3", "2", "1", "4"]


@pytest.mark.parametrize(("waiting", "second"), [(128, "last"), (129, "first")])
def test_lpm_gives_up_above_128_waiting(waiting: int, second: str) -> None:
    """The one with a prefix comes last; while more than 128 wait, nobody compares."""
    prompts = ["abcdef", *[f"{chr(1000 + i)}x" for i in range(waiting - 1)], "abcdeg"]
    steps = cached(sync(1, 64, order="lpm"), prompts, 1, 5000)
    names = [name for step in steps for name in step["admitted"]]
    assert names[1] == (str(waiting) if second == "last" else "1")
    if second == "first":
        assert names[2] == str(waiting), "once 128 are left it is found"


def test_prompts_of_one_step_do_not_hit_each_other() -> None:
    """They are in the tree when the step has ended."""
    steps = cached(sync(8, 64), ["abcdef", "abcdef", "abcdef"], 3, 500, arrivals=[0.0, 0.0, 0.5])
    assert steps[0]["admitted"] == {"0": 0, "1": 0}
    assert steps[1]["admitted"] == {"2": 5}


# ------------------------------------------------------------------------------------------------------- as a user


KEYS: dict[str, Any] = {
    "chunked_prefill_size": 4096,
    "max_prefill_tokens": 16_384,
    "enable_mixed_chunk": True,
    "schedule_conservativeness": 0.3,
}


def test_keys_reach_the_policy() -> None:
    found = build_policy(load({"engine": {"policy": "sglang", **KEYS}, "workload": WORKLOAD}))
    assert {key: getattr(found, key) for key in KEYS} == KEYS


WORKLOAD = one_class(40, 5, 200, 20, name="all")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"chunked_prefill_size": 0}, "chunked_prefill_size must be at least 1, or -1"),
        ({"chunked_prefill_size": -2}, "chunked_prefill_size: must be"),
        ({"max_prefill_tokens": 0}, "max_prefill_tokens: must be"),
        ({"schedule_conservativeness": -1}, "schedule_conservativeness: must be"),
        (
            {"order": "lpm", "enable_prefix_caching": False},
            "`lpm` orders by what a prefix cache holds, and enable_prefix_caching is false",
        ),
        ({"policy": "chunked_prefill", "order": "lpm"}, "`lpm` orders by what a prefix cache holds"),
        ({"policy": "continuous", "order": "lpm", "enable_prefix_caching": True}, "does not reckon with a prefix"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], says: str) -> None:
    import scenarios as package

    with pytest.raises(InputError, match=says):
        package.run({"engine": {"policy": "sglang", **keys}, "workload": WORKLOAD})


@pytest.mark.parametrize("order", ["fcfs", "lpm"])
def test_a_scenario_runs_under_it(order: str) -> None:
    import scenarios as package

    engine = {"policy": "sglang", "enable_prefix_caching": True, "order": order}
    summary = package.run({"engine": engine, "workload": WORKLOAD}).summary
    assert summary["completed"] == 40


def test_a_comparison_leaves_lpm_out_where_nothing_is_cached() -> None:
    import scenarios as package

    data = {"engine": {"policy": "sglang", "enable_prefix_caching": True, "order": "lpm"}, "workload": WORKLOAD}
    found = package.compare(data, ["sglang", "continuous"], seeds=1)
    assert any("order" in note and "enable_prefix_caching" in note for note in found.notes)


def test_requests_without_content_have_numbers_of_their_own() -> None:
    cache = RadixCache(10, 0, 1)
    asking = Request(0, "r0", 0.0, 4, 1, 1)
    cache.take_hits(asking, 0)
    cache.allocate(0, 4)
    cache.enter(asking, 4)
    cache.settle([0])
    assert cache.hits(Request(1, "r1", 0.0, 4, 1, 1), 4) == (0, 0)
    assert cache.hits(asking, 5) == (4, 0)
    assert np.isfinite(cache.num_free)
