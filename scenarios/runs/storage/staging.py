"""Write a folder whole or not at all.

Files are made in a hidden folder inside the target and moved to their places at the end, each move atomic, with
Ctrl-C held back for those few milliseconds. If anything goes wrong before, the target looks as it did.
"""

import filecmp
import os
import shutil
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from simulator.errors import InputError

PARTIAL = ".partial-"
REPLACE = "--overwrite (in Python overwrite=True) replaces them, --out writes somewhere else"


@contextmanager
def staging(target: Path, *, replace: Iterable[str] | None = None) -> Iterator[Path]:
    """Yield a fresh folder to write into; at the end its files move to `target`.

    Without `replace`, nothing in `target` changes: the block may add files, and write equal ones again. If one would
    change, that is an InputError, and none is moved. With it, files of the same names are replaced, and the paths of
    `replace` that the block did not write are removed. All else in `target` stays. Raises InputError at once where
    `target` cannot be written.
    """
    made = _make_folder(target)
    folder = target / f"{PARTIAL}{os.getpid()}"
    try:
        with disk_errors(target):
            folder.mkdir()
        yield folder
        files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        if replace is None:
            _refuse_changes(folder, target, files)
        with _no_interrupt():
            _move(folder, target, files, () if replace is None else replace)
        made = []
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for path in made:
            with suppress(OSError):  # another process put a file into it
                path.rmdir()


def is_partial(name: str) -> bool:
    """Return whether a name is that of a staging folder, which a killed process leaves behind."""
    return name.startswith(PARTIAL)


def unwritable(target: Path, error: OSError) -> InputError:
    """Return the error for a folder that cannot be written; a staging folder is named by its target."""
    for path in (target, *target.parents):
        if is_partial(path.name):
            target = path.parent
    reason = "it is a file" if target.is_file() else error.strerror or str(error)
    return InputError(f"cannot write to the folder {target}: {reason}", hint="choose another one with --out")


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Raise InputError for what the disk refuses inside the block."""
    try:
        yield
    except OSError as error:
        raise unwritable(folder, error) from error


def _make_folder(target: Path) -> list[Path]:
    """Make `target` and the folders above it. Returns those that were missing, innermost first."""
    missing = []
    path = target
    try:
        while not path.exists():
            missing.append(path)
            path = path.parent
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        for made in missing:
            with suppress(OSError):
                made.rmdir()
        raise unwritable(target, error) from error
    return missing


def _refuse_changes(folder: Path, target: Path, files: Sequence[Path]) -> None:
    """Raise InputError for a file that is in `target` with another content."""
    there = [name for name in files if (target / name).exists()]
    changed = [name for name in there if not filecmp.cmp(folder / name, target / name, shallow=False)]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        what = f"{target} holds other results of the same name: {changed[0]}{more} would change"
        raise InputError(f"{what}; nothing was written", hint=REPLACE)


def _move(folder: Path, target: Path, files: Sequence[Path], replace: Iterable[str]) -> None:
    stale = [target / name for name in replace if Path(name) not in files]
    with disk_errors(target):
        for path in stale:
            path.unlink(missing_ok=True)
        for name in files:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).replace(target / name)
    emptied = {parent for path in stale for parent in path.parents if target in parent.parents}
    for empty in sorted(emptied, reverse=True):
        with suppress(OSError):  # not empty, or never there
            empty.rmdir()


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back until the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    held = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _frame: pressed.append(number)) for number in held]
    try:
        yield
    finally:
        for number, handler in zip(held, before, strict=True):
            signal.signal(number, handler)
    for first in pressed[:1]:
        signal.raise_signal(first)
