"""Byte code of what dataclasses write, kept beside that of the modules.

`dataclasses` writes the methods of a class as text (six of a frozen one before Python 3.13) and compiles it in each
process: 10 to 15 % of a short run. The text is the key, so nothing kept can be out of date.
"""

import atexit
import builtins
import dataclasses
import importlib.util
import marshal
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import CodeType

_FILE = Path(importlib.util.cache_from_source(__file__)).with_suffix(".dataclasses")
_MOST = 5_000
"""Texts that are kept. Where they are more, as sources were edited, only those that this process needed stay."""


def keep_byte_code(file: Path = _FILE) -> None:
    """Take the code of dataclasses that are made from now on from `file`, which gets at exit what it lacks.

    A file that cannot be read or written costs the compiling, as with modules.
    """
    kept, needed = _read(file), dict[str, CodeType]()

    def run(text: str, names: dict[str, object] | None = None, found: dict[str, object] | None = None) -> None:
        code = needed[text] = kept.get(text) or compile(text, "<string>", "exec")
        builtins.exec(code, names, found)

    def write() -> None:
        if not sys.dont_write_bytecode and not needed.keys() <= kept.keys():
            both = {**kept, **needed}
            _write(file, both if len(both) <= _MOST else needed)

    vars(dataclasses)["exec"] = run
    atexit.register(write)


def _read(file: Path) -> dict[str, CodeType]:
    try:
        magic, kept = marshal.loads(file.read_bytes())
    except (OSError, ValueError, EOFError, TypeError):
        return {}
    return kept if magic == importlib.util.MAGIC_NUMBER else {}


def _write(file: Path, codes: dict[str, CodeType]) -> None:
    beside = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(exist_ok=True)
        beside.write_bytes(marshal.dumps((importlib.util.MAGIC_NUMBER, codes)))
        beside.replace(file)
    except OSError:
        with suppress(OSError):
            beside.unlink()
