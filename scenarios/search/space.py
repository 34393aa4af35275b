"""What a search may change: the policy, and of each policy the parameters that decide what a scheduler may decide.

A candidate is a policy with settings of these dimensions. Most candidates are compositions: the scenario's own policy,
where it takes an order or a choice of victim, or the default scheduler, with a weighted order of its queue, caps of
chunks and batch, a cadence of prompts, memory kept free, and a cap of the queue.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scenarios.assembly.engine_policy import is_default
from scenarios.assembly.replica_parts import build
from scenarios.assembly.unused_keys import engine_keys
from scenarios.plan.candidate import POLICY, Candidate, make_candidate
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.policies import DEFAULT_POLICY, built_in_policies, policy_class, policy_parameters
from simulator.queues import order_parameters
from simulator.workload import Workload

_ORDER, _WEIGHTED = "engine.order", "weighted"
_OF_WEIGHTED = frozenset(f"engine.{name}" for name in order_parameters(_WEIGHTED))
_NOT_DECIDED = frozenset({"version", "async_scheduling", "disable_overlap_schedule", "disable_chunked_mm_input"})
"""Parameters that say which server it is, and not what it decides."""
_STEP = 0.7  # of the logarithm of a number, as a neighbour is drawn
_SHIPPED = 0.2  # of the draws that take a shipped policy as it is, but for some of its settings
_TRIES = 50


@dataclass(frozen=True, slots=True)
class Choice:
    """Values to choose from, in an order in which neighbours are alike; some may stand several times."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        return self.values[int(rng.integers(len(self.values)))]

    def near(self, rng: np.random.Generator, value: Any) -> Any:
        if value not in self.values:
            return self.draw(rng)
        place = self.values.index(value) + (1 if rng.random() < 0.5 else -1)
        return self.values[min(max(place, 0), len(self.values) - 1)]


@dataclass(frozen=True, slots=True)
class Spread:
    """Numbers between two, evenly by their logarithm; `off` instead of them in one draw of three."""

    low: float
    high: float
    off: Any
    whole: bool = False

    def draw(self, rng: np.random.Generator) -> Any:
        if rng.random() < 1 / 3:
            return self.off
        return self._number(float(rng.uniform(math.log(self.low), math.log(self.high))))

    def near(self, rng: np.random.Generator, value: Any) -> Any:
        if value == self.off or not value:
            return self.draw(rng)
        at = math.log(value) + float(rng.normal(0.0, _STEP))
        return self._number(min(max(at, math.log(self.low)), math.log(self.high)))

    def _number(self, at: float) -> float | int:
        return round(math.exp(at)) if self.whole else float(f"{math.exp(at):.3g}")


