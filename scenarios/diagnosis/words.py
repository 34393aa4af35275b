"""Write findings for people: a line or two for a run, a whole explanation, rows for a page."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scenarios.diagnosis.diagnose import WORSE, Explanation, WhatIf
from scenarios.diagnosis.finding import Finding, Findings, Remedy, Value, count, moment, rounded
from scenarios.show import FindingsText, Shown
from simulator.metrics.metric import percent
from simulator.metrics.summary import METRICS


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
