import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scenarios
from reports.slots import Phase, Stays, assign, integral, stalls, stays, window
from simulator.hardware.kv import KVCache
from simulator.plan import Policy
from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.policies.continuous import Continuous
from simulator.policies.preemptive import Preemptive
from simulator.policies.static import Static
from simulator.results.records import Records
from simulator.simulate import simulate
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.columns import as_floats, as_ints
from tests.reports_maker import continuous, static

PAIRS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=40)


def made(pairs: list[tuple[int, int]]) -> Stays:
    start = as_floats(sorted(start for start, _ in pairs))
    end = start + as_floats([length for _, length in pairs])
    return Stays(as_ints(range(len(pairs))), start, start, start, end, end)


@given(PAIRS)
def test_no_slot_is_held_twice_and_none_more_than_needed(pairs: list[tuple[int, int]]) -> None:
    stay = made(pairs)
    slot = assign(stay)
    for number in set(slot.tolist()):
        mine = slot == number
        assert (stay.start_s[mine][1:] >= stay.end_s[mine][:-1]).all()
    at_once = [int(((stay.start_s <= t) & (stay.end_s > t)).sum()) for t in stay.start_s]
    # A stay of no length takes a slot beside those that are held at that moment.
    assert int(slot.max(initial=-1)) + 1 <= max(at_once, default=0) + int((stay.end_s == stay.start_s).any())


@given(PAIRS, st.integers(0, 80))
def test_integral_is_the_sum_of_what_lies_before(pairs: list[tuple[int, int]], until: int) -> None:
    stay = made(pairs)
    expected = sum(max(min(end, until) - start, 0) for start, end in zip(stay.start_s, stay.end_s, strict=True))
    assert integral(stay.start_s, stay.end_s, as_floats([until]))[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    "records",
    [static(60), static(60, stream=False), continuous(60), continuous(80, num_blocks=150)],
    ids=["static", "static at once", "continuous", "preempted"],
)
def test_stays_cover_the_time_that_requests_held_slots(records: Records) -> None:
    stay, rows = stays(records), records.rows
    edges = np.array([stay.bounds(phase) for phase in Phase])
    assert (np.diff(edges.reshape(-1, len(stay)), axis=0) >= 0.0).all(), "phases follow each other"
    held = float(np.dot(rows.running, rows.end_s - rows.start_s))
    assert float((stay.end_s - stay.start_s).sum()) == pytest.approx(held)
    assert len(stay) == int((records.requests.status == 0).sum()) + len(records.requeues.row)


def test_prefill_decode_and_held_are_where_the_records_say() -> None:
    records = static(60)
    requests, stay = records.requests, stays(records)
    order = np.argsort(stay.row)
    assert stay.prefilled_s[order] == pytest.approx(requests.first_token_s)
    assert stay.done_s[order] == pytest.approx(requests.last_token_s)
    assert stay.end_s[order] == pytest.approx(requests.released_s)


def test_answers_that_come_all_at_once_are_counted_in_steps() -> None:
    """What a client cannot see without streaming is seen in the same batches with it."""
    streamed, at_once = stays(static(60)), stays(static(60, stream=False))
    for name in ("row", "start_s", "computed_s", "prefilled_s", "done_s", "end_s"):
        assert getattr(at_once, name) == pytest.approx(getattr(streamed, name)), name


def test_prompts_computed_in_turns_are_counted_in_tokens() -> None:
    streamed, at_once = (stays(served(Static(12, 700, stream=stream), 1)) for stream in (True, False))
    for name in ("row", "start_s", "computed_s", "prefilled_s", "done_s", "end_s"):
        assert getattr(at_once, name) == pytest.approx(getattr(streamed, name)), name


def test_padding_takes_its_share_of_the_prefill() -> None:
    records = static(60)
    stay = stays(records)
    start, end = stay.bounds(Phase.PADDING)
    whole = stay.prefilled_s - stay.start_s
    step = np.searchsorted(records.rows.start_s, stay.start_s)
    longest = records.rows.tokens[step] / records.rows.running[step]
    share = records.requests.input_tokens[stay.row] / longest
    assert (end - start) == pytest.approx((1.0 - share) * whole)
    assert float((end - start).max()) > 0.0
    unpadded = stays(continuous(60))
    assert float(np.ptp(np.subtract(*unpadded.bounds(Phase.PADDING)))) == 0.0


def test_a_request_aborted_during_its_prompt_only_prefilled() -> None:
    """Its client leaves at 0.3 s, in the second of four steps of its prompt, and it leaves with that step, at 0.5 s."""
    prompt, answer, priority = as_ints([1024]), as_ints([8]), as_ints([0])
    workload = Workload(as_floats([0.0]), prompt, answer, answer, priority, as_ints([0]), patience_s=as_floats([0.3]))
    policy = ChunkedPrefill(max_num_seqs=1, max_num_batched_tokens=256)
    records = simulate(workload, make_policy=lambda: policy, kv=KV, cost=Linear(0.25, 0.0, 0.0)).records
    stay = stays(records)
    edges = [stay.bounds(phase) for phase in Phase]
    assert [float(end[0] - start[0]) for start, end in edges] == [0.5, 0.0, 0.0, 0.0]


def test_preempted_requests_leave_their_slots() -> None:
    records = continuous(80, num_blocks=150)
    stay, again = stays(records), records.requeues
    assert len(again.row)
    for row, from_s, to_s in zip(again.row, again.from_s, again.to_s, strict=True):
        mine = stay.row == row
        assert not ((stay.start_s[mine] < to_s) & (stay.end_s[mine] > from_s)).any()
        back = mine & (stay.start_s == to_s)
        assert back.sum() == 1
        assert (stay.prefilled_s[back] > to_s).all(), "thrown-away KV is computed again"


