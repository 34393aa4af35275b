from dataclasses import replace

import numpy as np
import pytest

from reports.tables.details import ByClass, class_table, class_words, rejection_table, starvation_table
from simulator.metrics.latency import Slo
from simulator.metrics.summary import summarize_by_class
from simulator.results.records import Records, Status
from tests.columns import as_floats, as_ints
from tests.reports_maker import continuous, static

SLO = Slo(ttft_ms=1000, tpot_ms=50)


def changed(records: Records, **columns: object) -> Records:
    return replace(records, requests=replace(records.requests, **columns))  # type: ignore[arg-type] # names vary


def test_class_table_has_a_line_for_each_class_and_run() -> None:
    classes = ("chat", "batch")
    runs = [("s", static(60, classes=classes)), ("c", continuous(60, classes=classes))]
    found = class_table(runs, SLO)
    assert found is not None
    assert [line[:2] for line in found.body] == [("chat", "s"), ("chat", "c"), ("batch", "s"), ("batch", "c")]
    assert found.text_columns == 2
    summary = summarize_by_class(runs[1][1], slo=SLO)["chat"]
    line = dict(zip(found.head, found.body[1], strict=True))
    assert line["completed"] == str(summary["completed"]) == "30"
    shown = float(line["TTFT p99 (ms)"].replace(",", ""))
    assert shown == pytest.approx(summary["p99_ttft_ms"], rel=0.02)
    assert "rejected" not in found.head, "what is 0 for all is left out"


def test_class_table_needs_two_classes() -> None:
    assert class_table([("c", continuous(20))], SLO) is None
    assert class_table([("c", continuous(20, classes=("a", "b")))], None) is not None


def test_class_table_takes_the_cuts_of_the_summary() -> None:
    records = continuous(60, classes=("a", "b"))
    whole, cut = class_table([("c", records)], SLO), class_table([("c", records)], SLO, warmup_s=5.0)
    assert whole is not None
    assert cut is not None
    assert int(cut.body[0][2]) < int(whole.body[0][2])


def test_starvation_names_the_longest_waits_first() -> None:
    records = static(60)
    found = starvation_table([("static", records)])
    assert found is not None
    waited = records.requests.scheduled_s - records.requests.arrival_s
    place = found.head.index("request")
    assert [int(line[place]) for line in found.body] == np.argsort(-waited, kind="stable")[:3].tolist()
    assert found.body[0][0] == "static"
    assert "preemptions" not in found.head


def test_starvation_counts_waits_after_preemptions() -> None:
    records = continuous(80, num_blocks=150)
    found = starvation_table([("c", records)], most=80)
    assert found is not None
    again = dict(
        zip(
            [line[1] for line in found.body],
            [line[found.head.index("waited again (s)")] for line in found.body],
            strict=True,
        )
    )
    row = int(np.argmax(records.requests.requeued_s))
    assert float(again[str(row)]) == pytest.approx(float(records.requests.requeued_s[row]), rel=0.01)


def test_who_left_waited_until_then() -> None:
    records = continuous(10, num_blocks=100_000)
    requests = records.requests
    scheduled, status, released = requests.scheduled_s.copy(), requests.status.copy(), requests.released_s.copy()
    scheduled[2], status[2], released[2] = np.nan, Status.ABORTED, requests.arrival_s[2] + 20.0
    gone = changed(records, scheduled_s=scheduled, status=status, released_s=released)
    found = starvation_table([("c", gone)], most=10)
    assert found is not None
    waited = {line[found.head.index("request")]: line[found.head.index("waited first (s)")] for line in found.body}
    assert float(waited["2"]) == pytest.approx(20.0)


def test_who_was_never_served_waited_to_the_end() -> None:
    records = continuous(10, num_blocks=100_000)
    scheduled, status = records.requests.scheduled_s.copy(), records.requests.status.copy()
    scheduled[2], status[2] = np.nan, Status.UNFINISHED
    found = starvation_table(
        [("c", changed(records, scheduled_s=as_floats(scheduled), status=as_ints(status)))], most=2
    )
    assert found is not None
    line = dict(zip(found.head, found.body[0], strict=True))
    assert (line["request"], line["outcome"]) == ("2", "unfinished")


def test_rejected_requests_do_not_wait() -> None:
    assert starvation_table([("c", continuous(4, num_blocks=1))]) is None


def test_rejections_are_counted_by_reason() -> None:
    records = continuous(9, num_blocks=1)
    reasons = {row: "too long" if row % 3 else f"odd {row}" for row in range(9)}
    found = rejection_table([("c", replace(records, reject_reasons=reasons))], most=1)
    assert found is not None
    assert found.body == (("c", "too long", "1", "6"), ("c", "other reasons", "-", "3"))
    assert rejection_table([("c", continuous(3))]) is None


def test_words_say_who_serves_which_class_best() -> None:
    by_run: ByClass = {
        "a": {"chat": {"slo_attainment": 1.0}, "batch": {"slo_attainment": 0.1}, "odd": {"slo_attainment": 0.5}},
        "b": {"chat": {"slo_attainment": 0.8}, "batch": {"slo_attainment": 0.9}, "odd": {"slo_attainment": 0.5}},
        "c": {"chat": {"slo_attainment": 1.0}, "batch": {"slo_attainment": None}},
    }
    assert class_words(by_run) == (
        "Most requests within the SLO, by class: for chat a and c (100.0 %; b 80.0 %); for batch b (90.0 %; a 10.0 %)."
    )
    assert class_words({"a": {"chat": {"slo_attainment": None}}}) == ""
