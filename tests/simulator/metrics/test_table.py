"""The table of metrics: complete, in order, and true of what is measured."""

import math

import pytest
from hypothesis import given

from simulator.metrics.metric import FLAG, FRACTION
from simulator.metrics.summary import METRICS, summarize, summarize_by_class
from tests.examples import examples
from tests.simulator.metrics.test_summary import KEYS, stories
from tests.story import Story

OF_A_CLASS = ("longest_queue_time_ms", "longest_requeue_time_ms", "most_preemptions")


def test_the_table_holds_the_keys_of_users_scripts_in_their_order() -> None:
    known = [*KEYS, "gpu_hours", "usd_per_million_output_tokens", *OF_A_CLASS]
    assert [key for key in METRICS if key in known] == known
    assert [METRICS[key].by_run for key in known] == [key not in OF_A_CLASS for key in known]


@pytest.mark.parametrize("key", METRICS)
def test_every_metric_says_what_it_is(key: str) -> None:
    metric = METRICS[key]
    assert metric.key == key
    assert metric.title
    assert metric.definition
    assert metric.better in (-1, 0, 1)
    for suffix in ("_ms", "_fraction", "_throughput"):
        if key.endswith(suffix):
            assert metric.unit in {"_ms": ["ms"], "_fraction": [FRACTION], "_throughput": ["req/s", "tok/s"]}[suffix]


@given(story=stories)
@examples(50)
def test_no_value_is_outside_its_bounds(story: Story) -> None:
    records = story.records()
    for summary in (summarize(records), *summarize_by_class(records).values()):
        for key, value in summary.items():
            low, high = METRICS[key].bounds
            assert value is None or low <= value <= high, key
            assert value is None or math.isfinite(value)
            assert isinstance(value, bool) == (METRICS[key].unit == FLAG)
