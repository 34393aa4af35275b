"""`batchlab new KIND NAME`: write a file to start from."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from simulator.errors import InputError

Name = Annotated[str, typer.Argument(metavar="NAME", help="The new file's name; its ending is added.")]
Folder = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The folder to put it in (default: here).")]

_SCENARIOS = Path(__file__).parents[1]
_SCENARIO_STEM = "my-scenario"


@dataclass(frozen=True, slots=True)
class _Code:
    """A kind of file in Python: its template, what of it a scenario names, and a command that runs it.

    `{}` in the command stands for the path. `beside` is the ending of a file that the template needs.
    """

    template: str
    what: str
    command: str
    beside: str = ""


_CODE: Mapping[str, _Code] = {
    "policy": _Code(
        "my_policy", "a batching policy", "batchlab run quickstart --set engine.policy={}.py:ShortestPrompt"
    ),
    "router": _Code(
        "my_router", "a router", "batchlab run quickstart --set replicas=4 --set router={}.py:MyRouter"
    ),
    "cost": _Code("my_cost", "a cost model", 'batchlab run quickstart --set "cost={{kind: {}.py:MyCost}}"'),
    "metric": _Code("my_metric", "a metric", 'batchlab run quickstart --set "measure.metrics=[{}.py:METRIC]"'),
    "trace-format": _Code(
        "my_format", "a trace format", "batchlab trace inspect {0}.log --format {0}.py:FORMAT", beside=".log"
    ),
}  # fmt: skip


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


def verbs() -> dict[str, Callable[..., None]]:
    """Return the verbs of `batchlab new`, by the kind of file."""
    return {**{kind: _writer(kind, code) for kind, code in _CODE.items()}, "scenario": new_scenario}


def _writer(kind: str, code: _Code) -> Callable[..., None]:
    """The verb that writes files of one kind."""

    def new(name: Name, out: Folder = None) -> None:
        stem, folder = name.removesuffix(".py"), out or Path()
        if not stem.isidentifier():
            hint = f"letters, digits and _, as in: {code.template}"
            raise InputError(f"{name!r} cannot name a {kind} file", hint=hint)
        texts = {ending: _template(f"{code.template}{ending}") for ending in (".py", code.beside) if ending}
        for ending in texts:
            _check_free(folder / f"{stem}{ending}")
        paths = [_write(folder / f"{stem}{end}", text.replace(code.template, stem)) for end, text in texts.items()]
        command = code.command.format(_spelled(paths[0].with_suffix("")))
        typer.echo(f"{' and '.join(map(str, paths))}: {_verb_for(kind)} it with\n  {command}")

    new.__name__ = f"new_{kind.replace('-', '_')}"
    beside = f" and NAME{code.beside}, an example for it" if code.beside else ", which runs as it is"
    new.__doc__ = f"Write NAME.py, {code.what}{beside}."
    return new


def _verb_for(kind: str) -> str:
    return "try" if kind == "trace-format" else "run"


def _template(name: str) -> str:
    return (_SCENARIOS / "templates" / name).read_text(encoding="utf-8")


def _schema_from(folder: Path) -> str:
    """Return the way from a folder to the scenario's JSON Schema: relative for editors, absolute on another drive."""
    schema = _SCENARIOS / "library" / "scenario.schema.json"
    try:
        return Path(os.path.relpath(schema, folder.resolve())).as_posix()
    except ValueError:
        return schema.as_uri()


def _check_free(path: Path) -> None:
    if path.exists():
        raise InputError(f"{path} exists already", hint="nothing was written; choose another name")


def _write(path: Path, text: str) -> Path:
    _check_free(path)
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def _spelled(path: Path) -> str:
    """Return the path as the command line needs it: `./` tells a file from the name of a shipped scenario."""
    return str(path) if path.is_absolute() else f"./{path}"
