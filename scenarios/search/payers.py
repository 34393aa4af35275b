"""Which requests pay for a policy, and which win: both runs of the same requests, by what a request is."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from scenarios.runs.result import Result
from simulator.metrics.latency import e2el_s, ttft_s
from simulator.metrics.slo import meets_slo
from simulator.metrics.window import Bools
from simulator.results.records import Floats, Ints, Records


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that have something in common: TTFT and E2E in milliseconds and shares within the SLO, of both runs.

    The first of each pair is of the scenario's own policy, the second of the found one. NaN where no request has one;
    `within` is None without limits of a request. `middle` is the median prompt of a group by prompts; 0 for others.
    """

    name: str
    count: int
    ttft_ms: tuple[float, float]
    e2el_ms: tuple[float, float]
    within: tuple[float, float] | None
    middle: float = 0.0


def groups(baseline: Sequence[Result], best: Sequence[Result], *, parts: int = 4) -> list[Group]:
    """All requests; those of each of so many parts of the prompts, and of the answers, by length; those of each class.

    Empty where the runs had different requests, as those of closed loops have.
    """
    first = baseline[0]
    if any(len(a.records.requests.row) != len(b.records.requests.row) for a, b in zip(baseline, best, strict=True)):
        return []
    slo = first.scenario.resolve_slo()
    inputs = np.concatenate([run.records.requests.input_tokens for run in baseline])
    outputs = np.concatenate([run.records.requests.output_tokens for run in baseline])
    found = [("all", np.ones(len(inputs), dtype=np.bool_))]
    found += [*_by_length("prompt", inputs, parts), *_by_length("answer", outputs, parts)]
    names = first.records.class_names
    if len(names) > 1:
        index = np.concatenate([run.records.requests.class_index for run in baseline])
        found += [(name, index == place) for place, name in enumerate(names)]

    def both(of: Callable[[Records], Floats | Bools]) -> list[Floats]:
        return [np.concatenate([of(run.records) for run in runs]).astype(np.float64) for runs in (baseline, best)]

    ttft, e2el = both(ttft_s), both(e2el_s)
    within = both(lambda records: meets_slo(records, slo)) if slo is not None and slo.limits else None
    return [
        Group(
            name,
            int(rows.sum()),
            _means(ttft, rows, 1e3),
            _means(e2el, rows, 1e3),
            None if within is None else _means(within, rows, 1.0),
            float(np.median(inputs[rows])) if name.startswith("prompt ") else 0.0,
        )
        for name, rows in found
        if rows.any()
    ]


def _by_length(noun: str, lengths: Ints, parts: int) -> Iterator[tuple[str, Bools]]:
    ends = np.unique(np.quantile(lengths, np.linspace(0.0, 1.0, parts + 1)).round())
    for place, (low, high) in enumerate(pairwise(ends.tolist())):
        rows = (lengths <= high) & ((lengths > low) if place else (lengths >= low))
        yield f"{noun} {int(low) + (1 if place else 0):,} to {int(high):,} tokens", rows


def _means(pair: Sequence[Floats], rows: Bools, scale: float) -> tuple[float, float]:
    first, second = (values[rows] for values in pair)
    known = [values[~np.isnan(values)] for values in (first, second)]
    a, b = (float(values.mean()) * scale if len(values) else float("nan") for values in known)
    return a, b
