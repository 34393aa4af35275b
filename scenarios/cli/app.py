"""The command line: the verbs and their groups. Each verb is a function in a module of its own.

Nothing heavy is imported here or at the top of those modules: a verb imports what it needs when it runs, so `--help`
and completion in the shell are quick.
"""

from __future__ import annotations

import gc
import signal
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from scenarios.cli.calibrate import check, fit, import_, tables
from scenarios.cli.check import policy as check_policy
from scenarios.cli.explain import explain
from scenarios.cli.export import export
from scenarios.cli.guard import guarded
from scenarios.cli.lockstep import lockstep
from scenarios.cli.look import kv, list_
from scenarios.cli.measure import measure
from scenarios.cli.new import new_policy, new_scenario
from scenarios.cli.plan import plan
from scenarios.cli.report import report
from scenarios.cli.run import compare, run
from scenarios.cli.serve import serve
from scenarios.cli.sweep import sweep
from scenarios.cli.trace import trace_convert, trace_inspect, trace_sources
from scenarios.cli.validate import validate
from scenarios.version import __version__
from simulator.compiled import core_name

_HELP = {"help_option_names": ["-h", "--help"]}

_OBJECTS_BETWEEN_COLLECTIONS = 200_000
"""Python's default of 700 walks all modules and classes several times while a verb imports them: 5 % of a short run."""

app = typer.Typer(
    add_completion=True,  # --install-completion, --show-completion
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
    help="Simulate batching policies for LLM inference: your traffic, your SLO, before anyone pays for a GPU.",
)
trace = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Request traces: look into one, make it native, get one."
)
calibrate = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Step costs from measured kernels.")
laws = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Put a policy through the laws.")
new = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Write a file to start from.")

app.command("run")(guarded(run))
app.command("compare")(guarded(compare))
app.command("sweep")(guarded(sweep))
app.command("plan")(guarded(plan))
app.command("explain")(guarded(explain))
app.command("serve")(guarded(serve))
app.command("validate")(guarded(validate))
app.command("lockstep")(guarded(lockstep))
app.command("report")(guarded(report))
app.command("export")(guarded(export))
app.command("list")(guarded(list_))
app.command("kv")(guarded(kv))
app.add_typer(calibrate, name="calibrate")
app.add_typer(laws, name="check")
app.add_typer(trace, name="trace")
app.add_typer(new, name="new")
calibrate.command("measure")(guarded(measure))
calibrate.command("import")(guarded(import_))
calibrate.command("fit")(guarded(fit))
calibrate.command("tables")(guarded(tables))
calibrate.command("check")(guarded(check))
laws.command("policy")(guarded(check_policy))
trace.command("inspect")(guarded(trace_inspect))
trace.command("convert")(guarded(trace_convert))
trace.command("sources")(guarded(trace_sources))
new.command("policy")(guarded(new_policy))
new.command("scenario")(guarded(new_scenario))


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
    signal.signal(signal.SIGTERM, _stop)
    app(prog_name="batchlab")


def _stop(number: int, frame: object) -> None:
    """End on SIGTERM (as of `timeout`) like on Ctrl-C: what is half-written is removed."""
    del frame
    sys.exit(128 + number)
