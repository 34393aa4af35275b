"""Diagnose a run: its findings, the worst first, and their remedies tried on the same requests."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scenarios.assembly.engine_policy import with_policy
from scenarios.assembly.workloads import build_workload
from scenarios.diagnosis.evidence import Evidence
from scenarios.diagnosis.finding import Claim, Finding, Findings, Remedy, Rule, Value
from scenarios.diagnosis.late import Late, late_requests
from scenarios.diagnosis.rules import RULES
from scenarios.runs.result import Result
from scenarios.runs.runner import ProgressMaker, run_on
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.metrics.window import measured_window
from simulator.results.records import Floats, Records
from simulator.workload import Workload

EXPLAINS = 0.1
"""Share of the late requests that a cause must explain to be told: a tenth of the trouble."""
WASTES = 0.1
"""Share of the GPUs' time or tokens that a cause must lose to be told where it made nobody late."""


def diagnose(
    scenario: Scenario,
    records: Records,
    summary: Mapping[str, Any],
    workload: Workload | None = None,
    rules: Sequence[Rule] = RULES,
) -> Findings:
    """Find the causes of a run's late requests. Nothing is simulated; all work is on columns.

    Each rule says how many seconds of every late request's lateness its cause accounts for, and takes them from what
    the rules before it left. A cause explains a request by the share of its lateness that it took. If the SLO is kept,
    only causes that lose the GPUs' work are found. `workload` spares building it again, for rules about prompts.
    """
    try:
        return _diagnose(Evidence(scenario, records, summary, workload), rules)
    except InputError as error:
        return Findings(notes=(f"no diagnosis: {error.message}",))


def _diagnose(evidence: Evidence, rules: Sequence[Rule]) -> Findings:
    late = evidence.late
    left = late.excess_s.copy()
    found = []
    if len(evidence.records.rows.repeat):
        for rule in rules:
            claim = rule.find(evidence, left) if late.broken or rule in _ALWAYS else None
            if claim is None:
                continue
            taken = np.minimum(left, _seconds(claim, evidence)) if late.broken else evidence.nothing()
            left = left - taken
            finding = _weighed(rule, claim, taken, evidence)
            if finding is not None:
                found.append(finding)
    found.sort(key=lambda each: (not each.late, -each.severity))
    unexplained = float((left / late.excess_s).mean()) if late.broken and len(left) else 0.0
    return Findings(tuple(found), late.counted, len(late.row), late.broken, late.by_slo, unexplained)


_LOSING = ("padding", "prefix-cache", "preemption-storm", "whole-prompts", "load-bound")
_ALWAYS = tuple(rule for rule in RULES if rule.name in _LOSING)
"""Rules about causes that lose the GPUs' work, whether or not a request is late."""


def _seconds(claim: Claim, evidence: Evidence) -> Floats:
    """Return the seconds of each late request that the claim explains and that count against its limit."""
    late = evidence.late
    waited = 0.0 if claim.waited_s is None else np.where(late.waits, claim.waited_s, 0.0)
    slowed = 0.0 if claim.slowed_s is None else np.where(late.paces, claim.slowed_s, 0.0)
    return np.asarray(np.maximum(waited + slowed + evidence.nothing(), 0.0))


def _weighed(rule: Rule, claim: Claim, taken: Floats, evidence: Evidence) -> Finding | None:
    late = evidence.late
    share = taken / late.excess_s if len(taken) else taken
    explains = float(share.mean()) if late.broken and len(share) else 0.0
    if explains >= EXPLAINS:
        mostly = share >= 0.5 if (share >= 0.5).any() else share > 0
        span = claim.span_s or (float(late.from_s[mostly].min()), float(late.last_s[mostly].max()))
        return Finding(rule, claim, explains * late.share, explains, *span)
    if claim.lost >= WASTES and not late.broken:
        window = evidence.window
        return Finding(rule, claim, claim.lost, 0.0, window.start_s, window.end_s)
    return None


# Try remedies: run the same requests with some keys of the scenario changed, and compare.

MOST = 3  # remedies of a finding that are tried
GAIN = 0.1
"""The share of the late requests that a remedy must save to be called a gain: the least that a finding explains."""
CHEAPER = 0.05
"""The share of cost, busy time or computed tokens that a remedy must save if no request is late: more than step costs
err."""
WORSE = 0.05  # relative change of a latency or a throughput that is told as a price

