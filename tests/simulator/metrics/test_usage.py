"""Per-step columns read in pieces, and the arithmetic of steps. What the shares mean is tested in test_metrics."""

from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.metrics import latency, usage
from simulator.metrics.summary import summarize
from simulator.metrics.usage import by_replica, row_pieces, step_starts
from tests.naive_metrics import same
from tests.records_maker import single_server, tell
from tests.story import Story

stories = st.builds(tell, st.integers(0, 10**6), requests=st.integers(1, 25), cut_short=st.booleans())


@given(stories, st.integers(1, 30))
def test_pieces_cover_all_rows_and_steps_once(story: Story, at_once: int) -> None:
    records = story.records()
    with patch.object(usage, "STEPS_AT_ONCE", at_once):
        pieces = list(row_pieces(records))
    rows, steps = list(range(len(records.rows.repeat))), list(range(records.num_steps))
    assert [i for piece, _ in pieces for i in rows[piece]] == rows
    assert [i for _, piece in pieces for i in steps[piece]] == steps
    for of_rows, of_steps in pieces:
        assert records.rows.first_step[of_rows][0] == of_steps.start
        assert of_steps.stop - of_steps.start < 2 * at_once + records.rows.repeat.max()


@given(stories, st.integers(1, 30), st.booleans())
def test_pieces_change_no_metric(story: Story, at_once: int, cut: bool) -> None:
    records = story.records()
    warmup_s = float(np.ptp(records.requests.arrival_s)) / 2 if cut else 0.0
    whole = summarize(records, warmup_s=warmup_s)
    with patch.object(usage, "STEPS_AT_ONCE", at_once), patch.object(latency, "STEPS_AT_ONCE", at_once):
        pieces = summarize(records, warmup_s=warmup_s)
    assert all(same(pieces[name], value) for name, value in whole.items())
    assert pieces["p99_itl_ms"] == whole["p99_itl_ms"]


@given(stories)
def test_step_starts(story: Story) -> None:
    records = story.records()
    expected = [s.start_s for s in sorted(story.steps, key=lambda s: s.row)]
    assert step_starts(records).tolist() == expected


def test_a_share_is_not_above_one_for_rounding() -> None:
    """Ten steps of a tenth of a second, back to back, add up to less or more than the second they take."""
    for step_s in (0.1, 0.3, 0.7, 1.1):
        summary = summarize(single_server(np.zeros(10), np.full(10, step_s)))
        assert summary["busy_fraction"] is not None
        assert 1 - 1e-12 < summary["busy_fraction"] <= 1


@given(stories, st.booleans())
def test_the_least_and_the_most_busy_replica(story: Story, cut: bool) -> None:
    records = story.records()
    warmup_s = float(np.ptp(records.requests.arrival_s)) / 2 if cut else 0.0
    summary = summarize(records, warmup_s=warmup_s)
    shares = by_replica(records, warmup_s=warmup_s).busy_fraction
    ends = (summary["least_busy_fraction"], summary["most_busy_fraction"])
    if records.replicas == 1 or np.isnan(shares).all():
        assert ends == (None, None)
    else:
        assert np.allclose(np.array(ends, dtype=float), [np.nanmin(shares), np.nanmax(shares)])
