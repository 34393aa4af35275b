"""Text Generation Inference by hand."""

from typing import Any

from hypothesis import given

from simulator.policies.tgi import Tgi
from simulator.results.records import Status
from tests.examples import examples
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
    """0.29 x 100 is a little less than 29 in floating point of 64 bits, and 29 in that of 32 bits, which TGI has."""
    assert 0.29 * 100 < 29
    policy = Tgi(200, 800, waiting_served_ratio=0.29, max_waiting_tokens=NEVER)
    told = serve(policy, [(4, 9)] * 100 + [(4, 2)] * 29, [0.0] * 100 + [1.5] * 29)
    assert told.column("scheduled_s")[100:] == [2.0] * 29
    told = serve(policy, [(4, 9)] * 100 + [(4, 2)] * 28, [0.0] * 100 + [1.5] * 28)
    assert told.column("scheduled_s")[100:] == [9.0] * 28


def test_or_when_enough_steps_have_passed() -> None:
    """However few wait: the third step after a prefill, which is the first of them, is the next prefill's."""
    told = serve(tgi(9.0, 3), [(4, 12), (4, 12), (4, 9), (4, 2)], [0.0, 0.0, 0.5, 4.5])
    assert told.column("scheduled_s") == [0.0, 0.0, 3.0, 6.0]
    assert prefills(told) == [0.0, 3.0, 6.0]


def test_steps_are_counted_while_nobody_waits() -> None:
    """Ten have passed when somebody comes: at once."""
    told = serve(tgi(9.0, 10), [(4, 20), (4, 2)], [0.0, 12.5])
    assert told.column("scheduled_s") == [0.0, 13.0]


def test_steps_are_counted_from_a_prefill_that_nobody_outlives() -> None:
    """The second has its only token with its prefill at 3 s; the third waits three steps from then on."""
    told = serve(tgi(9.0, 3), [(4, 12), (4, 1), (4, 2)], [0.0, 0.5, 4.5])
    assert told.column("scheduled_s") == [0.0, 3.0, 6.0]


def test_a_decode_step_between_two_prefills_but_for_the_first_from_idle() -> None:
    """A second prefill follows the first at once; the third comes behind a decode step."""
    told = serve(tgi(0.0, 1), [(4, 6), (4, 2), (4, 2)], [0.0, 0.5, 1.5])
    assert told.column("scheduled_s") == [0.0, 1.0, 3.0]
    assert told.scheduled[:4] == [{"0": 4}, {"1": 4}, {"0": 1, "1": 1}, {"2": 4}]


def test_the_second_prefill_from_idle_must_be_worth_it_like_any_other() -> None:
    told = serve(tgi(2.0), [(4, 6), (4, 2), (4, 2)], [0.0, 0.5, 1.5])
    assert told.scheduled[:3] == [{"0": 4}, {"0": 1}, {"1": 4, "2": 4}]


def test_the_ratio_is_rounded_down() -> None:
    """Three run: a ratio of 0.6 asks for 1.8, and one is enough."""
    told = serve(tgi(0.6), [(4, 9)] * 3 + [(4, 2)], [0.0] * 3 + [1.5])
    assert told.column("scheduled_s")[3] == 2.0
    told = serve(tgi(0.7), [(4, 9)] * 3 + [(4, 2)], [0.0] * 3 + [1.5])
    assert told.column("scheduled_s")[3] == 9.0


def test_an_idle_server_begins_at_once() -> None:
    told = serve(tgi(9.0), [(4, 2)] * 3, [1.25, 1.25, 4.0])
    assert told.column("scheduled_s") == [1.25, 1.25, 4.0]


def test_total_tokens_count_everybody_to_the_end() -> None:
    """4 + 15 tokens are 5 blocks of 4; 44 are 11, of which one is kept.

    The third enters when the second has finished, though that had asked for more.
    """
    policy = tgi(0.0, 1, max_batch_total_tokens=44)
    told = serve(policy, [(4, 16), (4, 5), (4, 5)], max_tokens=16)
    assert told.column("scheduled_s") == [0.0, 0.0, 5.0]
    assert [len(running) for running in told.steps("running")[:7]] == [2, 2, 2, 2, 2, 2, 2]
    told = serve(tgi(0.0, 1, max_batch_total_tokens=43), [(4, 16), (4, 5), (4, 5)], max_tokens=16)
    assert told.column("scheduled_s") == [0.0, 16.0, 21.0]


def test_without_a_value_the_total_is_what_memory_holds() -> None:
    """9 blocks of 4: 20 tokens are 5 blocks, and two such requests are 10."""
    lengths = [(4, 16), (4, 5)]
    assert serve(tgi(0.0, 1), lengths, memory=Memory(10, 4)).column("scheduled_s") == [0.0, 16.0]
    assert serve(tgi(0.0, 1), lengths, memory=Memory(11, 4)).column("scheduled_s") == [0.0, 0.0]


