"""Diagnose a run: findings, the worst first, remedies tried on the same requests, and both written for people."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scenarios.assembly.engines import with_policy
from scenarios.assembly.workloads import build_workload
from scenarios.diagnosis.evidence import Claim, Evidence, Finding, Findings, Remedy, Rule, Value, count, moment, rounded
from scenarios.diagnosis.late import Late, late_requests
from scenarios.diagnosis.rules import RULES
from scenarios.runs.result import Result
from scenarios.runs.runner import ProgressMaker, run_on
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.show import FindingsText, Shown
from simulator.errors import InputError
from simulator.metrics.metric import percent
from simulator.metrics.summary import METRICS
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


# Write findings for people: a line or two for a run, a whole explanation, rows for a page.


def headline(found: Findings) -> str:
    """Say the state of the run in a sentence."""
    if found.notes:
        return f"{found.notes[0]}."
    waited = "waited longer than a request is served on average"
    are_late, is_late, late = ("are late", "is late", "late") if found.by_slo else (waited, waited, "that " + waited)
    if found.broken:
        share = percent(found.late / found.requests if found.requests else 0.0)
        known = f"the findings explain {percent(1 - found.unexplained)} of them"
        rest = known if any(each.late for each in found.found) else "no known cause explains them"
        return f"{count(found.late)} of {count(found.requests)} requests {are_late} ({share}); {rest}."
    few = f"{count(found.late)} of {count(found.requests)} requests {late}" if found.late else f"no request {is_late}"
    good = "the SLO is kept" if found.by_slo else "requests hardly wait"
    return f"{good} ({few}){'' if found.found else '; the diagnosis found nothing to improve'}."


def weight(each: Finding) -> str:
    """Say the share that the finding explains, or that it lost."""
    if each.late:
        return f"explains {percent(each.explains)} of the late requests"
    return f"costs {percent(each.severity)} of the {each.claim.lost_of}"


def when(each: Finding) -> str:
    """Return its time: 32 s to 217 s."""
    return f"{moment(each.from_s)} to {moment(each.to_s)}"


def short(found: Findings) -> list[str]:
    """Write one or two lines: the worst finding, and the names of the others; or that there is none."""
    if not found.found:
        return [capital(headline(found))]
    first = found.found[0]
    lines = [f"{capital(first.rule.title)} ({weight(first)}, {when(first)}): {first.claim.words}."]
    if others := [f"{each.rule.title} ({percent(each.explains or each.severity)})" for each in found.found[1:]]:
        lines.append(f"Also: {'; '.join(others)}.")
    return lines


def findings_text(found: Findings) -> FindingsText:
    """Return the findings as a report and a terminal show them."""
    rows = tuple(
        (
            capital(each.rule.title), weight(each), when(each), f"{capital(each.claim.words)}.",
            "".join(f"{change_text(first.change)}: {first.why}" for first in each.claim.remedies[:1]),
        )
        for each in found.found
    )  # fmt: skip
    return FindingsText(capital(headline(found)), tuple(short(found)), rows)


def capital(text: str) -> str:
    """Return the text with a capital letter."""
    return text[:1].upper() + text[1:]


def change_text(change: Mapping[str, Value]) -> str:
    """Write a change as --set takes it: engine.policy=chunked_prefill engine.max_num_seqs=256."""
    return " ".join(f"{key}={_yaml(value)}" for key, value in change.items())


def _yaml(value: Value) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def outcome(tried: WhatIf) -> str:
    """Say a remedy's gain and cost in a sentence."""
    if tried.error is not None:
        return f"could not be tried: {tried.error}"
    before, after = (percent(n / max(tried.requests, 1)) for n in (tried.late_before, tried.late_after))
    late = f"late requests {count(tried.late_before)} -> {count(tried.late_after)} ({before} -> {after})"
    parts = [late]
    change = tried.busy_s[1] / tried.busy_s[0] - 1 if tried.busy_s[0] else 0.0
    if abs(change) > WORSE:
        parts.append(f"GPU busy {percent(abs(change))} {'more' if change > 0 else 'less'}")
    for key, (old, new) in tried.metrics.items():
        if key in _SHOWN and None not in (old, new) and (abs(new / old - 1) > WORSE if old else new):
            parts.append(f"{METRICS[key].title} {count(old)} -> {count(new)} {METRICS[key].unit}".strip())
    verdict = "no gain" if not tried.gained else "helps" if tried.solved else "helps, and is not enough"
    return f"{verdict}: {'; '.join(parts)}"


_SHOWN = ("p99_ttft_ms", "p99_tpot_ms", "preemptions", "output_throughput", "usd_per_million_output_tokens")


def data(explained: Explanation) -> dict[str, Any]:
    """Return the content of `--json` and of explain.json."""
    found, result = explained.findings, explained.result
    return {
        "scenario": result.scenario.name,
        "policy": result.label,
        "requests": found.requests,
        "late": found.late,
        "slo_kept": not found.broken,
        "healthy": found.healthy,
        "unexplained": rounded(found.unexplained),
        "words": capital(headline(found)),
        "findings": [_finding(each, tried) for each, tried in zip(found.found, explained.tried, strict=True)],
    }


def _finding(each: Finding, tried: Sequence[WhatIf]) -> dict[str, Any]:
    numbers = {
        name: rounded(value) if isinstance(value, float) else value for name, value in each.claim.numbers.items()
    }
    by_change = {id(trial.remedy): trial for trial in tried}
    return {
        "finding": each.rule.name,
        "title": each.rule.title,
        "severity": rounded(each.severity),
        "explains": rounded(each.explains),
        "from_s": rounded(each.from_s),
        "to_s": rounded(each.to_s),
        "words": f"{capital(each.claim.words)}.",
        "evidence": numbers,
        "remedies": [_remedy(remedy, by_change.get(id(remedy))) for remedy in each.claim.remedies],
    }


def _remedy(remedy: Remedy, tried: WhatIf | None) -> dict[str, Any]:
    head: dict[str, Any] = {"set": dict(remedy.change), "why": remedy.why}
    if tried is None:
        return {**head, "tried": False}
    if tried.error is not None:
        return {**head, "tried": False, "error": tried.error}
    return {
        **head,
        "tried": True,
        "gained": tried.gained,
        "solved": tried.solved,
        "late_before": tried.late_before,
        "late_after": tried.late_after,
        "busy_s": [rounded(value) for value in tried.busy_s],
        "metrics": {key: list(pair) for key, pair in tried.metrics.items()},
        "left_out": list(tried.left_out),
        "words": outcome(tried),
    }


def with_findings(shown: Shown, explained: Explanation) -> Shown:
    """Return the run with its findings for a page, each with the outcomes of its remedies."""
    plain = findings_text(explained.findings)
    rows = []
    for row, tried in zip(plain.rows, explained.tried, strict=True):
        remedies = [f"{change_text(trial.remedy.change)} ({trial.remedy.why}) - {outcome(trial)}" for trial in tried]
        rows.append((*row[:4], "; then ".join(remedies) if remedies else row[4]))
    return replace(shown, findings=FindingsText(plain.state, plain.lines, tuple(rows)))
