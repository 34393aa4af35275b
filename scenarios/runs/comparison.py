"""Several policies on one workload, paired by seed: common random numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from scenarios.assembly.workloads import build_workload, is_random, same_requests
from scenarios.bound.bound import Bounds, bound, weakest
from scenarios.runs.result import BOUND, PROVENANCE, Result
from scenarios.runs.runner import WARNING, ProgressMaker, Source, run_on
from scenarios.runs.variants import FLAG, as_variant, choose, engine_overrides
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.show import Shown, html_table, one_line, picture
from simulator.errors import InputError
from simulator.metrics.confidence import metric_difference, metric_interval
from simulator.metrics.outcomes import entries, mean_outcomes
from simulator.metrics.summary import METRICS, OWN
from simulator.statistics import mean_interval

if TYPE_CHECKING:
    from scenarios.show import Picture

_NO_INTERVALS = (
    "every seed makes the same requests: one run of each policy, and no intervals"
    " (workload.trace.jitter_s or a generated workload gives them)"
)
_ANSWERS_BACK = (
    "arrivals depend on the answers, and so on the policy: each policy gets the same requests, lengths and think times,"
    " at times of its own"
)


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Several policies on the same requests. `summaries` has one summary a seed for each label, seeds in order.

    `first` are the results of the first seed, whose rows the pictures show.
    """

    seeds: tuple[int, ...]
    summaries: Mapping[str, Sequence[Mapping[str, Any]]]
    first: Mapping[str, Result]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"seeds {self.seeds[0]} to {self.seeds[-1]}"
        runs = "".join(f"\n  {label}: {one_line(summaries[0])}" for label, summaries in self.summaries.items())
        return f"<Comparison of {', '.join(self.summaries)}, {seeds}; of the first seed:{runs}>"

    def _repr_html_(self) -> str:
        return html_table("Comparison", self.shown())

    def shown(self) -> list[Shown]:
        """A line of tables and reports for each label."""
        return [result.shown(label, self.summaries[label]) for label, result in self.first.items()]

    def plot(self, kind: str = "latency") -> Picture:
        """A picture of the report, of all policies; see `Result.plot`."""
        return picture(self.shown(), kind)

    def means(self) -> dict[str, dict[str, Any]]:
        """Return the summary of each label: over several seeds the means, their intervals and paired differences.

        `intervals` maps a metric to the [low, high] of its mean's 95 % confidence interval. `difference_to` maps the
        first label to [mean, low, high] of each metric's difference to it, paired by seed. Both are empty for one
        seed. A flag is true if it is for any seed.
        """
        baseline = next(iter(self.summaries), "")
        found = {}
        for label, summaries in self.summaries.items():
            differs = label != baseline and len(self.seeds) > 1
            found[label] = {
                **_mean_summary(summaries),
                "seeds": list(self.seeds),
                "intervals": _intervals(summaries),
                "difference_to": {baseline: _differences(summaries, self.summaries[baseline])} if differs else {},
            }
        return found


