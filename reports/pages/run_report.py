"""The report of runs: plots/*.png, plots/*.svg and a report.html that needs no other file."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

from markupsafe import Markup

from reports.html import pieces as html
from reports.html.pieces import page_data
from reports.picture import DrawnRuns, Picture, Plot, ReportRun, Style, styles
from reports.plots.cdf import CdfCurve, all_curves, quantities
from reports.tables.details import (
    LEGEND,
    METRICS_TABLE,
    OTHER_TOOLS,
    OVER_SEEDS,
    WITHIN_RUNS,
    class_rows,
    class_summaries,
    class_words,
    cost_tables,
    difference_table,
    differences,
    is_of_steps,
    provenance_words,
    rejection_table,
    replica_table,
    starvation_table,
)
from reports.units import fitted, number, one_line
from reports.verdict.sentences import verdict_words
from reports.verdict.shown_metrics import Summaries, facts, joined, seeds
from simulator import core_name
from simulator.parameters import constants_in

HEADLINE = 2  # sentences above the tables; the reasons stand below them
_MOST_OF_A_LABEL = 90  # a page has room for more than a terminal


def write_report(folder: Path, runs: Sequence[ReportRun], notes: Sequence[str] = (), *, paired: bool = True) -> Path:
    """Write the pictures and the page into `folder`; returns the path of report.html.

    `notes` name what was skipped, clipped or ignored. `paired`: the runs saw the same requests and have the same SLO;
    others are not ranked. Raises InputError where the folder cannot be written, ValueError without a run.
    """
    if not runs:
        raise ValueError("a report needs at least one run")
    runs = _distinct(runs)
    style = styles([(run.label, run.policy) for run in runs])
    return _write(folder, runs, style, draw_all(runs, style), notes, paired)


def plots(runs: Sequence[ReportRun], style: Mapping[str, Style]) -> list[Plot]:
    """Every plot of these runs."""
    drawn = DrawnRuns(runs, style)
    found = [plot for of_file in constants_in("reports.plots", "plots").values() for plot in of_file(drawn)]
    return sorted(found, key=lambda plot: plot.place)


def draw_all(runs: Sequence[ReportRun], style: dict[str, Style]) -> dict[str, Picture]:
    """Every picture of the report by its name, in the order of the page."""
    return {plot.name: plot.paint() for plot in plots(runs, style)}


def _distinct(runs: Sequence[ReportRun]) -> list[ReportRun]:
    """The runs with labels of their own, in one line: a second `a` becomes `a (2)`."""
    taken: set[str] = set()
    named = []
    for run in runs:
        label = base = fitted(run.label, _MOST_OF_A_LABEL) or "run"
        count = 1
        while label in taken:
            count += 1
            label = f"{base} ({count})"
        taken.add(label)
        named.append(replace(run, label=label))
    return named


def _write(
    folder: Path,
    runs: Sequence[ReportRun],
    style: dict[str, Style],
    pictures: dict[str, Picture],
    notes: Sequence[str],
    paired: bool,
) -> Path:
    summaries: Summaries = {run.label: run.summaries for run in runs}
    labelled = [(run.label, run.records) for run in runs]
    first = runs[0]
    slo = first.slo if paired else None
    by_class = class_summaries(labelled, slo, warmup_s=first.warmup_s, cooldown_s=first.cooldown_s)
    lines = all_curves(DrawnRuns(runs, style))
    of_first = " (first seed)" if seeds(summaries) > 1 else ""
    known = {run.label: facts(run.records, run.slo, warmup_s=run.warmup_s, cooldown_s=run.cooldown_s) for run in runs}
    words = verdict_words(summaries, slo, known, paired=paired)
    if by_class is not None and (more := class_words(by_class, of_first)):
        words.append(more)
    fold = partial(html.section, folded=True)
    sections = [
        html.section(
            "Verdict",
            html.paragraphs(words[:HEADLINE], "verdict"),
            html.verdict_tables(summaries, style, known, paired=paired),
            html.paragraphs(words[HEADLINE:], "reasons"),
        ),
        html.section("Diagnosis" + of_first, *_diagnosis(runs)),
        _controls(runs, style, lines),
        *_plots(runs, style, pictures),
        *_differences(runs, summaries, paired),
        fold("By class" + of_first, html.table(None if by_class is None else class_rows(by_class))),
        fold(
            "Replicas" + of_first,
            html.table(replica_table(labelled, warmup_s=first.warmup_s, cooldown_s=first.cooldown_s)),
        ),
        fold("Longest waits" + of_first, html.table(starvation_table(labelled))),
        fold("Rejected requests", html.table(rejection_table(labelled))),
        html.section("Notes", html.paragraphs([note for note in notes if not is_of_steps(note)], "notes")),
        fold("What a step costs", *_costs(summaries, notes)),
        fold("Scenario", *_scenarios(runs)),
        fold(
            "What the numbers mean",
            html.text(LEGEND),
            html.table(METRICS_TABLE, prose=True),
            html.table(OTHER_TOOLS, prose=True, title="Other tools' names"),
        ),
    ]
    data = page_data(labelled, style, lines)
    return html.write_page(folder, _title(runs), _subtitle(runs), sections, pictures.values(), data)


def _diagnosis(runs: Sequence[ReportRun]) -> list[Markup]:
    """The state and the findings of each run; nothing where there was no diagnosis.

    A card for runs of which the same is said.
    """
    told: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        if run.state:
            told.setdefault((run.state, *_findings(run)), []).append(run.label)
    cards = []
    for (state, *findings), labels in told.items():
        first = f"{joined(labels)}: {state}" if len(runs) > 1 else state
        cards.append(html.paragraphs([first, *findings], "diagnosis"))
    return cards


def _findings(run: ReportRun) -> list[str]:
    """The findings of a run in their order, a sentence or two each."""
    words = []
    for place, (title, weight, when, evidence, remedy) in enumerate(run.findings, 1):
        first = f" First to try: {remedy}." if remedy else ""
        words.append(f"{place}. {title} ({weight}, {when}). {evidence}{first}")
    return words


def _differences(runs: Sequence[ReportRun], summaries: Summaries, paired: bool) -> list[Markup]:
    """The differences of the runs to the first; nothing for a run alone."""
    if not paired or len(runs) < 2:
        return []
    first = runs[0]
    cuts = {"warmup_s": first.warmup_s, "cooldown_s": first.cooldown_s}
    rows = difference_table(differences(summaries, {run.label: run.records for run in runs}, **cuts))
    basis = OVER_SEEDS if seeds(summaries) > 1 else WITHIN_RUNS
    return [
        html.section(
            f"Differences to {first.label}", html.table(rows), *([html.text(basis)] if rows else []), folded=True
        )
    ]


def _plots(runs: Sequence[ReportRun], style: dict[str, Style], pictures: dict[str, Picture]) -> list[Markup]:
    """The sections of plots. Where a script can draw, an element to zoom into takes the place of two pictures."""
    colors = [style[run.label].color for run in runs]
    zooms = {
        "timeline": html.explorer("timeline", html.title_of("timeline")),
        "gantt": html.explorer("slots", html.title_of("gantt"), steps=True, colors=list(dict.fromkeys(colors))),
    }
    found: list[Markup] = []
    for title, group in groupby(plots(runs, style), key=lambda plot: plot.section):
        of_section = list(group)
        small = html.pair([pictures[plot.name] for plot in of_section if plot.small])
        large = [html.figure(pictures[p.name], zooms.get(p.name, Markup())) for p in of_section if not p.small]
        found.append(html.section(title, small, *large, folded=bool(found)))  # the first alone is open
    return found


def _controls(runs: Sequence[ReportRun], style: dict[str, Style], lines: Sequence[dict[str, CdfCurve]]) -> Markup:
    """The latencies of all runs at a percentile, which readers choose, as they do the runs."""
    of_runs = [{"label": run.label, "color": style[run.label].color} for run in runs]
    titles = {each.name: each.title.partition("(")[2].removesuffix(")") for each in quantities(None)}
    return html.section("Latency percentiles", html.latencies(of_runs, titles, lines))


def _title(runs: Sequence[ReportRun]) -> str:
    found = (re.search(r"^name:[ \t]*(\S.*)$", run.scenario_yaml, flags=re.MULTILINE) for run in runs)
    names = list(dict.fromkeys(filter(None, (one_line(each[1].strip("'\""), 60) for each in found if each))))
    what = joined([*(run.label for run in runs[:6]), *([f"{len(runs) - 6} more"] if len(runs) > 6 else [])])
    return f"{names[0]}: {what}" if len(names) == 1 else what


def _subtitle(runs: Sequence[ReportRun]) -> str:
    requests = {len(run.records.requests.row) for run in runs}
    count = seeds({run.label: run.summaries for run in runs})
    parts = [f"{number(requests.pop())} requests" if len(requests) == 1 else "different workloads"]
    parts[0] += " with the first seed" if count > 1 else ""
    parts.append(f"{count} seeds; pictures show the first" if count > 1 else "one seed")
    replicas = {run.records.replicas for run in runs}
    if max(replicas) > 1:
        parts.append("slots are those of the first replica")
    basis = provenance_words({run.label: run.summaries for run in runs})
    return f"{'; '.join(parts)}. A simulation by batchlab ({core_name()})" + (f": {basis}." if basis else ".")


def _costs(summaries: Summaries, notes: Sequence[str]) -> list[Markup]:
    """The source of each part of a step's time, and what depends on it; nothing where the runs do not say."""
    told = html.paragraphs([note for note in notes if is_of_steps(note)], "notes")
    return [told, *(html.table(rows, prose=True, title=title) for title, rows in cost_tables(summaries))]


def _scenarios(runs: Sequence[ReportRun]) -> list[Markup]:
    """The first run's scenario in full, and the differences of the others from it."""
    first = runs[0]
    if not first.scenario_yaml:
        return []
    parts = [html.details(f"Resolved scenario of {first.label}", first.scenario_yaml)]
    base = first.scenario_yaml.splitlines()
    for run in runs[1:]:
        lines = difflib.unified_diff(base, run.scenario_yaml.splitlines(), first.label, run.label, n=0, lineterm="")
        parts.append(html.details(f"What differs for {run.label}", "\n".join(lines)))
    return [part for part in parts if part]
