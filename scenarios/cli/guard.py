"""The exit codes of a verb: 0 done, 2 bad input, 1 a defect of batchlab, 130 interrupted."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import typer

from simulator.errors import InputError

P = ParamSpec("P")

BAD_INPUT, DEFECT, INTERRUPTED = 2, 1, 130


def guarded(verb: Callable[P, None]) -> Callable[P, None]:
    """Wrap a verb: errors become a line or two on stderr and an exit code."""

    @wraps(verb)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            verb(*args, **kwargs)
            sys.stdout.flush()
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except InputError as error:
            typer.echo(f"{_red('error:')} {error}", err=True)
            raise typer.Exit(BAD_INPUT) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader (head, less) has seen enough. Python would complain when it flushes stdout at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except Exception as error:
            typer.echo(f"this is a defect of batchlab, please report it: {type(error).__name__}: {error}", err=True)
            traceback.print_exc()
            raise typer.Exit(DEFECT) from None

    return call


def _red(text: str) -> str:
    from reports.tables.terminal import wants_colour

    return f"\x1b[1;31m{text}\x1b[0m" if wants_colour(sys.stderr) else text
