"""The flags that several verbs share, each described once, and the console and progress bar that verbs print with."""

from __future__ import annotations

import inspect
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, get_type_hints

import typer

if TYPE_CHECKING:
    from reports.tables.terminal import Terminal


# The progress of a simulation on stderr: a bar on a terminal, a line every few seconds elsewhere.
#
# It is silent for the first two seconds, so short runs show none, and never writes to stdout.

QUIET_S = 2.0  # a run shorter than this shows no progress
BAR_EVERY_S = 0.2
LINE_EVERY_S = 5.0
WIDTH = 30


class Progress:
    """Shows the share of requests (or of `noun`) that have finished. Call it with the number so far.

    With a `total` of 0 (not known) it shows no share until a call gives one.
    """

    def __init__(self, label: str, total: int, *, noun: str = "requests", stream: TextIO | None = None) -> None:
        self.label = label
        self.noun = noun
        self.total = total
        self._stream = sys.stderr if stream is None else stream
        self._bar = self._stream.isatty()
        self._started_s = time.monotonic()
        self._next_s = self._started_s + QUIET_S
        self._width = 0

    def close(self) -> None:
        """Remove the bar; lines stay."""
        if self._bar and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0

    def __call__(self, finished: int, total: int = 0) -> None:
        self.total = total or self.total
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + (BAR_EVERY_S if self._bar else LINE_EVERY_S)
        text = self._text(finished, now_s - self._started_s)
        if self._bar:
            text = text[: shutil.get_terminal_size().columns - 1]  # a bar that wraps could not be removed
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def _text(self, finished: int, elapsed_s: float) -> str:
        if not self.total:
            return f"{self.label}: {finished:,} {self._noun(finished)}"
        share = finished / self.total
        left = f", {elapsed_s * (1 - share) / share:.0f} s left" if share > 0 else ""
        count = f"{self.label}: {finished:,} of {self.total:,} {self._noun(self.total)}, {share:.0%}{left}"
        if not self._bar:
            return count
        done = int(share * WIDTH)
        return f"[{'#' * done}{'.' * (WIDTH - done)}] {count}"

    def _noun(self, count: int) -> str:
        return self.noun.removesuffix("s") if count == 1 else self.noun


def _shipped(incomplete: str) -> list[str]:
    """Return the names for the shell to complete. It reads file names alone and loads nothing."""
    library = Path(__file__).parents[1] / "library"
    return sorted(path.stem for path in library.glob("*.yaml") if path.stem.startswith(incomplete))


Scenario = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help="The path of a YAML file, or a shipped scenario (batchlab list scenarios).",
        autocompletion=_shipped,
    ),
]


def _with_equals(given: list[str] | None) -> list[str] | None:
    """Refuse a --set without `=` before click complains of the word behind it."""
    for text in given or ():
        if "=" not in text:
            raise typer.BadParameter(f"{text} has no value: write --set {text}=VALUE, without a blank")
    return given


Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=VALUE", help="Change a key of the scenario; repeatable.", callback=_with_equals),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="The scenario's seed.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The folder to write to.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace earlier results of batchlab in that folder.")]
OverwriteFile = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")]
Report = Annotated[bool, typer.Option("--report", help="Also draw plots and write report.html.")]
LogDecisions = Annotated[bool, typer.Option("--log-decisions", help="Also write what each step decided.")]
NoReport = Annotated[bool, typer.Option("--no-report", help="No plots and no report.html.")]
Bound = Annotated[bool, typer.Option("--bound", help="Also say what no scheduler can do better (batchlab bound).")]
Executor = Annotated[str, typer.Option("--executor", metavar="local|ray", help="Processes here, or a Ray cluster.")]
Address = Annotated[
    str | None, typer.Option("--address", metavar="A", help="Address of the Ray cluster; default: the one here.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no notes on stderr.")]


@dataclass(frozen=True)  # no slots: the console is made once
class Given:
    """The flags of every verb that runs a scenario and keeps what comes of it."""

    set_: Set = None
    seed: Seed = None
    out: Out = None
    overwrite: Overwrite = False
    json: Json = False
    quiet: Quiet = False

    @property
    def changed(self) -> list[str]:
        """The changes of --set and --seed."""
        return overrides(self.set_, self.seed)

    @cached_property
    def console(self) -> Console:
        """The console to print with."""
        return Console(quiet=self.quiet)


