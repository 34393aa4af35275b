"""Pages of docs/ with commands and what they print: run again, in order, in one folder.

A ```` ```console ```` block holds a command and what it prints. A block with `title="NAME"` is a file, written before
what follows it. A picture whose title is a path, `![...](pictures/x.png "four/plots/ttft_cdf.png")`, is the file that a
command before it made.

`python -m tests.tutorial docs/how-many-gpus.md` writes the page's outputs and pictures anew.
"""

import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.command import batchlab

_CONSOLE = r"```console\n(?P<console>.*?)```"
_FILE = r"```\w+ title=\"(?P<name>[\w.-]+)\"\n(?P<text>.*?)```"
_PICTURE = r"!\[[^\]]*\]\((?P<shown>[\w./-]+) \"(?P<made>[\w./+=-]+)\"\)"
_PART = re.compile("|".join((_CONSOLE, _FILE, _PICTURE)), re.DOTALL)


def commands(page: str) -> Iterator[str]:
    """The commands of a page, in order."""
    for part in _PART.finditer(page):
        if part["console"] is not None:
            yield from (line.removeprefix("$ ") for line in part["console"].splitlines() if line.startswith("$ "))


def rewritten(page: str, folder: Path, pictures: Path | None = None) -> str:
    """The page with what its commands print when they are run in `folder`; its pictures are copied below `pictures`.

    Raises AssertionError where a command fails, or did not make the picture behind it.
    """

    def again(part: re.Match[str]) -> str:
        if part["name"] is not None:
            (folder / part["name"]).write_text(part["text"], encoding="utf-8")
            return part[0]
        if part["shown"] is not None:
            made = folder / part["made"]
            assert made.read_bytes().startswith(b"\x89PNG"), made
            if pictures is not None:
                (pictures / part["shown"]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(made, pictures / part["shown"])
            return part[0]
        command = part["console"].splitlines()[0].removeprefix("$ ")
        words = shlex.split(command)
        assert words[0] == "batchlab", command
        done = batchlab(*words[1:], cwd=folder)
        assert done.code == 0, f"{command}: {done.err}"
        return f"```console\n$ {command}\n{done.out.rstrip()}\n```"

    return _PART.sub(again, page)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        with tempfile.TemporaryDirectory() as folder:
            page = rewritten(path.read_text(encoding="utf-8"), Path(folder), path.parent)
            path.write_text(page, encoding="utf-8")
