"""The command line: the verbs and their groups. Each verb is a function in a module of its own.

Nothing heavy is imported here or at the top of those modules: a verb imports what it needs when it runs, so `--help`
and completion in the shell are quick.
"""

import atexit
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial, wraps
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from scenarios.cli.bench_plan import bench_plan
from scenarios.cli.bound import bound
from scenarios.cli.byte_code import keep_byte_code
from scenarios.cli.calibrate import check, fit, import_, tables
from scenarios.cli.calibrate_own import ask
from scenarios.cli.check import policy as check_policy
from scenarios.cli.explain import explain
from scenarios.cli.export import export
from scenarios.cli.flags import spread
from scenarios.cli.from_ import from_
from scenarios.cli.lockstep import lockstep
from scenarios.cli.look import kv, list_
from scenarios.cli.measure import measure
from scenarios.cli.new import verbs as new_verbs
from scenarios.cli.parity import parity
from scenarios.cli.plan import plan
from scenarios.cli.report import report
from scenarios.cli.run import compare, run
from scenarios.cli.search import search
from scenarios.cli.serve import serve
from scenarios.cli.sweep import sweep
from scenarios.cli.trace import trace_convert, trace_inspect, trace_sources
from scenarios.cli.validate import validate
from scenarios.version import __version__
from simulator.compiled import core_name
from simulator.errors import InputError

_BAD_INPUT, _DEFECT, _INTERRUPTED = 2, 1, 130  # exit codes; 0: done
_OBJECTS_BETWEEN_COLLECTIONS = 200_000
"""Python's default of 700 walks all modules and classes several times while a verb imports them: 5 % of a short run."""

_make_group = partial(typer.Typer, rich_markup_mode=None, no_args_is_help=True)

app = _make_group(
    add_completion=True,  # --install-completion, --show-completion
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Simulate batching policies for LLM inference: your traffic, your SLO, before anyone pays for a GPU.",
)
trace = _make_group(help="Request traces: look into one, make it native, get one.")
calibrate = _make_group(help="Step costs from measured kernels.")
laws = _make_group(help="Put a policy through the laws.")
new = _make_group(help="Write a file to start from.")


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
            # The reader (head, less) has seen enough. Python would complain when it flushes stdout at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except Exception as error:
            typer.echo(f"this is a defect of batchlab, please report it: {type(error).__name__}: {error}", err=True)
            traceback.print_exc()
            raise typer.Exit(_DEFECT) from None

    return call


def _red(text: str) -> str:
    from reports.tables.terminal import wants_colour

    return f"\x1b[1;31m{text}\x1b[0m" if wants_colour(sys.stderr) else text


_GROUPS: dict[typer.Typer, dict[str, Callable[..., None]]] = {
    calibrate: {"measure": measure, "import": import_, "fit": fit, "tables": tables, "check": check, "ask": ask},
    laws: {"policy": check_policy},
    trace: {"inspect": trace_inspect, "convert": trace_convert, "sources": trace_sources},
    new: new_verbs(),
}
_RUNS = (run, compare, bound, sweep, plan, search, bench_plan, explain)
for _verb in (*_RUNS, from_, serve, validate, lockstep, parity, report, export, list_, kv):
    app.command(_verb.__name__.removesuffix("_").replace("_", "-"))(_guarded(spread(_verb)))
for _group, _verbs in _GROUPS.items():
    for _name, _verb in _verbs.items():
        _group.command(_name)(_guarded(spread(_verb)))
app.add_typer(calibrate, name="calibrate")
app.add_typer(laws, name="check")
app.add_typer(trace, name="trace")
app.add_typer(new, name="new")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"batchlab {__version__}, {core_name()}")
        raise typer.Exit


@app.callback()
def _batchlab(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version, and whether the core is compiled.",
            is_eager=True,
            callback=_show_version,
        ),
    ] = False,
) -> None:
    del version  # its callback did all there was to do


@laws.callback()
def _check() -> None:
    """Keeps `policy` a word of its own while it is the only verb of its group."""


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
    app(prog_name="batchlab")


def _stop(number: int, frame: object) -> None:
    """End on SIGTERM (as of `timeout`) like on Ctrl-C: what is half-written is removed."""
    del frame
    sys.exit(128 + number)
