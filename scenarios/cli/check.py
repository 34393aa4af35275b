"""`batchlab check policy`: a policy through the laws, and the smallest scenario that breaks one."""

from __future__ import annotations

import ast
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scenarios.cli.flags import Console, Json, Out, Quiet
from simulator.errors import InputError

if TYPE_CHECKING:
    from scenarios.check.check_policy import Report

BROKEN = 3
"""Exit code: everything ran, and a law is broken."""

Policy = Annotated[
    str, typer.Argument(metavar="FILE[:CLASS]", help="A policy's file and class, or the name of a built-in one.")
]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A key of `engine:` that stays as given; repeatable."),
]


def policy(
    policy: Policy,
    set_: Parameters = None,
    scenario: Annotated[
        str | None,
        typer.Option("--scenario", metavar="SCENARIO", help="Check on this scenario alone; it replays a finding."),
    ] = None,
    scenarios: Annotated[
        int, typer.Option("--scenarios", min=1, metavar="N", help="Number of random scenarios.")
    ] = 300,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="The seed of the random scenarios.")] = 0,
    out: Out = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier check's files.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Put a policy through the laws on random scenarios.

    A table goes to stdout; the smallest scenario that breaks a law goes to --out, else to runs/check-POLICY, for
    `batchlab run` to replay. Exit code 3: a law is broken.
    """
    from scenarios.assembly.engines import policy_label
    from scenarios.check.check_policy import as_json, check_folder, check_policy, story, table, write
    from scenarios.cli.flags import Progress
    from scenarios.runs.storage.run_folder import to_json

    console = Console(quiet=quiet)
    name = find_policy(policy)
    folder = out or Path("runs") / f"check-{policy_label(name)}"
    started_s = time.process_time()
    if scenario is not None:
        report = _check_one(name, scenario, _parameters(set_))
        what = f"{name} on {scenario}"
    else:
        check_folder(folder, overwrite=overwrite)
        bar = None if quiet else Progress(policy_label(name), scenarios, noun="scenarios")
        with redirect_stdout(sys.stderr):  # what a policy prints is none of our output
            report = check_policy(name, seed=seed, scenarios=scenarios, fixed=_parameters(set_), progress=bar)
        if bar is not None:
            bar.close()
        if report.broken or overwrite:
            write(folder, report)
        what = f"{name}, {scenarios} scenarios of seed {seed}"
    console.note(f"checked in {time.process_time() - started_s:.1f} s of CPU time")
    if json:
        console.out(to_json(as_json(report)))
    else:
        console.out(f"{what}\n\n{table(report)}\n")
        for law in report.broken:
            console.out(f"\n{story(report, law, name, folder)}\n")
    if not report.holds:
        raise typer.Exit(BROKEN)


def _check_one(name: str, source: str, fixed: dict[str, Any]) -> Report:
    """Check the laws on a given scenario, with this policy."""
    from scenarios.assembly.workloads import build_workload
    from scenarios.check.check_policy import check_scenario
    from scenarios.runs.storage.run_folder import to_json
    from scenarios.schema.loader import load

    given = [f"engine.{key}={to_json(value).strip()}" for key, value in fixed.items()]
    chosen = load(source, [f"engine.policy={name}", *given])
    with redirect_stdout(sys.stderr):
        return check_scenario(chosen, build_workload(chosen))


def _parameters(set_: list[str] | None) -> dict[str, Any]:
    """Return the keys of `engine:` that --set gives, with or without `engine.` before them."""
    from scenarios.schema.loader import apply_overrides

    data: dict[str, Any] = {}
    apply_overrides(data, [text.removeprefix("engine.") for text in set_ or []])
    return data


def find_policy(text: str) -> str:
    """`FILE` becomes `FILE:Class` where the file has one class with a `plan`; every other name stays as it is.

    Raises InputError for a file that cannot be read, and for one with no such class or with several.
    """
    if not text.endswith(".py"):
        return text
    path = Path(text)
    if not path.is_file():
        raise InputError(f"no such policy file: {text}")
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise InputError(f"cannot be loaded: {type(error).__name__}: {error}", file=text, line=line) from error
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    names = [cls.name for cls in classes if any(getattr(member, "name", "") == "plan" for member in cls.body)]
    if len(names) == 1:
        return f"{text}:{names[0]}"
    if not names:
        raise InputError("no class with a method `plan`", file=text, hint=f"or name one: {text}:MyPolicy")
    raise InputError(f"{len(names)} policies are in it", file=text, hint=f"choose one of {text}:{{{','.join(names)}}}")
