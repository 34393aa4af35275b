"""Pages of docs/ with commands and what they print: run again, in order, in one folder.

`python -m tests.tutorial docs/how-many-gpus.md` writes the page's outputs anew.
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.command import batchlab

_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def commands(page: str) -> Iterator[str]:
    """The commands of a page, in order."""
    for block in _BLOCK.findall(page):
        yield from (line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ "))


def rewritten(page: str, folder: Path) -> str:
    """The page with what its commands print when they are run in `folder`. Raises AssertionError where one fails."""

    def again(block: re.Match[str]) -> str:
        command = block[1].splitlines()[0].removeprefix("$ ")
        words = shlex.split(command)
        assert words[0] == "batchlab", command
        done = batchlab(*words[1:], cwd=folder)
        assert done.code == 0, f"{command}: {done.err}"
        return f"```console\n$ {command}\n{done.out.rstrip()}\n```"

    return _BLOCK.sub(again, page)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        with tempfile.TemporaryDirectory() as folder:
            path.write_text(rewritten(path.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")
