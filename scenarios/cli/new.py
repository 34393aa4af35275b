"""`batchlab new policy|scenario`: write a file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Name = Annotated[str, typer.Argument(metavar="NAME", help="The new file's name; its ending is added.")]
Folder = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The folder to put it in (default: here).")]


def new_policy(name: Name, out: Folder = None) -> None:
    """Write NAME.py, a batching policy that runs as it is."""
    from scenarios.cli.new_file import new_policy as write

    path = write(name, out or Path())
    typer.echo(f"{path}: run it with")
    typer.echo(f"  batchlab run quickstart --set engine.policy={_spelled(path)}:ShortestPrompt")


def new_scenario(name: Name, out: Folder = None) -> None:
    """Write NAME.yaml, a scenario that runs as it is, every key explained."""
    from scenarios.cli.new_file import new_scenario as write

    path = write(name, out or Path())
    typer.echo(f"{path}: run it with")
    typer.echo(f"  batchlab run {_spelled(path)}")


def _spelled(path: Path) -> str:
    """The path as the command line needs it: `./` tells a file from the name of a shipped scenario."""
    return str(path) if path.is_absolute() else f"./{path}"
