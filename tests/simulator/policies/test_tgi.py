"""Text Generation Inference by hand."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings

from simulator.policies.tgi import Tgi
from simulator.results.records import Status
from tests.hand import Told, serve
from tests.laws.scenarios import Memory, Scenario, scenarios

NEVER = 10**6


def tgi(ratio: float, waiting_tokens: int = NEVER, **options: Any) -> Tgi:
    return Tgi(8, 64, waiting_served_ratio=ratio, max_waiting_tokens=waiting_tokens, **options)


def prefills(told: Told) -> list[float]:
    """When prompts were computed."""
    rows = told.records.rows
    return [start for start, tokens in zip(rows.start_s, rows.prefill_tokens, strict=True) if tokens]


def test_a_new_batch_comes_when_enough_wait() -> None:
    """Four run: one that waits is not half as many, two are; the four are paused while these are prefilled."""
    told = serve(tgi(0.5), [(4, 9)] * 4 + [(4, 3)] * 2, [0.0] * 4 + [1.5, 3.5])
    all_four = {str(row): 1 for row in range(4)}
    assert told.scheduled[:6] == [
        {str(row): 4 for row in range(4)},
        all_four,
        all_four,
        all_four,
        {"4": 4, "5": 4},
        {**all_four, "4": 1, "5": 1},
    ]
    assert told.column("scheduled_s") == [0.0] * 4 + [4.0, 4.0]
    assert told.column("first_token_s")[4:] == [5.0, 5.0]
    assert told.column("last_token_s") == [10.0] * 4 + [7.0, 7.0]


def test_it_comes_when_few_enough_run() -> None:
    """Two wait for a ratio of 1: not beside four, but beside the two that are left at 3 s."""
    told = serve(tgi(1.0), [(4, 9)] * 2 + [(4, 3)] * 2 + [(4, 2)] * 2, [0.0] * 4 + [0.5] * 2)
    assert told.column("scheduled_s") == [0.0] * 4 + [3.0] * 2


def test_the_ratio_is_reached_in_spite_of_rounding() -> None:
    """0.28 x 25 is a little more than 7 in floating point."""
    assert 0.28 * 25 > 7
    policy = Tgi(64, 256, waiting_served_ratio=0.28, max_waiting_tokens=NEVER)
    told = serve(policy, [(4, 9)] * 25 + [(4, 2)] * 7, [0.0] * 25 + [1.5] * 7)
    assert told.column("scheduled_s")[25:] == [2.0] * 7
    told = serve(policy, [(4, 9)] * 25 + [(4, 2)] * 6, [0.0] * 25 + [1.5] * 6)
    assert told.column("scheduled_s")[25:] == [9.0] * 6


def test_or_when_enough_steps_have_passed() -> None:
    """However few wait: three decode steps after the prefill, and three after the next."""
    told = serve(tgi(9.0, 3), [(4, 12), (4, 12), (4, 9), (4, 2)], [0.0, 0.0, 0.5, 4.5])
    assert told.column("scheduled_s") == [0.0, 0.0, 4.0, 8.0]
    assert prefills(told) == [0.0, 4.0, 8.0]


def test_steps_are_counted_while_nobody_waits() -> None:
    """Ten have passed when somebody comes: at once."""
    told = serve(tgi(9.0, 10), [(4, 20), (4, 2)], [0.0, 12.5])
    assert told.column("scheduled_s") == [0.0, 13.0]


def test_steps_are_counted_from_a_prefill_that_nobody_outlives() -> None:
    """The second has its only token with its prefill at 4 s; the third waits three steps from then on."""
    told = serve(tgi(9.0, 3), [(4, 12), (4, 1), (4, 2)], [0.0, 0.5, 4.5])
    assert told.column("scheduled_s") == [0.0, 4.0, 8.0]


def test_a_decode_step_between_two_prefills() -> None:
    told = serve(tgi(0.0, 1), [(4, 6), (4, 2), (4, 2)], [0.0, 0.5, 1.5])
    assert told.column("scheduled_s") == [0.0, 2.0, 2.0]
    assert told.scheduled[:3] == [{"0": 4}, {"0": 1}, {"1": 4, "2": 4}]


def test_an_idle_server_begins_at_once() -> None:
    told = serve(tgi(9.0), [(4, 2)] * 3, [1.25, 1.25, 4.0])
    assert told.column("scheduled_s") == [1.25, 1.25, 4.0]


def test_total_tokens_count_everybody_to_the_end() -> None:
    """4 + 16 each, and 40 in all: the third enters when the second has finished, though it had asked for more."""
    policy = tgi(0.0, 1, max_batch_total_tokens=40)
    told = serve(policy, [(4, 16), (4, 5), (4, 5)], max_tokens=16)
    assert told.column("scheduled_s") == [0.0, 0.0, 5.0]
    assert [len(running) for running in told.steps("running")[:7]] == [2, 2, 2, 2, 2, 2, 2]
    told = serve(tgi(0.0, 1, max_batch_total_tokens=39), [(4, 16), (4, 5), (4, 5)], max_tokens=16)
    assert told.column("scheduled_s") == [0.0, 16.0, 21.0]


def test_without_a_value_the_total_is_what_memory_holds() -> None:
    """9 blocks of 4: 20 tokens are 5 blocks, and two such requests are 10."""
    lengths = [(4, 16), (4, 5)]
    assert serve(tgi(0.0, 1), lengths, memory=Memory(10, 4)).column("scheduled_s") == [0.0, 16.0]
    assert serve(tgi(0.0, 1), lengths, memory=Memory(11, 4)).column("scheduled_s") == [0.0, 0.0]


def test_who_waits_must_fit_for_the_ratio_to_count() -> None:
    """Two wait beside two, but there is room for one: until the first has finished, which leaves one running."""
    policy = tgi(1.0, max_batch_total_tokens=60)
    told = serve(policy, [(4, 6), (4, 16), (4, 5), (4, 5)], [0.0, 0.0, 1.5, 1.5], max_tokens=16)
    assert told.column("scheduled_s") == [0.0, 0.0, 6.0, 6.0]
    late = tgi(1.0, 3, max_batch_total_tokens=60)
    told = serve(late, [(4, 6), (4, 16), (4, 5), (4, 5)], [0.0, 0.0, 1.5, 1.5], max_tokens=16)
    assert told.column("scheduled_s") == [0.0, 0.0, 4.0, 8.0]


def test_nobody_passes_the_head() -> None:
    """The second asks for more than is left, and the third would fit."""
    policy = tgi(0.0, 1, max_batch_total_tokens=60)
    told = serve(policy, [(30, 5), (40, 2), (1, 2)], [0.0, 0.5, 0.5], max_tokens=10)
    assert told.column("scheduled_s") == [0.0, 5.0, 7.0]


def test_a_prefill_has_its_own_budget() -> None:
    told = serve(tgi(0.0, 1, max_batch_prefill_tokens=10), [(6, 3), (6, 3), (4, 3)])
    assert told.scheduled[:4] == [{"0": 6}, {"0": 1}, {"1": 6, "2": 4}, {"0": 1, "1": 1, "2": 1}]
    # It is bounded by what a step computes at most.
    policy = Tgi(8, 10, waiting_served_ratio=0.0, max_batch_prefill_tokens=1000)
    assert serve(policy, [(6, 3), (6, 3), (4, 3)]).scheduled == told.scheduled


def test_a_prompt_longer_than_a_prefill_takes_several_in_a_row() -> None:
    told = serve(tgi(0.0, 1, max_batch_prefill_tokens=10), [(4, 5), (25, 2), (2, 2)], [0.0, 0.5, 0.5])
    assert told.scheduled[:7] == [{"0": 4}, {"0": 1}, {"1": 10}, {"1": 10}, {"1": 5}, {"0": 1, "1": 1}, {"2": 2}]


def test_memory_is_granted_to_the_end() -> None:
    """6 and up to 12 tokens: 5 blocks of 4 from start to end."""
    told = serve(tgi(0.0), [(6, 5)], max_tokens=12)
    assert [1000 - free for free in told.steps("num_free_blocks")] == [5] * 5


def test_who_could_never_enter_is_refused() -> None:
    told = serve(tgi(0.0, max_batch_total_tokens=40), [(25, 4), (24, 4)], max_tokens=16)
    assert told.column("status") == [Status.REJECTED, Status.FINISHED]
    assert told.records.reject_reasons[0] == "25 input tokens and max_tokens = 16 exceed max_batch_total_tokens = 40"
    told = serve(tgi(0.0), [(25, 4), (4, 4)], max_tokens=16, memory=Memory(11, 4))
    assert told.records.reject_reasons == {0: "25 input tokens and max_tokens = 16 reserve 11 KV blocks; there are 10"}


@given(scenario=scenarios("tgi"))
@settings(max_examples=60)
def test_nobody_is_ever_preempted(scenario: Scenario) -> None:
    assert (scenario.run().records.requests.preemptions == 0).all()


@given(scenario=scenarios("tgi"))
@settings(max_examples=60)
def test_nobody_decodes_in_a_prefill(scenario: Scenario) -> None:
    rows = scenario.run().records.rows
    assert ((rows.decoding == 0) | (rows.prefilling == 0)).all()
