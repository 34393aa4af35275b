"""How far scenarios of measured runs are off: by engine, and by cell (engine, model, GPU and precision)."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from docs.writers.accuracy.recipes import recipe_of
from docs.writers.accuracy.served import WAVES, contradiction_of, scenario_of
from docs.writers.accuracy.served_row import Row
from scenarios.runs.runner import run
from simulator.errors import InputError
from simulator.metrics.latency import finished, tpot_s, ttft_s
from simulator.metrics.summary import PREDICTION

FIGURES = Path(__file__).with_name("figures.json")
"""The figures last committed."""
KIND = "layers of a kind that is not modelled"
POINTS, SHARE = 0.02, 0.10
"""A cell is worse if its error grew by more than so many points and by more than this share of what it was."""

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Scored:
    """A row with the errors of TPOT and TTFT (signed fractions), or why it has none."""

    row: Row
    tpot: float = math.nan
    ttft: float = math.nan
    refused: str = ""
    contradiction: str = ""
    e2e: float = math.nan
    basis: str = ""
    batch: float = math.nan


@dataclass(frozen=True, slots=True)
class Served:
    """The means of a simulated run, over all requests as clients take them, and how its prices were come by."""

    tpot_ms: float
    ttft_ms: float
    basis: str
    batch: float


def score(row: Row, cost: Mapping[str, Any] | None = None) -> Scored:
    """Simulate a row, and compare the means of TPOT and TTFT over all requests."""
    if contradiction := contradiction_of(row):
        return Scored(row, contradiction=contradiction)
    scenario = scenario_of(row)
    if scenario is None:
        return Scored(row, refused=KIND)
    if cost is not None:
        scenario["cost"] = dict(cost)
    try:
        found = _serve(json.dumps(scenario), row.concurrency, each_sends(row))
    except InputError as error:
        return Scored(row, refused=error.message)
    except ArithmeticError as error:
        return Scored(row, refused=f"{type(error).__name__}: {error}")
    if found is None:
        return Scored(row, refused="no request was served")
    steps = (0.9 if row.is_inferencex else 1.0) * row.osl - 1.0
    return Scored(
        row,
        found.tpot_ms / row.tpot_ms - 1.0,
        found.ttft_ms / row.ttft_ms - 1.0,
        e2e=(found.ttft_ms + steps * found.tpot_ms) / (row.ttft_ms + steps * row.tpot_ms) - 1.0,
        basis=found.basis,
        batch=found.batch,
    )


def each_sends(row: Row) -> float:
    """The requests of a user of the client, in the mean."""
    recipe = recipe_of(row)
    return min(recipe.requests, recipe.most_requests / row.concurrency)


@cache
def _serve(scenario: str, users: int, each: float) -> Served | None:
    """Run a scenario, once for all rows that have it; None where no request was served."""
    result = run(json.loads(scenario))
    records = result.records
    known = finished(records)
    if not known.any():
        return None
    tpot_ms, ttft_ms = (mean_ms(of(records), known, users, each) for of in (tpot_s, ttft_s))
    return Served(tpot_ms, ttft_ms, result.summary[PREDICTION]["basis"], float(result.summary["mean_batch_size"]))


def mean_ms(seconds: Any, known: Any, users: int, each: float = WAVES) -> float:
    """The mean over the requests of the client, of which a run has the first, the last and some between.

    Where each user sends ten, a tenth of them comes at once, and a tenth decodes while the server runs empty.
    """
    share, between = 1.0 / each, len(known) - 2 * users
    weights = np.full(len(known), (1.0 - 2.0 * share) / max(1, between))
    weights[-users:] = (share if between > 0 else 1.0 - share) / users
    weights[:users] = share / users
    return 1e3 * float(np.average(seconds[known], weights=weights[known]))


def figures(scored: Sequence[Scored]) -> dict[str, float]:
    """Rows, the share that is refused, and the size of errors: median and p90 of TPOT and of TTFT."""
    possible = [each for each in scored if not each.contradiction]
    priced = [each for each in possible if not each.refused]
    found: dict[str, float] = {"rows": len(possible)}
    found["refused"] = 1.0 - len(priced) / len(possible) if possible else 0.0
    for name in ("tpot", "ttft"):
        errors = np.abs([getattr(each, name) for each in priced])
        errors = errors[~np.isnan(errors)]
        if len(errors):
            found |= {f"{name}_median": float(np.median(errors)), f"{name}_p90": float(np.quantile(errors, 0.9))}
    return {name: round(value, 4) for name, value in found.items()}


def by(scored: Iterable[Scored], key: Callable[[Row], str]) -> dict[str, list[Scored]]:
    """The rows by what `key` says of them, in order of that."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for each in scored:
        groups[key(each.row)].append(each)
    return dict(sorted(groups.items()))


def table(scored: Sequence[Scored], key: Callable[[Row], str]) -> list[str]:
    """A line for each group."""
    lines = [f"{'':52} {'rows':>5} {'refused':>8} {'TPOT p50':>9} {'bias':>7} {'p90':>7} {'TTFT p50':>9} {'p90':>7}"]
    for name, some in by(scored, key).items():
        found = figures(some)
        bias = [each.tpot for each in some if not math.isnan(each.tpot)]
        parts = [found["refused"], found.get("tpot_median"), float(np.median(bias)) if bias else None]
        parts += [found.get("tpot_p90"), found.get("ttft_median"), found.get("ttft_p90")]
        words = [f"{100 * part:7.1f}%" if part is not None else f"{'-':>8}" for part in parts]
        lines.append(f"{name:52} {found['rows']:5.0f} {' '.join(words)}")
    return lines


def reasons(scored: Sequence[Scored]) -> list[str]:
    """Why rows are refused or left out, the most frequent first."""
    counted = Counter(each.refused or f"contradicts itself: {each.contradiction}" for each in scored
                      if each.refused or each.contradiction)  # fmt: skip
    return [f"{count:5} {words}" for words, count in counted.most_common()]


def worse(now: Mapping[str, Figures], before: Mapping[str, Figures]) -> list[str]:
    """The cells that have become worse than the figures last committed, in words."""
    found = []
    for cell, was in before.items():
        for name in ("tpot_median", "tpot_p90", "ttft_median", "refused"):
            one, two = was.get(name), now.get(cell, {}).get(name)
            if one is not None and two is not None and two > one + POINTS and two > one * (1 + SHARE):
                found.append(f"{cell}: {name} {100 * one:.1f} % -> {100 * two:.1f} %")
    return found


def read_rows_again(paths: Iterable[Path]) -> list[Scored]:
    """Read what `write_rows` wrote, each row once."""
    found: dict[str, Scored] = {}
    of_row, of_score = ({each.name for each in fields(kind)} for kind in (Row, Scored))
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            held = json.loads(line)
            row = Row(**{name: value for name, value in held.items() if name in of_row})
            rest = {name: value for name, value in held.items() if name in of_score - {"row"}}
            found[f"{row.engine} {row.name}"] = Scored(row, **rest)
    return list(found.values())


def write_rows(scored: Sequence[Scored], path: Path) -> None:
    """Write each row with its errors as a line of JSON."""
    with path.open("w", encoding="utf-8") as file:
        for each in scored:
            found: dict[str, Any] = asdict(each)
            file.write(json.dumps({**found.pop("row"), **found}) + "\n")
