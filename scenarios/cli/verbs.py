"""The verbs of the command line and their groups. Each verb is a function in a module of its own.

Nothing heavy is imported here or at the top of those modules: a verb imports what it needs when it runs. A command that
names its verb builds no other: to read the flags of all thirty would take as long as a short simulation.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand

from scenarios.cli.flags import spread
from scenarios.version import __version__
from simulator import core_name

Verb = Callable[..., None]

_VERBS: Mapping[str, str] = {
    "run": "run:run",
    "compare": "run:compare",
    "bound": "run:bound",
    "sweep": "sweep:sweep",
    "plan": "plan:plan",
    "search": "search:search",
    "bench-plan": "plan:bench_plan",
    "explain": "explain:explain",
    "from": "from_:from_",
    "serve": "serve:serve",
    "validate": "validate:validate",
    "lockstep": "lockstep:lockstep",
    "parity": "lockstep:parity",
    "report": "report:report",
    "export": "export:export",
    "list": "look:list_",
    "kv": "look:kv",
}
"""The module and the function of each verb, in the order in which `--help` names them; those of groups come after."""
_GROUPS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "calibrate": (
        "Step costs from measured kernels.",
        {
            "measure": "calibrate:measure",
            "import": "calibrate:import_",
            "fit": "calibrate:fit",
            "tables": "calibrate:tables",
            "check": "calibrate:check",
            "ask": "calibrate:ask",
        },
    ),
    "check": ("Put a policy through the laws.", {"policy": "check:policy"}),
    "trace": (
        "Request traces: look into one, make it native, get one.",
        {"inspect": "trace:trace_inspect", "convert": "trace:trace_convert", "sources": "trace:trace_sources"},
    ),
    "new": ("Write a file to start from.", {}),  # its verbs are the kinds of files: `scenarios.cli.new.verbs`
}


class _Verb(TyperCommand):
    """A verb. Where it lacks a flag, its message names the verb that has it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a verb."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter:
            raise
        except Exception as error:
            flag = getattr(error, "option_name", None)  # of a NoSuchOption
            if flag and not getattr(error, "possibilities", None) and (elsewhere := _elsewhere(flag)):
                cast("Any", error).message = f"{cast('Any', error).message}. {elsewhere}"
            raise


def _elsewhere(flag: str) -> str:
    """The verb with a flag like this one, in a sentence; "" without one."""
    from difflib import get_close_matches

    from typer.main import get_command

    verbs = cast("Any", get_command(command_line(lambda verb: verb))).commands
    has: dict[str, str] = {}
    for name, verb in verbs.items():
        for each in verb.params:
            for option in each.opts:
                has.setdefault(option, name)
    near = get_close_matches(flag, has, n=1, cutoff=0.8)
    return f"`batchlab {has[near[0]]}` has {near[0]}." if near else ""


_make_group = partial(typer.Typer, rich_markup_mode=None, no_args_is_help=True)


def command_line(guarded: Callable[[Verb], Verb], words: Sequence[str] = ()) -> typer.Typer:
    """The command `batchlab`: all of it, or only the verb or the group that the first of its words names.

    `guarded` wraps a verb, so that its errors become messages.
    """
    app = _make_group(
        add_completion=True,  # --install-completion, --show-completion
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Simulate batching policies for LLM inference: your traffic, your SLO, before anyone pays for a GPU.",
    )
    app.callback()(_batchlab)
    first = words[0] if words else ""
    chosen = {first} if first in {*_VERBS, *_GROUPS} else {*_VERBS, *_GROUPS}
    for name, where in _VERBS.items():
        if name in chosen:
            app.command(name, cls=_Verb)(guarded(spread(_function(where))))
    for name, (told, places) in _GROUPS.items():
        if name not in chosen:
            continue
        group = _make_group(help=told)
        group.callback()(_stays_a_group)
        for verb, function in ({name: _function(place) for name, place in places.items()} or _kinds()).items():
            group.command(verb, cls=_Verb)(guarded(spread(function)))
        app.add_typer(group, name=name)
    return app


def _function(where: str) -> Verb:
    module, _, name = where.partition(":")
    return cast("Verb", getattr(import_module(f"scenarios.cli.{module}"), name))


def _kinds() -> dict[str, Verb]:
    from scenarios.cli.new import verbs

    return verbs()


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"batchlab {__version__}, {core_name()}")
        raise typer.Exit


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


def _stays_a_group() -> None:
    """Keeps `policy` a word of its own while it is the only verb of its group."""
