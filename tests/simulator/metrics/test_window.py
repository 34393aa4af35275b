"""What a warm-up and a cool-down cut leave to be measured."""

from dataclasses import replace

import numpy as np

from simulator.metrics.window import measured_window, run_end_s
from simulator.results.records import Status
from tests.records_maker import single_server


def test_everything_is_measured_without_a_cut() -> None:
    window = measured_window(single_server(np.array([1.0, 2.0, 3.0]), np.full(3, 5.0)))
    assert (window.start_s, window.end_s, window.duration_s) == (1.0, 16.0, 15.0)
    assert window.whole
    assert window.measured.all()


def test_a_cut_counts_from_the_first_and_the_last_arrival() -> None:
    window = measured_window(single_server(np.array([1.0, 2.0, 3.0, 4.0]), np.full(4, 5.0)), 1.0, 1.0)
    assert window.measured.tolist() == [False, True, True, False]
    assert (window.start_s, window.end_s) == (2.0, 16.0)
    assert not window.whole


def test_an_unfinished_request_reaches_to_the_end_of_the_run() -> None:
    records = single_server(np.array([0.0, 0.0, 9.0]), np.ones(3))
    status = np.array([Status.UNFINISHED, Status.FINISHED, Status.REJECTED], dtype=np.int64)
    records = replace(records, requests=replace(records.requests, status=status))
    assert run_end_s(records) == 10.0
    assert measured_window(records).end_s == 10.0


def test_a_rejected_request_has_no_last_token() -> None:
    records = single_server(np.array([0.0, 0.0, 9.0]), np.ones(3))
    status = np.array([Status.FINISHED, Status.FINISHED, Status.REJECTED], dtype=np.int64)
    records = replace(records, requests=replace(records.requests, status=status))
    assert measured_window(records).end_s == 2.0
    unserved = replace(records, requests=replace(records.requests, status=np.full(3, Status.REJECTED, dtype=np.int64)))
    assert measured_window(unserved).duration_s == 0.0