@dataclass(frozen=True, slots=True)
class ByClass:
    """A number of `each` for every class; those that are off are left out."""

    names: tuple[str, ...]
    each: Spread

    def draw(self, rng: np.random.Generator) -> dict[str, Any]:
        return self._kept({name: self.each.draw(rng) for name in self.names})

    def near(self, rng: np.random.Generator, value: Any) -> dict[str, Any]:
        name = str(rng.choice(self.names))
        return self._kept({**value, name: self.each.near(rng, value.get(name, self.each.off))})

    def _kept(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        return {name: drawn[name] for name in self.names if drawn.get(name, self.each.off) != self.each.off}


Dimension = Choice | Spread | ByClass


class Space:
    """The candidates of a search over a scenario. `sheds`: one that is turned away counts as lost, not as none."""

    def __init__(self, base: Scenario, workload: Workload, *, sheds: bool) -> None:
        self.base = base
        own = base.engine.policy
        composed = [own] if {"order", "victim"} & policy_parameters(policy_class(own)).keys() else []
        self.composed = (*composed, *([] if is_default(base) else [DEFAULT_POLICY]))
        self._common = _dimensions(base, workload, sheds=sheds)
        self._own: dict[str, Mapping[str, Dimension]] = {}
        self._shipped = [name for name in built_in_policies() if name != own]

    def first(self) -> list[Candidate]:
        """Every shipped policy with the scenario's settings, where it can serve the scenario."""
        found = [self.of({POLICY: name}) for name in self._shipped]
        return [each for each in found if each is not None]

    def drawn(self, rng: np.random.Generator) -> Candidate:
        """A random candidate."""
        return self._tried(lambda: self._draw(rng))

    def child(self, rng: np.random.Generator, parents: Sequence[Candidate]) -> Candidate:
        """A candidate near the better ones: of one of them, or of two of a policy, with a setting or two changed."""
        return self._tried(lambda: self._change(rng, parents))

    def _tried(self, make: Any) -> Candidate:
        for _ in range(_TRIES):
            if (found := self.of(make())) is not None:
                return found
        raise InputError("no candidate fits the scenario", hint="see `batchlab run` on it")

    def _draw(self, rng: np.random.Generator) -> dict[str, Any]:
        shipped = self._shipped and rng.random() < _SHIPPED
        policy = str(rng.choice(self._shipped if shipped else self.composed))
        dimensions = self._of(policy)
        share = 0.3 if shipped else 0.6
        return {POLICY: policy, **{key: each.draw(rng) for key, each in dimensions.items() if rng.random() < share}}

    def _change(self, rng: np.random.Generator, parents: Sequence[Candidate]) -> dict[str, Any]:
        """Better parents are chosen more often: they come first."""
        ranks = np.arange(len(parents), 0, -1.0)
        mine = dict(parents[int(rng.choice(len(parents), p=ranks / ranks.sum()))].settings)
        policy = str(mine.setdefault(POLICY, self.base.engine.policy))
        alike = [one.settings for one in parents if one.settings.get(POLICY, policy) == policy]
        other = alike[int(rng.integers(len(alike)))]
        mine |= {key: value for key, value in other.items() if rng.random() < 0.25}
        dimensions = self._of(policy)
        keys = [str(key) for key in rng.permutation(list(dimensions))][: int(rng.integers(1, 3))] if dimensions else []
        if mine.get(_ORDER) == _WEIGHTED and rng.random() < 0.5:
            keys = [str(rng.choice([key for key in dimensions if key in _OF_WEIGHTED]))]
        for key in keys:
            each = dimensions[key]
            mine[key] = each.near(rng, mine[key]) if key in mine and rng.random() < 0.7 else each.draw(rng)
        return mine

    def _of(self, policy: str) -> Mapping[str, Dimension]:
        """The dimensions that a policy takes: the common ones, and the words and switches among its own parameters."""
        if policy not in self._own:
            known = policy_parameters(policy_class(policy))
            taken = engine_keys(policy, {"order": _WEIGHTED} if "order" in known else {})
            found: dict[str, Dimension] = {
                key: one for key, one in self._common.items() if key[len("engine.") :] in taken
            }
            for name, each in known.items():
                key = f"engine.{name}"
                if key in found or name in _NOT_DECIDED or name == "order":
                    continue
                values = (False, True) if isinstance(each.default, bool) else each.words
                if len(values) > 1:
                    found[key] = Choice(tuple(values))
            self._own[policy] = found
        return self._own[policy]

    def of(self, settings: dict[str, Any]) -> Candidate | None:
        """The candidate of these settings; None where it cannot serve the scenario."""
        if settings.get(_ORDER) != _WEIGHTED:
            settings = {key: value for key, value in settings.items() if key not in _OF_WEIGHTED}
        if settings.get(POLICY) == self.base.engine.policy:
            settings.pop(POLICY)
        try:
            found = make_candidate(self.base, settings)
            build(found.scenario)
        except InputError:
            return None
        return found


def _dimensions(base: Scenario, workload: Workload, *, sheds: bool) -> dict[str, Dimension]:
    """What may differ, as far as the traffic lets it make a difference."""
    predicts = workload.predicted_output_tokens is not None or len({*workload.max_tokens.tolist()}) > 1
    ranks = len({*workload.priority.tolist()}) > 1
    due = workload.deadline_s is not None
    orders = ["fcfs", _WEIGHTED, _WEIGHTED, _WEIGHTED]
    orders += ["sjf"] * predicts + ["priority"] * ranks + ["edf"] * due
    seqs = int(base.engine.parameter("max_num_seqs", 256))
    slo = base.resolve_slo()
    ttft_s = None if slo is None or slo.ttft_ms is None else slo.ttft_ms / 1e3
    late = Spread(0.1, 30.0, None) if ttft_s is None else Spread(ttft_s / 4, 1.5 * ttft_s, None)
    found: dict[str, Dimension] = {
        "engine.max_num_batched_tokens": Choice((256, 512, 1024, 2048, 4096, 8192, 16384)),
        "engine.max_num_seqs": Choice(tuple(sorted({max(1, seqs // n) for n in (16, 8, 4, 2, 1)} | {2 * seqs}))),
        "engine.long_prefill_token_threshold": Choice((0, 0, 2048, 1024, 512, 256)),
        "engine.prefill_schedule_interval": Choice((1, 1, 2, 4, 8, 16, 32)),
        "engine.watermark": Choice((0.0, 0.0, 0.01, 0.03, 0.1)),
        _ORDER: Choice(tuple(orders)),
        "engine.input_token_s": Spread(1e-5, 1.0, 0.0),
        "engine.late_after_s": late,
        "engine.late_token_s": Spread(1e-6, 1e-3, 0.0),
    }
    if predicts:
        found["engine.output_token_s"] = Spread(1e-5, 1.0, 0.0)
    if ranks:
        found["engine.priority_s"] = Spread(0.1, 1e3, 0.0)
    if len({*workload.class_index.tolist()}) > 1:
        found["engine.class_s"] = ByClass(tuple(workload.class_names), Spread(0.1, 1e3, 0.0))
    if base.engine.enable_prefix_caching and workload.content is not None:
        found["engine.cached_token_s"] = Spread(1e-5, 1.0, 0.0)
    if due:
        found["engine.deadline_weight"] = Spread(0.1, 10.0, 0.0)
    if sheds:
        found["engine.max_num_queued_reqs"] = Spread(8, 8 * seqs, None, whole=True)
    return found
