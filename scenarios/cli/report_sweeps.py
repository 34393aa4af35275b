"""A sweep in the form that `reports` takes: it knows no scenarios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reports.sweep.points import SweepAxis, SweepPoint, SweepResult
    from reports.tables.terminal import Terminal
    from scenarios.studies.run_sweep import Swept
    from scenarios.studies.study import Study
    from scenarios.studies.study_axes import Setting
    from scenarios.studies.sweep_table import Row

_MOST_IN_TERMINAL = 10
_UNITS = {"rate": "requests/s"}  # of keys whose name does not say it


def write_sweep_report(target: Path, swept: Swept) -> SweepResult:
    """Write plots and report.html into the folder of a sweep, whole or not at all. Raises InputError."""
    from reports.sweep.sweep_report import write_sweep_report as write_report
    from scenarios.runs.storage.run_folder import report_files
    from scenarios.runs.storage.staging import staging

    result = sweep_result(swept)
    with staging(target, replace=report_files(target)) as folder:
        write_report(folder, result)
    return result


def best(result: SweepResult, terminal: Terminal) -> str:
    """Return the best points as a table, the basis of it, and the Pareto fronts with what keeps the SLO."""
    from reports.sweep.best import best_points
    from reports.sweep.front import front_table
    from reports.sweep.pareto import trades
    from reports.sweep.sweep_report import best_table, best_words
    from reports.tables.verdict_table import wrapped

    found = best_points(result)
    rows = best_table(found, named=0)
    words = "\n".join(wrapped(text, terminal.prose_width) for text in best_words(result, found))
    table = "" if rows is None else f"{rows.text(terminal.width)}\n\n"
    fronts = [
        f"{trade.title}: the Pareto front\n{front_table(result, trade, _MOST_IN_TERMINAL).text(terminal.width)}\n\n"
        for trade in trades(result)
    ]
    return f"\n{table}{words}\n\n{''.join(fronts)}"


def sweep_result(swept: Swept) -> SweepResult:
    """The points of a sweep on their axes."""
    from reports.sweep.points import SweepResult
    from scenarios.runs.labels import shortest_names

    study = swept.study
    groups = [axis.keys for axis in study.axes] or [(key,) for key in study.keys]  # keys that move together
    titles = shortest_names({key for keys in groups for key in keys})
    axes = [_axis(keys, study.settings, titles) for keys in groups]
    places = {axis.keys: {text: place for place, text in enumerate(axis.labels)} for axis in axes}
    count = len(study.seeds)
    points = []
    for index, setting in enumerate(study.settings):
        at = tuple(places[axis.keys][_text(axis.keys, setting)] for axis in axes)
        label = ", ".join(f"{titles[key]} {_value(key, value)}" for key, value in setting.items())
        points.append(_point(label, at, swept.rows[index * count : (index + 1) * count]))
    return SweepResult(study.name, tuple(axes), tuple(points), count, study.dump(), _limits(study))


def _axis(keys: tuple[str, ...], settings: Sequence[Setting], titles: Mapping[str, str]) -> SweepAxis:
    from reports.sweep.points import SweepAxis

    found = {_text(keys, setting): setting.get(keys[0]) for setting in settings}
    numbers = [value for value in found.values() if isinstance(value, (int, float)) and not isinstance(value, bool)]
    are_numbers = len(keys) == 1 and len(numbers) == len(found)
    unit = _UNITS.get(keys[0].rpartition(".")[2], "") if len(keys) == 1 else ""
    title = ", ".join(titles[key] for key in keys) + (f" ({unit})" if unit else "")
    return SweepAxis(keys, title, tuple(found), tuple(map(float, numbers)) if are_numbers else ())


def _text(keys: tuple[str, ...], setting: Setting) -> str:
    return ", ".join(_value(key, setting[key]) if key in setting else "-" for key in keys)


def _value(key: str, value: object) -> str:
    from scenarios.assembly.engine_policy import policy_label

    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    return policy_label(value) if key == "engine.policy" and isinstance(value, str) else str(value)


def _point(label: str, at: tuple[int, ...], rows: Sequence[Row]) -> SweepPoint:
    from reports.sweep.points import SweepPoint

    error = next((outcome.error for _, _, outcome in rows if outcome.error), "")
    return SweepPoint(label, at, () if error else tuple(outcome.summary for _, _, outcome in rows), error)


def _limits(study: Study) -> dict[str, float]:
    """Return the SLO's limits by key of summary.json; none where the SLO itself varies."""
    slo = study.base.resolve_slo()
    if slo is None or any(key.partition(".")[0] == "slo" for key in study.keys):
        return {}
    return {**{f"p99_{name}_ms": limit for name, limit in slo.per_request().items()}, **slo.targets}
