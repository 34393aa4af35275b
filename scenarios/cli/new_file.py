"""Files to start from: a policy, a scenario."""

from __future__ import annotations

import os
import re
from pathlib import Path

from scenarios.schema.loader import MODELINE
from simulator.errors import InputError

_TEMPLATES = Path(__file__).parents[1] / "templates"
_POLICY_STEM, _SCENARIO_STEM = "my_policy", "my-scenario"


def new_policy(name: str, folder: Path) -> Path:
    """Write `name`.py into `folder`, a policy that runs as it is, and return its path.

    `name` may end in `.py`. Raises InputError for a name that Python cannot import, and for a file that exists.
    """
    stem = name.removesuffix(".py")
    if not stem.isidentifier():
        raise InputError(f"{name!r} cannot name a policy file", hint="letters, digits and _, as in: my_policy")
    text = (_TEMPLATES / f"{_POLICY_STEM}.py").read_text(encoding="utf-8")
    return _write(folder / f"{stem}.py", text.replace(_POLICY_STEM, stem))


def new_scenario(name: str, folder: Path) -> Path:
    """Write `name`.yaml into `folder`, a scenario that runs as it is, and return its path.

    `name` may end in `.yaml`. Raises InputError for a name that is none, and for a file that exists.
    """
    stem = name.removesuffix(".yaml").removesuffix(".yml")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", stem):
        raise InputError(f"{name!r} cannot name a scenario", hint="letters, digits, _, . and -, as in: my-scenario")
    text = (_TEMPLATES / f"{_SCENARIO_STEM}.yaml").read_text(encoding="utf-8")
    _, _, text = text.partition("\n")  # the template's own way to the schema
    return _write(folder / f"{stem}.yaml", f"{MODELINE}{_schema_from(folder)}\n{text.replace(_SCENARIO_STEM, stem)}")


def _schema_from(folder: Path) -> str:
    """The way from a folder to the scenario's JSON Schema: relative, as editors want it; absolute on another drive."""
    schema = Path(__file__).parents[1] / "library" / "scenario.schema.json"
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
