"""One run of a study: its address, and what a worker makes of it.

A run is addressed by its content: the scenario with every default written out (its name apart), the bytes of the
files that it reads, and the code. Runs of one address have one result, so a study takes up where it was killed, runs
only what changed, and shares with others what they have in common.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from scenarios.assembly.engine_policy import resolved_yaml
from scenarios.assembly.workloads import BY_CLASS, build_workload
from scenarios.bound.bound import bound
from scenarios.runs.provenance import PROVENANCE
from scenarios.runs.runner import run_on
from scenarios.schema.cost import OwnCostConfig, ProfileCostConfig
from scenarios.schema.scenario import Scenario
from scenarios.schema.trace import TraceWorkload
from scenarios.version import __version__
from simulator.errors import InputError
from simulator.workload import Workload

_ROOT = Path(__file__).parents[2]
_MOST_ROWS = 2_000_000  # requests of all workloads that a worker keeps
_kept: OrderedDict[str, Workload] = OrderedDict()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run: its summary, or the error (`summary` is then empty)."""

    summary: Mapping[str, Any]
    error: str = ""
    notes: tuple[str, ...] = ()

    def of(self, name: str) -> Outcome:
        """Return the outcome for a scenario of this name: runs are shared, whatever their scenario is called."""
        if self.error:
            return self
        return replace(self, summary={**self.summary, PROVENANCE: {**self.summary[PROVENANCE], "scenario": name}})

    def to_json(self) -> str:
        """JSON that `from_json` reads back, equal for equal outcomes."""
        found = {"summary": dict(self.summary), "notes": list(self.notes)}
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """Read the outcome in a text. Raises ValueError for any other text."""
        found = json.loads(text)
        try:
            return cls(dict(found["summary"]), notes=tuple(found["notes"]))
        except (KeyError, TypeError):
            raise ValueError("not an outcome") from None


def address(scenario: Scenario) -> str:
    """Return the address of a scenario's run, in hexadecimal digits."""
    body = resolved_yaml(scenario.model_copy(update={"name": "run"}))
    digest = hashlib.sha256(f"{_code()}\n{body}".encode())
    for path in files_read(scenario):
        digest.update(_content(path, path.stat().st_mtime_ns, path.stat().st_size).encode())
    return digest.hexdigest()[:40]


def run_scenario(scenario: Scenario, *, bounded: bool = False) -> Outcome:
    """Simulate a scenario for its summary. An error in the scenario is an outcome too.

    If `bounded`, the summary says what no scheduler can do better.
    """
    try:
        workload = _workload(scenario)
        result = run_on(scenario, workload)
        if bounded:
            result = result.bounded(bound(scenario, workload, **scenario.measure.window(result.records)))
    except InputError as error:
        return Outcome({}, one_line(error))
    return Outcome(result.summary, notes=result.notes)


def one_line(error: InputError) -> str:
    """An error as a cell of a table holds it."""
    return " ".join(f"{error.message}{f' ({error.hint})' if error.hint else ''}".split())


def files_read(scenario: Scenario) -> Iterator[Path]:
    """Yield the files that a run reads: its trace, its profile, and the user's own code."""
    if isinstance(scenario.workload, TraceWorkload):
        yield scenario.workload.path
    if isinstance(scenario.cost, ProfileCostConfig) and scenario.cost.path is not None:
        yield Path(scenario.cost.path)
    if isinstance(scenario.cost, OwnCostConfig):
        yield scenario.cost.file
    yield from scenario.measure.files
    for code in (scenario.engine.policy_file, scenario.routing.file):
        if code is not None:
            yield code


def _workload(scenario: Scenario) -> Workload:
    """Return the scenario's workload, which its neighbours in a grid mostly share."""
    asked = resolved_workload(scenario)
    found = _kept.pop(asked, None)
    if found is None:
        found = build_workload(scenario)
    _kept[asked] = found
    while sum(map(len, _kept.values())) > _MOST_ROWS and len(_kept) > 1:
        _kept.popitem(last=False)
    return found


def resolved_workload(scenario: Scenario) -> str:
    """Return equal texts for scenarios that serve the same requests, as far as the scenario tells."""
    workload = scenario.workload
    parts: list[object] = [workload.model_dump(mode="json"), scenario.seed]
    if isinstance(workload, TraceWorkload):
        about = workload.path.stat()
        parts += [about.st_mtime_ns, about.st_size]
    # Checked against the classes when the workload is built: who shares one has to agree on them.
    parts += [sorted(scenario.engine.given().get(key) or ()) for key in BY_CLASS]
    parts += [scenario.slo and sorted(scenario.slo.classes or ())]
    return json.dumps(parts, default=str, sort_keys=True)


@lru_cache(maxsize=64)
def _content(path: Path, modified_ns: int, size: int) -> str:
    """Return the digest of a file, which is read once as long as it does not change."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


@cache
def _code() -> str:
    """Return the version, and a digest of what a result rests on: the code, the shipped profiles and tables."""
    digest = hashlib.sha256()
    sources = {"simulator": "*.py", "scenarios": "*.py", "calibration/profiles": "*.json", "calibration/tables": "*.gz"}
    for room, files in sources.items():
        for path in sorted((_ROOT / room).rglob(files)):
            digest.update(path.read_bytes())
    return f"{__version__} {digest.hexdigest()}"
