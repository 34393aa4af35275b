"""The traffic of a scenario at any rate: drawn at that rate, or more or less of its trace."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import fields, replace
from typing import Any

import numpy as np

from scenarios.assembly.workloads import build_workload, is_random
from scenarios.generate.classes import at_mean_rate, mean_rate
from scenarios.plan.search import rounded
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.schema.trace import TraceConfig, TraceWorkload
from simulator.workload import Workload

_KEPT = 12  # workloads that are kept: those of the seeds at a few rates
_KEPT_ROWS = 2_000_000  # of them all
IN_STEP_S = 20.0
"""The largest shift of copies whose peaks meet: longer than most requests take, shorter than a load takes to change."""
_ALIKE = 0.005  # share of the rate: so little more or less is the trace as it is


class Traffic:
    """The workload of a scenario as a function of its rate, in requests per second.

    Less load than a trace has is the trace played slower (`trace.rate_scale`). More load is more users: copies of it
    laid over each other (`trace.copies`), a part of the sessions in the last. They are shifted as the scenario says, or
    else anywhere in the trace, or by at most `shift_s`. A scenario that plays its trace faster or slower itself is
    played faster for more load. Of a generated workload the rates of the classes are multiplied by one factor, and the
    draws stay the same: runs at any rate and of any candidate share their random numbers. `piece` is a stretch of so
    many requests that arrive closest together, for short runs.
    """

    def __init__(self, scenario: Scenario, shift_s: float | None = None) -> None:
        self.scenario = scenario
        self._shift_s = shift_s
        self._in_step: Traffic | None = None
        self.is_trace = isinstance(scenario.workload, TraceWorkload)
        self.is_random = is_random(scenario)
        self._recorded: dict[int, Workload] = {}
        self._kept: OrderedDict[tuple[float, int, int], Workload] = OrderedDict()
        self.rate = self._offered()

    def _offered(self) -> float:
        """Return the rate of the scenario as it stands. Raises InputError where its traffic has none."""
        workload = self.scenario.workload
        if not isinstance(workload, TraceWorkload):
            found = mean_rate(workload)
            if found is None:
                what = "the requests of closed loops follow answers: they have no rate"
                raise self.scenario.error("workload", what, "a plan needs arrivals at a rate of their own, as poisson")
            return rounded(found)
        if workload.trace.arrival is not None:
            return rounded(workload.trace.arrival.mean_rate)
        arrival = self._at_recorded_rate(self.scenario.seed).arrival_s
        span_s = float(arrival[-1] - arrival[0]) if len(arrival) > 1 else 0.0
        if span_s <= 0:
            what = "all requests of the trace arrive at once: it has no rate"
            raise self.scenario.error(
                "workload.trace", what, "trace.arrival gives it arrivals, or jitter_s spreads them"
            )
        self._recorded_rate = (len(arrival) - 1) / span_s
        return rounded(self._recorded_rate * workload.trace.rate_scale * workload.trace.copies)

    @property
    def num_requests(self) -> int:
        """Requests of the scenario as it stands."""
        return len(self.workload(self.rate, self.scenario.seed))

    def settings(self, rate: float) -> dict[str, object]:
        """Return the keys of the scenario, dotted, that give it this rate."""
        workload = self.scenario.workload
        if isinstance(workload, TraceWorkload):
            arrival = workload.trace.arrival
            if arrival is None:
                return self._of_trace(workload.trace, rate)
            return {"workload.trace.arrival.rate": arrival.rate * rate / arrival.mean_rate}
        if workload.preset is not None:
            return {"workload.rate": rate}
        if workload.shared is None:
            return {"workload.arrival": {"rate": rate}}
        return {}

    def _of_trace(self, trace: TraceConfig, rate: float) -> dict[str, object]:
        """Return the keys that give a trace a rate."""
        keys: dict[str, object] = {"rate_scale": float(f"{rate / self._recorded_rate:.9g}")}
        if (times := self.copies(rate)) is not None:
            keys = {"copies": times, "rate_scale": trace.rate_scale}
            if self._shift_s is not None:
                keys["shift_s"] = self._shift_s
        elif trace.copies > 1:
            keys |= {"copies": 1.0, "shift_s": None}
        return {f"workload.trace.{key}": value for key, value in keys.items()}

    def copies(self, rate: float) -> float | None:
        """Return the copies of the trace that make a rate; None where it is played faster or slower, or drawn."""
        workload = self.scenario.workload
        if not isinstance(workload, TraceWorkload) or workload.trace.arrival is not None:
            return None
        trace = workload.trace
        times = float(f"{rate / (self._recorded_rate * trace.rate_scale):.9g}")
        return times if times > 1 + _ALIKE and (trace.rate_scale == 1 or trace.copies > 1) else None

    def in_step(self, rate: float) -> Traffic | None:
        """Return the traffic whose copies have their peaks together; None where no copies make this rate, or where the
        scenario says how they are shifted."""
        workload = self.scenario.workload
        if self.copies(rate) is None or not isinstance(workload, TraceWorkload):
            return None
        if self._in_step is None and workload.trace.shift_s is None:
            self._in_step = Traffic(self.scenario, IN_STEP_S)
        return self._in_step

    def words(self, rate: float) -> str:
        """How a trace comes to a rate, in words; nothing where the rate is its own, or the traffic is drawn."""
        workload = self.scenario.workload
        if not isinstance(workload, TraceWorkload) or workload.trace.arrival is not None:
            return ""
        own, trace = self._recorded_rate, workload.trace
        if (times := self.copies(rate)) is not None:
            shift_s = trace.shift_s if self._shift_s is None else self._shift_s
            shift = "anywhere in it" if shift_s is None else f"by at most {shift_s:g} s"
            return f"{times:.3g} copies of the trace ({own:.3g}/s) laid over each other, each shifted {shift}"
        if abs(rate / own - 1) < _ALIKE:
            return ""
        return f"the trace ({own:.3g}/s) played {rate / own:.3g} times as fast"

    def scenario_at(self, scenario: Scenario, rate: float) -> Scenario:
        """Return a scenario with this traffic, at a rate; it may differ from the one here in other things."""
        settings = self.settings(rate)
        if settings:
            return load(scenario, [f"{key}={json.dumps(value)}" for key, value in settings.items()])
        assert not isinstance(scenario.workload, TraceWorkload), "a trace has settings for its rate"
        return scenario.model_copy(update={"workload": at_mean_rate(scenario.workload, rate)})

    def workload(self, rate: float, seed: int, piece: int = 0) -> Workload:
        """The requests at a rate, all of them or a piece."""
        key = (rate, seed, piece)
        found = self._kept.pop(key, None)
        if found is None:
            found = self._whole(rate, seed)
            if 0 < piece < len(found) and not found.answers_back:
                found = _busiest(found, piece)
        self._kept[key] = found
        while len(self._kept) > min(_KEPT, 1 + _KEPT_ROWS // (len(found) + 1)):
            self._kept.popitem(last=False)
        return found

    def _whole(self, rate: float, seed: int) -> Workload:
        scenario = self.scenario
        workload = scenario.workload
        if isinstance(workload, TraceWorkload) and workload.trace.arrival is None and self.copies(rate) is None:
            recorded = self._at_recorded_rate(seed)
            scale = float(f"{rate / self._recorded_rate:.9g}")
            delay_s = None if recorded.delay_s is None else recorded.delay_s / scale
            return replace(recorded, arrival_s=recorded.arrival_s / scale, delay_s=delay_s)
        return build_workload(self.scenario_at(load(scenario, [f"seed={seed}"]), rate))

    def _at_recorded_rate(self, seed: int) -> Workload:
        if seed not in self._recorded:
            keys = ("rate_scale=1.0", "copies=1.0", "shift_s=null")
            plain = load(self.scenario, [f"seed={seed}", *(f"workload.trace.{key}" for key in keys)])
            self._recorded[seed] = build_workload(plain)
        return self._recorded[seed]


def _busiest(workload: Workload, piece: int) -> Workload:
    """Cut out the stretch of `piece` requests in a row that takes the least time, from time 0 on."""
    arrival = workload.arrival_s
    spans = arrival[piece - 1 :] - arrival[: len(arrival) - piece + 1]
    first = int(np.argmin(spans))
    columns: dict[str, Any] = {name: column[first : first + piece] for name, column in workload.columns().items()}
    columns["arrival_s"] = columns["arrival_s"] - float(arrival[first])
    whole = {field.name: getattr(workload, field.name) for field in fields(workload) if field.name not in columns}
    return Workload(**{**whole, **columns})
