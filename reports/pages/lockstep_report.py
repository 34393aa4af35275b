"""Predicted against measured step times: a scatter, the errors' distribution, how the busy time drifts, a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports.html import pieces as html
from reports.picture import (
    INK,
    MUTED,
    Mark,
    Painted,
    Picture,
    Series,
    draw,
    height,
    in_series,
    log_times,
    plain_numbers,
    tail_axis,
)
from reports.picture import some as places
from reports.plots.cdf import SCALE
from reports.tables.details import TableRows
from reports.units import MISSING, short
from simulator.lockstep.step_errors import REGIMES, ComparedStep, LockstepErrors, agreement, drift_curve, errors
from simulator.results.records import Ints

COLORS = dict(zip(REGIMES, ("#0072b2", "#d55e00", "#009e73", "#cc79a7"), strict=True))
MOST_MARKS = 800  # of a picture
MOST_POINTS = 4000  # of the scatter; of more steps, evenly spaced ones are drawn


@dataclass(frozen=True, slots=True)
class LockstepReport:
    """The content of the page. `device` is the fingerprint of the machine that ran the steps, `words` the verdict."""

    title: str
    steps: Sequence[ComparedStep]
    device: Mapping[str, str]
    words: Sequence[str]
    scenario_yaml: str = ""
    notes: Sequence[str] = ()


def write_lockstep(folder: Path, report: LockstepReport) -> Path:
    """Write plots/*.png, plots/*.svg and report.html into `folder`; returns the page's path.

    Raises InputError where the folder cannot be written, ValueError without a step.
    """
    found = agreement(report.steps)
    there = [step for step in report.steps if step.predicted_s == step.predicted_s and step.device_s == step.device_s]
    known = [step for step in there if not step.flag] or there
    pictures = [_scatter(known), _distribution(known, found), _drift(known)]
    sections = [
        html.section("Verdict", html.paragraphs(report.words, "verdict"), html.table(lockstep_rows(found))),
        html.section("Step by step", html.pair(pictures[:2]), html.figure(pictures[2])),
        html.section("Measured on", html.table(TableRows(("what", "is"), tuple(report.device.items()), 2))),
        html.section("Notes", html.paragraphs(list(report.notes), "notes")),
        html.section("Scenario", html.details("scenario.yaml", report.scenario_yaml)),
    ]
    what = f"{found.all.steps:,} steps, predicted and executed. Errors are (predicted − measured) / measured."
    return html.write_page(folder, report.title, what, sections, pictures)


def lockstep_rows(found: LockstepErrors) -> TableRows:
    """The errors of all steps and of each regime; `noise floor` is how far two executions of the same steps are
    apart, `canary` how much longer a fixed step of the regime takes than when the profile was measured."""
    head = ("steps", "count", "MAPE (%)", "median (%)", "P95 (%)", "drift (%)", "noise floor (%)", "canary (%)")
    body = []
    for name, each in [("all", found.all), *found.regimes.items()]:
        sizes = [f"{100 * value:.1f}" for value in (each.mape, each.median, each.p95)]
        noise = MISSING if each.floor is None else f"{100 * each.floor:.1f}"
        apart = MISSING if each.control is None else f"{100 * each.control:+.1f}"
        body.append((name, f"{each.steps:,}", *sizes, f"{100 * each.drift:+.1f}", noise, apart))
    return TableRows(head, tuple(body))


def _by_regime(steps: Sequence[ComparedStep]) -> dict[str, Ints]:
    """Indices of each regime's steps, those without any left out."""
    named = np.array([step.regime for step in steps])
    found = {name: np.flatnonzero(named == name) for name in REGIMES}
    return {name: index for name, index in found.items() if len(index)}


def _step_words(step: ComparedStep) -> str:
    """The work of a step, and its measured and predicted times, in words."""
    shape = step.shape
    parts = [f"{shape.decode_seqs:,} decodes" if shape.decode_seqs else ""]
    parts.append(f"{shape.prefill_tokens:,} prompt tokens" if shape.prefill_tokens else "")
    off = f", {100.0 * (step.predicted_s / step.device_s - 1.0):+.1f} %" if step.device_s > 0 else ""
    took = f"{short(1e3 * step.device_s)} ms measured, {short(1e3 * step.predicted_s)} ms predicted{off}"
    return f"{' and '.join(filter(None, parts)) or step.regime}: {took}"


def _legend(figure: Figure, names: Sequence[str]) -> None:
    marks = [Line2D([], [], color=COLORS[name], marker="o", linestyle="", label=name) for name in names]
    figure.legend(handles=marks, loc="outside lower center", ncols=4)


def _scatter(steps: Sequence[ComparedStep]) -> Picture:
    def paint(figure: Figure) -> Painted:
        axes = figure.subplots()
        every = max(1, -(-len(steps) // MOST_POINTS))
        device = np.array([step.device_s for step in steps]) * 1e3
        predicted = np.array([step.predicted_s for step in steps]) * 1e3
        both = np.concatenate((device, predicted))
        low, high = float(both[both > 0].min()) / 1.2, float(both.max()) * 1.2
        axes.plot([low, high], [low, high], color=INK, linewidth=1.0, zorder=2)
        groups = _by_regime(steps)
        marks: list[Mark] = []
        series: list[Series] = []
        for name, index in groups.items():
            some = index[::every]
            with in_series(axes, len(series)):
                axes.scatter(device[some], predicted[some], s=7, color=COLORS[name], alpha=0.55, linewidths=0, zorder=3)
            marks += [
                Mark(axes, device[at], predicted[at], _step_words(steps[at]), len(series))
                for at in some[:: max(1, -(-len(some) * len(groups) // MOST_MARKS))].tolist()
            ]
            series.append(Series(name, COLORS[name]))
        log_times(axes.xaxis, low, high)
        log_times(axes.yaxis, low, high)
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        axes.set_xlabel("measured")
        axes.set_ylabel("predicted")
        axes.set_title("Each step")
        _legend(figure, list(groups))
        said = "A step a point; on the line, prediction and measurement are equal, above it the prediction is too long."
        return Painted(said, marks, series)

    return draw("lockstep_scatter", (5.6, 4.6), paint)


def _distribution(steps: Sequence[ComparedStep], found: LockstepErrors) -> Picture:
    def paint(figure: Figure) -> Painted:
        axes = figure.subplots()
        size = np.abs(errors(steps)) * 100
        groups = _by_regime(steps)
        marks: list[Mark] = []
        series: list[Series] = []
        for name, index in groups.items():
            ordered = np.sort(size[index])
            share = np.arange(len(ordered)) / len(ordered) * 100  # below each: 100 % has no place among nines
            with in_series(axes, len(series)):
                axes.step(ordered, height(share), where="post", color=COLORS[name])
            for at in places(len(ordered), MOST_MARKS // 4):
                said = f"{short(share[at])} % of the steps are off by at most {short(ordered[at])} %"
                marks.append(Mark(axes, ordered[at], height(share)[at], f"{name}: {said}", len(series)))
            series.append(Series(name, COLORS[name]))
        top = 99.9 if len(steps) >= 1000 else 99.0
        axes.set_xlim(0, max(1.0, float(np.quantile(size, top / 100)) * 1.1))
        tail_axis(axes.yaxis, top)
        if found.floor is not None:
            axes.axvline(found.floor * 100, color=MUTED, linestyle=(0, (2.0, 2.0)), linewidth=1.1, zorder=6)
        plain_numbers(axes.xaxis)
        axes.set_xlabel("error of a step, either way (%)")
        axes.set_ylabel("share of steps (%)")
        axes.set_title("How large the errors are")
        _legend(figure, list(groups))
        floor = "" if found.floor is None else " Dotted: how far two replays of the same steps are apart on average."
        said = "Share of the steps whose error is at most so large: the further left, the better. " + SCALE + floor
        return Painted(said, marks, series)

    return draw("lockstep_errors", (5.6, 4.6), paint)


def _drift(steps: Sequence[ComparedStep]) -> Picture:
    def paint(figure: Figure) -> Painted:
        axes = figure.subplots()
        axes.axhline(0.0, color=INK, linewidth=1.0)
        curve = drift_curve(steps) * 100
        axes.plot(np.arange(1, len(curve) + 1), curve, color=COLORS["decode"])
        # The first few steps are noise: the picture is of where it settles.
        settled = np.abs(curve[len(curve) // 20 :])
        most = max(2.0, float(settled.max()) * 1.3)
        axes.set_ylim(-most, most)
        axes.set_xlim(1, max(2, len(curve)))
        plain_numbers(axes.xaxis)
        plain_numbers(axes.yaxis)
        axes.set_xlabel("steps")
        axes.set_ylabel("drift (%)")
        axes.set_title("Busy time, predicted over measured")
        said = "How far the sums of all steps so far are apart: errors that cancel out leave it at zero."
        told = [
            (at + 1, curve[at], f"after {at + 1:,} steps: {curve[at]:+.2f} %") for at in places(len(curve), MOST_MARKS)
        ]
        return Painted(said, [Mark(axes, *each) for each in told])

    return draw("lockstep_drift", (9.0, 3.0), paint)