def test_stalls_are_steps_that_prefill_while_others_wait() -> None:
    records = continuous(60)
    rows = records.rows
    start, end = stalls(records, 0.0, 1e9)
    stalled = (rows.prefilling > 0) & (rows.running > rows.prefilling)
    assert stalled.any()
    assert float((end - start).sum()) == pytest.approx(float((rows.end_s - rows.start_s)[stalled].sum()))
    assert (start[1:] > end[:-1]).all(), "neighbours are merged"
    mixed = stalls(continuous(60, prefill_first=False), 0.0, 1e9)
    assert len(mixed[0]) == 0


def test_within_keeps_what_touches() -> None:
    stay = made([(0, 5), (5, 5), (10, 5)])
    assert stay.within(5.0, 10.0).row.tolist() == [1]
    assert stay.within(4.0, 11.0).row.tolist() == [0, 1, 2]


def test_window_shows_waste_and_no_run_idle() -> None:
    both = [stays(static(200)), stays(continuous(200))]
    from_s, to_s = window(both)
    assert to_s <= min(float(run.end_s.max()) for run in both), "continuous is done long before static"
    held_start, held_end = both[0].within(from_s, to_s).bounds(Phase.HELD)
    assert float((held_end - held_start).sum()) > 0.0
    assert window(both) == (from_s, to_s)


def test_window_is_short_where_stays_are_many() -> None:
    run = stays(continuous(400))
    from_s, to_s = window([run], max_stays=20)
    assert 1 <= len(run.within(from_s, to_s)) <= 60


def test_nothing_ran() -> None:
    nothing = stays(continuous(3, num_blocks=1))
    assert len(nothing) == 0
    assert window([nothing]) == (0.0, 1.0)
    assert assign(nothing).tolist() == []


LINEAR = Linear(base_s=0.006, per_token_s=6e-5, per_context_token_s=1.5e-7)
KV = KVCache(num_gpu_blocks=400, block_size=16, num_host_blocks=200, bytes_per_block=1)


def served(policy: Policy, seed: int, replicas: int = 1) -> Records:
    """What the engine makes of a crowd that does not fit into memory."""
    rng = np.random.default_rng(seed)
    count = 60
    arrival = np.cumsum(rng.exponential(0.1, count))
    inputs, outputs = rng.integers(1, 900, count), rng.integers(1, 150, count)
    none = np.zeros(count, dtype=np.int64)
    workload = Workload(arrival, inputs, outputs, outputs + 5, rng.integers(0, 3, count), none)
    return simulate(
        workload, make_policy=lambda: policy, kv=KV, cost=LINEAR, swap_s_per_block=1e-4, replicas=replicas
    ).records


POLICIES: tuple[Policy, ...] = (
    Static(12, 700),
    Static(12, 700, stream=False),
    Continuous(12, 700),
    ChunkedPrefill(12, 700),
    Preemptive(12, 700),
    Preemptive(12, 700, "swap"),
)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("seed", [0, 1])
def test_stays_agree_with_the_steps_of_the_engine(policy: Policy, seed: int) -> None:
    records = served(policy, seed)
    stay, rows = stays(records), records.rows
    seconds = rows.end_s - rows.start_s
    assert float((stay.end_s - stay.start_s).sum()) == pytest.approx(float(np.dot(rows.running, seconds)))
    start, end = stay.bounds(Phase.HELD)
    assert float((end - start).sum()) == pytest.approx(float(np.dot(rows.held, seconds)))
    assert int(assign(stay).max()) < records.max_num_seqs
    assert (stay.prefilled_s[stay.end_s > stay.start_s] >= stay.start_s[stay.end_s > stay.start_s]).all()
    start, end = stay.bounds(Phase.PADDING)
    assert bool((end > start).any()) == bool((rows.padded_tokens[rows.decoding == 0] > 0).any())


@pytest.mark.parametrize("policy", POLICIES[:3], ids=repr)
def test_stays_of_each_replica_are_its_own(policy: Policy) -> None:
    records = served(policy, 2, replicas=3)
    rows = records.rows
    for replica in range(3):
        mine = rows.replica == replica
        stay = stays(records, replica)
        seconds = (rows.end_s - rows.start_s)[mine]
        assert float((stay.end_s - stay.start_s).sum()) == pytest.approx(float(np.dot(rows.running[mine], seconds)))
        start, end = stay.bounds(Phase.HELD)
        assert float((end - start).sum()) == pytest.approx(float(np.dot(rows.held[mine], seconds)))
        assert (records.requests.replica[stay.row] == replica).all()


def test_a_request_whose_kv_moved_was_prefilled_where_it_was() -> None:
    """Prefilled by one replica up to its first token, and decoded by the other from the end of its transfer on."""
    lengths = {"dist": "fixed", "value": 300}
    chat = {"name": "chat", "arrival": {"process": "poisson", "rate": 8}, "input": lengths, "output": lengths}
    scenario = {"name": "apart", "workload": {"requests": 30, "classes": [chat]},
                "fleet": [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}]}  # fmt: skip
    records = scenarios.run(scenario).records
    there, here, moved = stays(records, 0), stays(records, 1), records.transfers
    assert moved is not None
    assert len(there) == len(here) == len(moved.row) == 30
    for phase in (Phase.DECODE, Phase.HELD):
        assert np.ptp(there.bounds(phase), axis=0).max() == 0.0
    assert np.ptp(here.bounds(Phase.PREFILL), axis=0).max() == 0.0
    order, by_row = np.argsort(moved.row), np.argsort(there.row)
    assert there.end_s[by_row].tolist() == moved.ready_s[order].tolist()
    assert (here.start_s[np.argsort(here.row)] == moved.end_s[order]).all()
