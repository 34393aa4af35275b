import numpy as np
import pytest

from simulator.metrics.latency import token_times_s
from simulator.results.records import Status
from tests.laws.naive_engine import serve
from tests.records_maker import tell
from tests.simulator.metrics.short_of_memory import short_of_memory


@pytest.mark.parametrize("seed", range(40))
def test_times_are_those_of_the_story(seed: int) -> None:
    """Exact where nothing came between; of all others the number, the first and the last."""
    story = tell(seed, requests=25, streams=seed % 4 > 0)
    records = story.records()
    found = dict(token_times_s(records))
    told = {r.row: r for r in story.requests}
    assert set(found) == {row for row, r in told.items() if r.status is Status.FINISHED}
    pauses = (records.rows.running > records.rows.decoding + records.rows.prefilling + records.rows.held).any()
    exact = 0
    for row, times in found.items():
        if not story.streams:
            assert times.tolist() == [told[row].delivered_s]
            continue
        assert len(times) == len(told[row].token_s)
        assert (np.diff(times) >= 0).all()
        assert (times[0], times[-1]) == (told[row].token_s[0], told[row].token_s[-1])
        if told[row].preemptions <= 0 and not pauses:
            exact += 1
            np.testing.assert_allclose(times, told[row].token_s, rtol=1e-12)
    assert exact or pauses or not story.streams


def test_times_of_a_request_that_was_preempted_once_are_exact() -> None:
    """Against an engine that keeps the time of every token."""
    scenario = short_of_memory()
    records = scenario.run().records
    found = dict(token_times_s(records))
    checked = 0
    for request in serve(scenario)[0].requests:
        if records.requests.preemptions[request.row] <= 1:
            np.testing.assert_allclose(found[request.row], request.token_s, rtol=1e-12)
            checked += int(records.requests.preemptions[request.row])
        assert len(found[request.row]) == len(request.token_s)
    assert checked >= 5
