"""The command `batchlab` as a process: how it starts, what becomes of errors, how it ends."""

import atexit
import builtins
import dataclasses
import errno
import gc
import importlib.util
import marshal
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from types import CodeType
from typing import Any

import typer

from scenarios.cli.verbs import command_line
from simulator.errors import InputError

# Byte code of what dataclasses write, kept beside that of the modules.
#
# `dataclasses` writes the methods of a class as text (six of a frozen one before Python 3.13) and compiles it in
# each process: 10 to 15 % of a short run. The text is the key, so nothing kept can be out of date.

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


_BAD_INPUT, _DEFECT, _INTERRUPTED = 2, 1, 130  # exit codes; 0: done
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""Errors of a disk or a device, which no command can help."""
_OBJECTS_BETWEEN_COLLECTIONS = 200_000
"""Python's default of 700 walks all modules and classes several times while a verb imports them: 5 % of a short run."""


def _guarded(verb: Callable[..., None]) -> Callable[..., None]:
    """Wrap a verb: errors become a line or two on stderr and an exit code."""

    @wraps(verb)
    def call(**given: Any) -> None:
        try:
            verb(**given)
            sys.stdout.flush()
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except InputError as error:
            typer.echo(f"{_red('error:')} {error}", err=True)
            raise typer.Exit(_BAD_INPUT) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(_INTERRUPTED) from None
        except BrokenPipeError:
            _drop_stdout()  # the reader (head, less) has seen enough
            raise typer.Exit(0) from None
        except OSError as error:
            if error.errno not in _FULL:
                raise _defect(error) from None
            _drop_stdout()
            typer.echo(f"{_red('error:')} cannot write {error.filename or 'stdout'}: {error.strerror}", err=True)
            raise typer.Exit(_BAD_INPUT) from None
        except Exception as error:
            raise _defect(error) from None

    return call


def _defect(error: Exception) -> typer.Exit:
    """Say that an error is ours, with its traceback."""
    typer.echo(f"this is a defect of batchlab, please report it: {type(error).__name__}: {error}", err=True)
    traceback.print_exception(error)
    return typer.Exit(_DEFECT)


def _drop_stdout() -> None:
    """Lead stdout nowhere: Python would complain when it flushes it at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _red(text: str) -> str:
    from reports.tables.terminal import wants_colour

    return f"\x1b[1;31m{text}\x1b[0m" if wants_colour(sys.stderr) else text


def app(words: Sequence[str] = ()) -> typer.Typer:
    """The command line; of a command of these words, only what it names."""
    return command_line(_guarded, words)


def main() -> None:
    """The command `batchlab`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± in its encoding shows ?
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    atexit.register(gc.freeze)  # else Python looks for cycles in all that is there before it ends: 14 % of a short run
    # To look for plugins, pydantic reads the metadata of every installed package: 4 % of a short run.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Threads of numpy's BLAS take 5 % of a short run, and cut the sums of a long one by the number of cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    keep_byte_code()
    signal.signal(signal.SIGTERM, _stop)
    app(sys.argv[1:])(prog_name="batchlab")


def _stop(number: int, frame: object) -> None:
    """End on SIGTERM (as of `timeout`) like on Ctrl-C: what is half-written is removed."""
    del frame
    sys.exit(128 + number)