def whole_number(text: str) -> int:
    """Parse a number of tokens. Raises BadParameter for other text, with the digits that are meant."""
    try:
        found = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None
    if not (found >= 1 and found == int(found)):
        raise typer.BadParameter(f"{text!r} is not a whole number of 1 or more")
    if not text.isdigit():
        raise typer.BadParameter(f"{text!r} is not written in digits: write {int(found)}")
    return int(text)


def spread(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the flags of each dataclass among its parameters, in the dataclass's place."""
    own = inspect.signature(verb, eval_str=True).parameters.values()
    groups: dict[str, Any] = {each.name: each.annotation for each in own if is_dataclass(each.annotation)}
    flags: list[inspect.Parameter] = []
    for each in own:
        asked = [(each.name, each.default, each.annotation)]
        if (group := groups.get(each.name)) is not None:
            kinds = get_type_hints(group, include_extras=True)
            asked = [(field.name, field.default, kinds[field.name]) for field in fields(group)]
        kind = inspect.Parameter.KEYWORD_ONLY
        flags += [inspect.Parameter(name, kind, default=default, annotation=of) for name, default, of in asked]

    @wraps(verb)
    def call(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        verb(**given)

    call.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined] # `inspect` looks for it
    call.__annotations__ = {flag.name: flag.annotation for flag in flags}
    return call


def overrides(set_: list[str] | None, seed: int | None) -> list[str]:
    """Return the changes of --set and --seed as `a.b=VALUE`. --seed comes last and wins."""
    return [*(set_ or []), *([] if seed is None else [f"seed={seed}"])]


class Console:
    """Prints results on stdout, notes and progress on stderr; with --quiet, results alone."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet

    @cached_property
    def terminal(self) -> Terminal:
        """Width and colours of stdout."""
        from reports.tables.terminal import terminal_of

        return terminal_of(sys.stdout)

    def out(self, text: str) -> None:
        """Print a result: text that ends with a newline."""
        typer.echo(text, nl=False)

    def written(self, where: str, report_in: Path | None, *, json: bool) -> None:
        """Print where results are, and the report; on stderr where stdout has JSON."""
        from scenarios.runs.storage.run_folder import REPORT

        say = self.note if json else self.out
        say(f"{where}\n")
        if report_in is not None:
            say(f"report: {report_in / REPORT}\n")

    def note(self, text: str) -> None:
        """Print a line on stderr."""
        if not self.quiet:
            print(text.rstrip("\n"), file=sys.stderr, flush=True)

    def notes(self, texts: Iterable[str]) -> None:
        """Print notes, one a line; a warning begins with the word."""
        for text in texts:
            self.note(text if "warning: " in text else f"note: {text}")

    def timed(self) -> AbstractContextManager[Timed]:
        """Show the progress of the simulations inside the block."""
        return closing(Timed(self))

    def counted(self, label: str, total: int, noun: str) -> AbstractContextManager[Callable[..., None]]:
        """Show how many of `total` are done. Call it with the number so far (and the total, where that is 0 here)."""
        return nullcontext(_silent) if self.quiet else closing(Progress(label, total, noun=noun))


class Timed:
    """Shows the progress of each simulation in turn, and measures the time of all."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._requests = 0
        self._started_s = time.monotonic()

    def progress(self, label: str, total: int) -> Callable[[int], None]:
        """Begin a simulation of `total` requests (0: not known). Returns a function that takes the number finished."""
        self.close()
        self._requests += total
        if self._console.quiet:
            return _silent
        self._bar = Progress(label, total)
        return self._bar

    def simulated(self) -> None:
        """Say how long all simulations took."""
        self.close()
        seconds = time.monotonic() - self._started_s
        noun = "request" if self._requests == 1 else "requests"
        count = f"{self._requests:,} {noun} " if self._requests else ""
        self._console.note(f"simulated {count}in {seconds:.1f} s")

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _silent(finished: int, total: int = 0) -> None:
    del finished, total
