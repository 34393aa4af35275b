"""Metrics of the user's own: `path.py:NAME`, a `Metric` in a file anywhere."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from simulator.errors import InputError
from simulator.metrics.measured_sample import Sample
from simulator.metrics.metric import Metric, Value
from simulator.metrics.slo import Slo
from simulator.metrics.table import METRICS
from simulator.metrics.window import measured_window
from simulator.named_class import split_class, users_object
from simulator.results.records import Records

OWN = "own_metrics"
"""The key of summary.json that describes them: title, unit, definition, better."""


def load_metric(name: str) -> Metric:
    """Load the metric that `path.py:NAME` names. Raises InputError where there is none, or its key is taken.

    Its `of` raises InputError, with the user's file, where it fails or gives no number.
    """
    metric: Metric = users_object("metric", name, Metric)
    path, _ = split_class(name)
    if metric.key in METRICS or not metric.key.isidentifier() or metric.key == OWN:
        what = f"the key {metric.key!r} is taken, or no word of letters, digits and _"
        raise InputError(what, file=path, hint="summary.json has the metrics of batchlab under their own keys")
    if metric.of is None:
        raise InputError(f"{metric.key} has no `of`, which works it out", file=path)
    return replace(metric, of=partial(_worked_out, metric, path))


def _worked_out(metric: Metric, path: str, sample: Sample) -> Value:
    assert metric.of is not None  # as load_metric says
    try:
        value = metric.of(sample)
    except Exception as error:  # whatever the user's function raises is the user's to mend
        raise InputError(f"{metric.key} fails: {type(error).__name__}: {error}", file=path) from error
    if value is not None and not (hasattr(value, "__float__") and math.isfinite(value)):
        raise InputError(f"{metric.key} gives {value!r}", file=path, hint="a finite number, or None if undefined")
    return value if value is None or isinstance(value, (bool, int)) else float(value)


def own_entries(
    names: Sequence[str], records: Records, slo: Slo | None, *, warmup_s: float = 0.0, cooldown_s: float = 0.0
) -> dict[str, Any]:
    """Return the entries of summary.json for these metrics: a value for each key, and what each of them is.

    Raises InputError, with the user's file, for a metric that fails or gives no number.
    """
    if not names:
        return {}
    sample = Sample(records, measured_window(records, warmup_s, cooldown_s), slo)
    values: dict[str, Any] = {}
    about: dict[str, Any] = {}
    for name in names:
        metric, (path, _) = load_metric(name), split_class(name)
        if metric.key in values:
            raise InputError(f"a second metric has the key {metric.key!r}", file=path)
        assert metric.of is not None  # as load_metric says
        values[metric.key] = metric.of(sample)
        told = {"title": metric.title, "unit": metric.unit, "definition": metric.definition, "better": metric.better}
        about[metric.key] = told
    return {**values, OWN: about}