LOOKED_AT = (
    "slo_attainment", "p99_ttft_ms", "p99_tpot_ms", "p99_e2el_ms", "output_throughput", "preemptions",
    "prefix_cache_hit_rate", "padding_fraction", "gpu_hours", "usd_per_million_output_tokens",
)  # fmt: skip
"""Keys of summary.json that a what-if run is compared by."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A remedy and its run. `error` says why it could not be tried; then there is nothing else.

    `metrics` are values of summary.json before and after.
    """

    remedy: Remedy
    gained: bool = False
    solved: bool = False
    late_before: int = 0
    late_after: int = 0
    requests: int = 0
    metrics: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    busy_s: tuple[float, float] = (0.0, 0.0)
    left_out: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A run, its findings, and the what-if runs of each, in the order of the findings."""

    result: Result
    findings: Findings
    tried: Sequence[Sequence[WhatIf]]


def explain(scenario: Scenario, *, what_if: bool = True, progress: ProgressMaker | None = None) -> Explanation:
    """Run a scenario, diagnose it, and try the remedies on the same requests.

    A finding's remedies are tried in their order, at most three, until one brings the run within its SLO. Raises
    InputError as `scenarios.run` does.
    """
    workload = build_workload(scenario)
    result = run_on(scenario, workload, progress=progress)
    found = diagnose(scenario, result.records, result.summary, workload)
    if not what_if:
        return Explanation(result, found, [() for _ in found.found])
    known: dict[str, WhatIf] = {}

    def of(finding: Finding) -> Iterator[WhatIf]:
        for remedy in list(finding.claim.remedies)[:MOST]:
            key = repr(sorted(remedy.change.items()))
            if key not in known:
                known[key] = _try(remedy, result, workload, progress)
            yield replace(known[key], remedy=remedy)
            if known[key].solved:
                return

    return Explanation(result, found, [tuple(of(finding)) for finding in found.found])


def changed(scenario: Scenario, change: Mapping[str, Value]) -> tuple[Scenario, tuple[str, ...]]:
    """Change dotted keys of a scenario; also return the keys of its engine that another policy does not take.

    In a fleet, keys of `engine` and `hardware` are changed in every group, and `replicas` is a factor.
    """
    plain = dict(change)
    left_out: tuple[str, ...] = ()
    policy = plain.pop("engine.policy", None)
    if policy is not None and scenario.fleet is None:
        asked = {key.removeprefix("engine."): plain.pop(key) for key in list(plain) if key.startswith("engine.")}
        scenario, left_out = with_policy(scenario, str(policy), asked)
    elif policy is not None:
        raise InputError("the groups of a fleet have policies of their own", hint="change them one by one")
    data = scenario.model_dump(exclude_unset=True)
    for key, value in plain.items():
        section, _, name = key.partition(".")
        if scenario.fleet is not None and section in ("engine", "hardware", "replicas"):
            for group in data["fleet"]:
                if section == "replicas":
                    group[section] = int(group.get(section, 1) * float(value or 1))
                else:
                    group[section] = {**(group.get(section) or {}), name: value}
        elif section == "router" and name:
            router = data.get("router", "round_robin")
            data["router"] = {**({"kind": router} if isinstance(router, str) else router), name: value}
        elif name:
            data[section] = _with(data.get(section), name, value)
        else:
            data[section] = value
    return load(data, check_files=False), left_out


def _with(section: Mapping[str, Any] | None, name: str, value: Value) -> dict[str, Any]:
    """Change a key, dotted where it lies deeper; what is around it is made where it is not there."""
    found = dict(section or {})
    head, _, rest = name.partition(".")
    found[head] = _with(found.get(head), rest, value) if rest else value
    return found


def _try(remedy: Remedy, before: Result, workload: Any, progress: ProgressMaker | None) -> WhatIf:
    try:
        scenario, left_out = changed(before.scenario, remedy.change)
        after = run_on(scenario, workload, progress=progress)
    except InputError as error:
        return WhatIf(remedy, error=error.message)
    one = _late(before, None)
    two = _late(after, one.served_s)
    rows = before.records.rows, after.records.rows
    busy_s = float((rows[0].end_s - rows[0].start_s).sum()), float((rows[1].end_s - rows[1].start_s).sum())
    metrics = {key: (before.summary.get(key), after.summary.get(key)) for key in LOOKED_AT}
    if one.broken:
        gained = len(two.row) <= (1 - GAIN) * len(one.row)
        solved = gained and not two.broken
    else:
        price = metrics["usd_per_million_output_tokens"]
        tokens = float((rows[0].repeat * rows[0].tokens).sum()), float((rows[1].repeat * rows[1].tokens).sum())
        cheaper = any(_less(*pair) for pair in (busy_s, tokens, metrics["gpu_hours"], price))
        dearer = None not in price and float(price[1] or 0) > (1 + CHEAPER) * float(price[0] or 0)
        gained = solved = cheaper and not dearer and not two.broken
    return WhatIf(remedy, gained, solved, len(one.row), len(two.row), one.counted, metrics, busy_s, left_out)


def _less(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and before > 0 and after <= (1 - CHEAPER) * before


def _late(result: Result, served_s: float | None) -> Late:
    window = measured_window(result.records, **result.scenario.measure.window(result.records))
    return late_requests(result.records, result.scenario.resolve_slo(), result.summary, window, served_s)
