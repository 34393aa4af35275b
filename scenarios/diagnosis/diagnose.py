"""Diagnose a run: its findings, the worst first."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scenarios.diagnosis.evidence import Evidence
from scenarios.diagnosis.finding import Claim, Finding, Findings, Rule
from scenarios.diagnosis.rules import RULES
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
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
