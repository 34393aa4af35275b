"""Atomic writing of files."""

import os
from pathlib import Path

from simulator.errors import InputError


def write(path: Path, content: bytes | str) -> None:
    """Write a file beside its place and move it there, so that it is whole or absent; make its folder if missing.

    Raises InputError where that cannot be done.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_bytes(data)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}", hint="choose another folder") from error