def test_who_waits_must_fit_for_the_ratio_to_count() -> None:
    """Two wait beside two, but there is room for one: until the first has finished, which leaves one running."""
    policy = tgi(1.0, max_batch_total_tokens=64)
    told = serve(policy, [(4, 6), (4, 16), (4, 5), (4, 5)], [0.0, 0.0, 1.5, 1.5], max_tokens=16)
    assert told.column("scheduled_s") == [0.0, 0.0, 6.0, 6.0]
    late = tgi(1.0, 3, max_batch_total_tokens=64)
    told = serve(late, [(4, 6), (4, 16), (4, 5), (4, 5)], [0.0, 0.0, 1.5, 1.5], max_tokens=16)
    assert told.column("scheduled_s") == [0.0, 0.0, 3.0, 7.0]


def test_nobody_passes_the_head() -> None:
    """The second asks for more than is left, and the third would fit."""
    policy = tgi(0.0, 1, max_batch_total_tokens=60)
    told = serve(policy, [(30, 5), (40, 2), (1, 2)], [0.0, 0.5, 0.5], max_tokens=10)
    assert told.column("scheduled_s") == [0.0, 5.0, 7.0]


def test_a_prefill_has_its_own_budget() -> None:
    told = serve(tgi(0.0, 1, max_batch_prefill_tokens=8), [(6, 3), (6, 3), (4, 3)])
    assert told.scheduled[:4] == [{"0": 6}, {"1": 6}, {"0": 1, "1": 1}, {"2": 4}]
    # It is bounded by what a step computes at most.
    policy = Tgi(8, 8, waiting_served_ratio=0.0, max_batch_prefill_tokens=1000)
    assert serve(policy, [(6, 3), (6, 3), (4, 3)]).scheduled == told.scheduled


def test_the_budget_is_rounded_up_to_whole_blocks() -> None:
    """Of 4 tokens: 9 are 12."""
    told = serve(tgi(0.0, 1, max_batch_prefill_tokens=9), [(6, 3), (6, 3), (4, 3)])
    assert told.scheduled[0] == {"0": 6, "1": 6}


def test_a_prompt_longer_than_a_prefill_takes_several_in_a_row() -> None:
    told = serve(tgi(0.0, 1, max_batch_prefill_tokens=12), [(4, 5), (25, 2), (2, 2)], [0.0, 0.5, 0.5])
    assert told.scheduled[:6] == [{"0": 4}, {"1": 12}, {"1": 12}, {"1": 1}, {"0": 1, "1": 1}, {"2": 2}]


def test_memory_is_granted_to_the_end() -> None:
    """6 and up to 12 tokens, the last of which is never computed: 5 blocks of 4 from start to end; 7 + 10 are 4."""
    told = serve(tgi(0.0), [(6, 5)], max_tokens=12)
    assert [1000 - free for free in told.steps("num_free_blocks")] == [5] * 5
    told = serve(tgi(0.0), [(7, 5)], max_tokens=10)
    assert [1000 - free for free in told.steps("num_free_blocks")] == [4] * 5


def test_who_could_never_enter_is_refused() -> None:
    """40 tokens are 9 blocks of 4 and one for health checks."""
    told = serve(tgi(0.0, max_batch_total_tokens=40), [(22, 4), (21, 4)], max_tokens=16)
    assert told.column("status") == [Status.REJECTED, Status.FINISHED]
    assert told.records.reject_reasons[0] == (
        "22 input tokens and max_tokens = 16 exceed max_batch_total_tokens = 40, which are 9 KV blocks and one for "
        "health checks"
    )
    told = serve(tgi(0.0), [(26, 4), (25, 4)], max_tokens=16, memory=Memory(11, 4))
    assert told.records.reject_reasons == {0: "26 input tokens and max_tokens = 16 reserve 11 KV blocks; there are 10"}


def test_with_chunks_prompts_join_the_decodes_in_every_second_step() -> None:
    """16 tokens: the second prompt gets what the first leaves; the others join a step later than they could."""
    policy = tgi(9.0, enable_chunked_prefill=True, max_batch_prefill_tokens=16)
    told = serve(policy, [(4, 6), (20, 3), (3, 2), (3, 2)], [0.0, 0.5, 0.5, 2.5])
    assert told.scheduled[:4] == [
        {"0": 4},
        {"0": 1, "1": 16},  # 15 tokens are left, in whole blocks 16
        {"0": 1, "1": 4},
        {"0": 1, "1": 1, "2": 3, "3": 3},
    ]


def test_what_is_left_of_prompts_goes_on_from_the_newest() -> None:
    """Behind a prefill of 16 tokens for four the next has 13 for what is left; each goes on with one at least."""
    policy = tgi(9.0, enable_chunked_prefill=True, max_batch_prefill_tokens=16)
    told = serve(policy, [(30, 3), (30, 3)], [0.0, 0.5])
    assert told.scheduled[:5] == [{"0": 16}, {"0": 14, "1": 4}, {"0": 1, "1": 15}, {"0": 1, "1": 11}, {"1": 1}]


@given(scenario=scenarios("tgi"))
@examples(60)
def test_nobody_is_ever_preempted(scenario: Scenario) -> None:
    assert (scenario.run().records.requests.preemptions == 0).all()


@given(scenario=scenarios("tgi"))
@examples(60)
def test_nobody_decodes_in_a_prefill(scenario: Scenario) -> None:
    rows = scenario.run().records.rows
    assert ((rows.decoding == 0) | (rows.prefilling == 0)).all()
