"""The text of a check, and the scenarios that it writes."""

import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scenarios.check.check_policy import LAWS, WARNINGS, Finding, Report
from scenarios.check.random_case import as_yaml
from scenarios.runs.storage.staging import staging, unwritable
from simulator.errors import InputError
from simulator.named_class import split_class

FILES = tuple(f"{law}.{ending}" for law in LAWS for ending in ("yaml", "csv"))
"""The files that `write` may write."""


def table(report: Report) -> str:
    """Write a row for each law, without a final newline."""
    width = max(map(len, LAWS))
    lines = [f"{'law':<{width}}  tried  result   meaning"]
    for law, (words, _) in LAWS.items():
        lines.append(f"{law:<{width}}  {report.tried[law]:>5}  {_result(report, law):<7}  {words}")
    return "\n".join(lines)


def story(report: Report, law: str, place: str, folder: Path) -> str:
    """Describe a broken law: the breach and, of a counterexample that was written, the commands that show it again."""
    found = report.broken[law]
    lines = [f"{law}: {_result(report, law)}. {LAWS[law][0]}", f"  {found.breach}"]
    if found.case is not None:
        count = len(found.case.requests)
        path = shlex.quote(str(folder / f"{law}.yaml"))
        lines += [
            f"  smallest counterexample: {count} {'request' if count == 1 else 'requests'}, "
            f"shrunk from scenario {found.index} of seed {report.seed}",
            f"  replay:  batchlab check policy {shlex.quote(place)} --scenario {path}",
            f"  look at: batchlab run {path} --log-decisions",
        ]
    return "\n".join(lines)


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as plain values."""
    laws = {}
    for law, (words, _) in LAWS.items():
        found = report.broken.get(law)
        laws[law] = {
            "law": words,
            "tried": report.tried[law],
            "result": _result(report, law),
            "counterexample": None if found is None else _counterexample(law, found),
        }
    about = {"policy": report.policy, "seed": report.seed, "scenarios": report.scenarios, "holds": report.holds}
    return about | {"laws": laws}


def check_folder(folder: Path, *, overwrite: bool) -> None:
    """Raise InputError for a folder that holds an earlier check's counterexamples, unless they may be replaced."""
    there = [name for name in FILES if (folder / name).exists()]
    if there and not overwrite:
        hint = "replace it with --overwrite, or choose another folder with --out"
        raise InputError(f"{folder / there[0]} exists already", hint=hint)


def write(folder: Path, report: Report) -> None:
    """Write each counterexample's scenario and trace. Raises InputError where the disk does not take them."""
    with staging(folder, replace=FILES) as place:
        for law, found in report.broken.items():
            if found.case is None:
                continue
            scenario = found.case.scenario(f"breaks-{law}", _relative(report.policy, folder), f"{law}.csv")
            head = f"# {LAWS[law][0]}\n# Broken: {found.breach}\n".replace("\r", " ")
            try:
                (place / f"{law}.yaml").write_text(head + as_yaml(scenario), encoding="utf-8", newline="\n")
                (place / f"{law}.csv").write_text(found.case.trace(), encoding="utf-8", newline="\n")
            except OSError as error:
                raise unwritable(folder, error) from error


def _relative(policy: str, folder: Path) -> str:
    """Return the policy as a scenario in `folder` names it."""
    path, cls = split_class(policy)
    return f"{Path(os.path.relpath(path, folder)).as_posix()}:{cls}" if path else policy


def _result(report: Report, law: str) -> str:
    if law not in report.broken:
        return "holds" if report.tried[law] else "untried"
    return "warning" if law in WARNINGS else "BROKEN"


def _counterexample(law: str, found: Finding) -> dict[str, Any]:
    breach = asdict(found.breach)
    if found.case is None:
        return breach
    return {**breach, "requests": len(found.case.requests), "index": found.index, "file": f"{law}.yaml"}
