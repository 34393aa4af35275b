"""The policy that a command line names: a built-in, `path.py:Class`, or a file with one policy in it."""

from __future__ import annotations

import ast
from pathlib import Path

from simulator.errors import InputError


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