class Compare:
    """A comparison that is being run. Iterate over it for the results, one at a time, then ask for `comparison`.

    All policies of a seed get the same workload. Labels say in what the runs differ (`labels.arrange`). If another seed
    makes the same workload again, only one seed is run, and the notes say so: intervals over equal runs mean nothing.
    `overrides` are those of `load`; an engine's parameter is applied to the policies that take it. With `bound`, every
    summary says what no scheduler can do better, within the widest limits of all these engines.
    """

    def __init__(
        self,
        scenario: Source,
        policies: Sequence[str | Mapping[str, Any]],
        seeds: int = 1,
        *,
        overrides: Sequence[str] = (),
        progress: ProgressMaker | None = None,
        bound: bool = False,
    ) -> None:
        of_engine, others = engine_overrides(overrides)
        self.base = base = load(scenario, others) if others or not isinstance(scenario, Scenario) else scenario
        if not policies:
            raise InputError("no policy to compare", file=FLAG, hint="as in --policies static,chunked_prefill")
        if seeds < 1:
            raise InputError(f"at least one seed is needed, not {seeds}", file="--seeds")
        self.progress = progress
        self.bounds: list[Bounds] | None = [] if bound else None  # one for each seed so far
        variants = [as_variant(policy) for policy in policies]
        found = choose(base, variants, of_engine)
        self._scenarios: dict[str, Scenario] = {label: one.scenario for label, one in found.items()}
        self._notes = {label: dict.fromkeys(one.notes) for label, one in found.items()}  # dictionaries as ordered sets
        for note in _unlike_hosts(self._scenarios):
            self._note(note)
        self._workloads = {base.seed: build_workload(base)}  # built already and not used yet
        self.seeds = tuple(range(base.seed, base.seed + seeds))
        if seeds > 1 and not self._seeds_differ(base):
            self.seeds = self.seeds[:1]
            self._note(_NO_INTERVALS)
        self._summaries: dict[str, list[Mapping[str, Any]]] = {label: [] for label in self._scenarios}
        self._first: dict[str, Result] = {}

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the runs, in the order in which they are shown."""
        return tuple(self._scenarios)

    def __iter__(self) -> Iterator[tuple[str, int, Result]]:
        """Yield label, seed and result of each simulation, seeds outermost."""
        self._cut_alike()
        for seed in self.seeds:
            of_seed = {label: load(s, [f"seed={seed}"]) for label, s in self._scenarios.items()}
            workload = self._workloads.pop(seed, None) or build_workload(next(iter(of_seed.values())))
            if self.bounds is not None:
                self.bounds.append(weakest([bound(each, workload, **each.measure.cuts()) for each in of_seed.values()]))
            for label, scenario in of_seed.items():
                result = run_on(scenario, workload, progress=self.progress)
                if self.bounds is not None:
                    result = result.bounded(self.bounds[-1])
                told = (_ANSWERS_BACK,) if workload.answers_back else ()
                notes = tuple(dict.fromkeys((*result.notes, *told, *self._notes[label])))
                result = replace(result, notes=notes)
                self._notes[label] |= dict.fromkeys(notes)
                self._summaries[label].append(result.summary)
                self._first.setdefault(label, result)
                yield label, seed, result

    def _cut_alike(self) -> None:
        """Find the warm-up with the first seed, if the scenario asks for it, and cut the longest off every run.

        Compared runs have to count the same requests. And a cut found in each run alone tends to follow a calm stretch
        of that run: 95 % intervals then hold the answer of a known queue in 90 % of cases (`tests/theory/coverage.py`).
        """
        if self.base.measure.warmup_s != "auto":
            return
        workload = self._workloads[self.base.seed]
        found = {
            label: cut
            for label, scenario in self._scenarios.items()
            if (cut := scenario.measure.warmup(run_on(scenario, workload).records)) is not None
        }
        worst = min(found, key=lambda label: (found[label].settled, -found[label].cut_s))
        seconds = found[worst].cut_s if found[worst].settled else 0.0
        self._scenarios = {
            label: load(scenario, [f"measure.warmup_s={seconds!r}"]) for label, scenario in self._scenarios.items()
        }
        self._note(f"{found[worst].words()}; the same for all runs, as found for {worst} with seed {self.base.seed}")

    def _note(self, text: str) -> None:
        """Add a note to every run."""
        for notes in self._notes.values():
            notes[text] = None

    def comparison(self) -> Comparison:
        """The comparison of the runs so far."""
        notes = merge_notes({label: list(notes) for label, notes in self._notes.items()})
        return Comparison(self.seeds, self._summaries, self._first, notes)

    def _seeds_differ(self, base: Scenario) -> bool:
        """Return whether the next seed makes another workload."""
        if not is_random(base):
            return False
        following = base.seed + 1
        self._workloads[following] = build_workload(load(base, [f"seed={following}"]))
        return not same_requests(self._workloads[base.seed], self._workloads[following])


def _unlike_hosts(runs: Mapping[str, Scenario]) -> list[str]:
    """Return a warning where the hosts that come with the policies' engines differ."""
    hosts = {label: run.resolve_host() for label, run in runs.items() if run.fleet is None}
    if len({(host.step_s, host.per_seq_s) for host in hosts.values()}) < 2:
        return []
    told = ", ".join(
        f"{label} {1e3 * host.step_s:g} ms" + (f" and {1e6 * host.per_seq_s:g} us a request" if host.per_seq_s else "")
        for label, host in hosts.items()
    )
    return [f"{WARNING}what the host adds to a step differs ({told}); `host: {{step_s: ...}}` gives all the same"]


def compare(
    scenario: Source,
    policies: Sequence[str | Mapping[str, Any]],
    *,
    seeds: int = 1,
    overrides: Sequence[str] = (),
    progress: ProgressMaker | None = None,
) -> Comparison:
    """Run several policies on one workload, for each of `seeds` seeds from the scenario's own upwards.

    A policy is a name, a name with settings of its own (`"chunked_prefill:max_num_batched_tokens=512"`), or a mapping
    of keys of `engine:`. A key of the engine that a policy does not take is left out for it, and the notes name it.
    """
    running = Compare(scenario, policies, seeds, overrides=overrides, progress=progress)
    for _ in running:
        pass
    return running.comparison()


def merge_notes(by_label: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Join the notes of several runs. A note of all runs comes once, another one with its label in front."""
    merged: dict[str, None] = {}
    for label, notes in by_label.items():
        for note in notes:
            shared = all(note in other for other in by_label.values())
            merged.setdefault(note if shared else f"{label}: {note}")
    return tuple(merged)


def _mean_summary(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = summaries[0]
    if len(summaries) == 1:
        return dict(first)
    found: dict[str, Any] = {}
    targets = entries(mean_outcomes(summaries))  # the SLO is held against the means
    for name, value in first.items():
        values = [summary[name] for summary in summaries]
        if name in targets:
            found[name] = targets[name]
        elif name == BOUND:
            found[name] = {
                key: float(np.mean([each[key] for each in values]))
                for key in value
                if all(key in each for each in values)
            }
        elif name == PROVENANCE:
            found[name] = {key: about for key, about in value.items() if key != "seed"}  # `seeds` has them all
        elif isinstance(value, bool):
            found[name] = any(values)
        elif all(other == value for other in values):
            found[name] = value
        elif _has_mean(name, first):
            mean = mean_interval(values).mean
            found[name] = None if math.isnan(mean) else mean
    return found


def _intervals(summaries: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    columns = {name: [summary[name] for summary in summaries] for name in _measured(summaries[0])}
    intervals = {name: metric_interval(name, values) for name, values in columns.items()}
    return {name: [found.low, found.high] for name, found in intervals.items() if found.n > 1}


def _differences(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    pairs = {
        name: metric_difference(name, [summary[name] for summary in ours], [summary[name] for summary in theirs])
        for name in _measured(ours[0])
    }
    return {name: [found.mean, found.low, found.high] for name, found in pairs.items() if found.n > 1}


def _measured(summary: Mapping[str, Any]) -> list[str]:
    """The keys of a summary that have a mean."""
    return [
        name
        for name, value in summary.items()
        if _has_mean(name, summary) and name != "schema_version" and not isinstance(value, bool)
    ]


def _has_mean(name: str, summary: Mapping[str, Any]) -> bool:
    """Return whether a key of a summary is a metric, of the table or of the user's own."""
    return name in METRICS or name in summary.get(OWN, {})
