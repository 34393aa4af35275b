"""Findings as people read them: a line for a terminal, sentences for a page."""

from __future__ import annotations

from scenarios.diagnosis.finding import Finding, Findings
from scenarios.diagnosis.say import count, moment, percent

OK = "nothing found: "


def headline(found: Findings) -> str:
    """The state of the run in a sentence."""
    if found.notes:
        return found.notes[0]
    late = "late" if found.by_slo else "waiting longer than they are served"
    share = found.late / found.requests if found.requests else 0.0
    if not found.broken:
        kept = "the SLO is kept" if found.by_slo else "requests hardly wait"
        return f"{kept}, {count(found.late)} of {count(found.requests)} requests {late} ({percent(share)})"
    known = percent(1 - found.unexplained)
    rest = f"; the findings explain {known} of it" if found.found else "; no known cause explains it"
    return f"{count(found.late)} of {count(found.requests)} requests {late} ({percent(share)}){rest}"


def short(found: Findings) -> list[str]:
    """One or two lines: the worst finding, and the names of the others."""
    if found.notes:
        return [found.notes[0]]
    if not found.found:
        return [f"{OK}{headline(found)}." if not found.broken else f"{headline(found)}."]
    first = found.found[0]
    others = [each.rule.title for each in found.found[1:]]
    lines = [f"{sentence(first)}."]
    if others:
        lines.append(f"Also: {'; '.join(others)}.")
    return lines


def sentence(each: Finding) -> str:
    """The finding and its weight: what it explains, or what it lost; and when."""
    when = f"{moment(each.from_s)} to {moment(each.to_s)}"
    weight = f"explains {percent(each.explains)} of the late requests" if each.late else f"loses {percent(each.severity)} of the GPU time"
    return f"{each.claim.words} ({weight}, {when})"
