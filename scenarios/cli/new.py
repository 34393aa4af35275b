"""`batchlab new policy|scenario`: write a file to start from."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from simulator.errors import InputError

Name = Annotated[str, typer.Argument(metavar="NAME", help="The new file's name; its ending is added.")]
Folder = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The folder to put it in (default: here).")]

_SCENARIOS = Path(__file__).parents[1]
_POLICY_STEM, _SCENARIO_STEM = "my_policy", "my-scenario"


def new_policy(name: Name, out: Folder = None) -> None:
    """Write NAME.py, a batching policy that runs as it is."""
    stem = name.removesuffix(".py")
    if not stem.isidentifier():
        raise InputError(f"{name!r} cannot name a policy file", hint="letters, digits and _, as in: my_policy")
    text = _template(f"{_POLICY_STEM}.py").replace(_POLICY_STEM, stem)
    path = _write((out or Path()) / f"{stem}.py", text)
    typer.echo(f"{path}: run it with\n  batchlab run quickstart --set engine.policy={_spelled(path)}:ShortestPrompt")


def new_scenario(name: Name, out: Folder = None) -> None:
    """Write NAME.yaml, a scenario that runs as it is, every key explained."""
    from scenarios.schema.loader import MODELINE

    stem = name.removesuffix(".yaml").removesuffix(".yml")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", stem):
        raise InputError(f"{name!r} cannot name a scenario", hint="letters, digits, _, . and -, as in: my-scenario")
    folder = out or Path()
    _, _, text = _template(f"{_SCENARIO_STEM}.yaml").partition("\n")  # the template's own way to the schema
    text = f"{MODELINE}{_schema_from(folder)}\n{text.replace(_SCENARIO_STEM, stem)}"
    path = _write(folder / f"{stem}.yaml", text)
    typer.echo(f"{path}: run it with\n  batchlab run {_spelled(path)}")


def _template(name: str) -> str:
    return (_SCENARIOS / "templates" / name).read_text(encoding="utf-8")


def _schema_from(folder: Path) -> str:
    """Return the way from a folder to the scenario's JSON Schema: relative for editors, absolute on another drive."""
    schema = _SCENARIOS / "library" / "scenario.schema.json"
    try:
        return Path(os.path.relpath(schema, folder.resolve())).as_posix()
    except ValueError:
        return schema.as_uri()


def _write(path: Path, text: str) -> Path:
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{path} exists already", hint="nothing was written; choose another name") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def _spelled(path: Path) -> str:
    """Return the path as the command line needs it: `./` tells a file from the name of a shipped scenario."""
    return str(path) if path.is_absolute() else f"./{path}"
