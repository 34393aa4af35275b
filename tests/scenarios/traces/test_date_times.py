"""Native traces whose arrivals are dates: with a zone or without, as texts or as counts since 1970, never mixed."""

from pathlib import Path

import pytest

from scenarios.traces import TraceOptions, read_trace
from simulator.errors import InputError
from tests.scenarios.traces.test_read import NATIVE, jsonl, write


def native(*times: object) -> str:
    return NATIVE + "".join(f"{time},10,5\n" for time in times)


@pytest.mark.parametrize(
    ("times", "zero"),
    [
        (("2026-01-31T08:00:00", "2026-01-31 08:00:02.5"), "2026-01-31 08:00:00"),
        (("2026-01-31T08:00:00+01:00", "2026-01-31T07:00:02.5Z"), "2026-01-31 07:00:00"),
        ((1769846400000, 1769846402500), "2026-01-31 08:00:00"),
        ((1769846400000000, 1769846402500000), "2026-01-31 08:00:00"),
        ((1769846400000000000, 1769846402500000000), "2026-01-31 08:00:00"),
    ],
)
def test_dates_are_read_and_the_first_is_time_0(times: tuple[object, ...], zero: str, tmp_path: Path) -> None:
    rows = [{"arrival_time_s": time, "input_tokens": 10, "output_tokens": 5} for time in times]
    for text in (native(*times), jsonl(*rows)):
        workload = read_trace(write(tmp_path, text))
        assert workload.arrival_s.tolist() == [0.0, 2.5]
        assert any(zero in note for note in workload.notes)


def test_a_log_with_names_of_its_own(tmp_path: Path) -> None:
    columns = {"arrival_time_s": "when", "input_tokens": "in", "output_tokens": "out"}
    path = write(tmp_path, "when,in,out\n2026-01-31T08:00:00Z,10,5\n2026-01-31T08:00:01Z,20,6\n")
    assert read_trace(path, TraceOptions(columns=columns)).arrival_s.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (("2026-01-31T08:00:00", "2026-01-31T07:00:02Z"), "has a zone in some rows and none in others"),
        (("2026-01-31T08:00:00Z", "2026-01-31T07:00:02"), "has a zone in some rows and none in others"),
        ((1769846400000, "2026-01-31T07:00:02Z"), "a date-time in one row and a number in another"),
        (("2026-01-31T07:00:02Z", 1769846400), "a date-time in one row and a number in another: '1769846400'"),
    ],
)
def test_dates_of_two_kinds_are_an_error(times: tuple[object, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said) as caught:
        read_trace(write(tmp_path, native(*times)))
    assert "2026-01-31T08:00:00Z" in str(caught.value)


def test_a_number_among_date_times_is_an_error_in_json_too(tmp_path: Path) -> None:
    rows = [{"arrival_time_s": time, "input_tokens": 1, "output_tokens": 1} for time in ("2026-01-31T08:00:00Z", 17)]
    with pytest.raises(InputError, match="a number in another: 17"):
        read_trace(write(tmp_path, jsonl(*rows)))


def test_a_row_that_is_no_date_is_skipped_as_any_bad_row(tmp_path: Path) -> None:
    workload = read_trace(write(tmp_path, native("2026-01-31T08:00:00Z", "yesterday", "2026-01-31T08:00:03Z")))
    assert workload.arrival_s.tolist() == [0.0, 3.0]
    assert any("arrival_time_s is not a date-time" in note for note in workload.notes)


def test_seconds_stay_seconds(tmp_path: Path) -> None:
    assert read_trace(write(tmp_path, native(1.5, 3))).arrival_s.tolist() == [1.5, 3.0]
