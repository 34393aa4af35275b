"""Metrics of agents' tasks: from the first request of a task to its last answer, with tools and sub-agents between."""

from collections.abc import Callable

import numpy as np

from simulator.metrics.client_metrics import Tasks
from simulator.metrics.measured_sample import Sample
from simulator.metrics.metric import Metric, Value


def _of(value: Callable[[Tasks], Value]) -> Callable[[Sample], Value]:
    return lambda sample: None if sample.tasks is None else value(sample.tasks)


def _mean(column: str) -> Callable[[Sample], Value]:
    return _of(lambda found: float(getattr(found, column).mean()) if len(found.seconds) else None)


def _percentile(percent: int) -> Callable[[Sample], Value]:
    return _of(lambda found: float(np.percentile(found.seconds, percent)) if len(found.seconds) else None)


_DONE = "of tasks that are done"

TASK_METRICS = (
    Metric(
        "tasks", "tasks", "", "tasks of agents whose first request is measured", _of(lambda found: found.tasks),
        by_class=True, is_rare=True,
    ),
    Metric(
        "tasks_done", "tasks done", "", "tasks of which every request was answered",
        _of(lambda found: len(found.seconds)), better=1, by_class=True, is_rare=True,
    ),
    Metric(
        "mean_task_s", "task mean", "s", "a task's first arrival to its last token, mean", _mean("seconds"),
        better=-1, remark=_DONE, by_class=True, is_rare=True,
    ),
    Metric(
        "p50_task_s", "task p50", "s", "p50 of a task's first arrival to its last token", _percentile(50),
        better=-1, remark=_DONE, by_class=True, is_rare=True,
    ),
    Metric(
        "p99_task_s", "task p99", "s", "p99 of a task's first arrival to its last token", _percentile(99),
        better=-1, remark=_DONE, by_class=True, is_rare=True,
    ),
    Metric(
        "mean_task_requests", "requests of a task", "", "answered requests of a task, mean", _mean("requests"),
        remark=_DONE, by_class=True, is_rare=True,
    ),
    Metric(
        "mean_task_input_tokens", "input of a task", "tokens", "prompt tokens of a task, mean", _mean("input_tokens"),
        remark=_DONE, by_class=True, is_rare=True,
    ),
    Metric(
        "mean_task_output_tokens", "output of a task", "tokens", "generated tokens of a task, mean",
        _mean("output_tokens"), remark=_DONE, by_class=True, is_rare=True,
    ),
)  # fmt: skip
