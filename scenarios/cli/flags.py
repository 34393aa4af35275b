"""Flags that several verbs share, each described once; and what they print with."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from scenarios.runs.progress import Progress

Scenario = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="A path, or the name of a shipped one (batchlab list scenarios).")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=VALUE", help="Change a key of the scenario; may be given several times."),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="The scenario's seed.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The folder to write to.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no notes on stderr.")]


def overrides(set_: list[str] | None, seed: int | None) -> list[str]:
    """What --set and --seed change; --seed is the last word."""
    return [*(set_ or []), *([] if seed is None else [f"seed={seed}"])]


class Console:
    """Results go to stdout; what is said by the way goes to stderr, or nowhere with --quiet."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet

    def out(self, text: str) -> None:
        """A result: text that ends with a newline."""
        typer.echo(text, nl=False)

    def note(self, text: str) -> None:
        """Something by the way, in a line."""
        if not self.quiet:
            print(text.rstrip("\n"), file=sys.stderr, flush=True)

    def notes(self, texts: Iterable[str]) -> None:
        """Several, one a line; those that are warnings say so themselves."""
        for text in texts:
            self.note(text if "warning: " in text else f"note: {text}")

    @contextmanager
    def timed(self) -> Iterator[Timed]:
        """Progress of what is simulated inside."""
        timed = Timed(self)
        try:
            yield timed
        finally:
            timed.close()


class Timed:
    """Progress of one simulation after the other, and how long all of them took."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._requests = 0
        self._started_s = time.monotonic()

    def progress(self, label: str, total: int) -> Callable[[int], None]:
        """A simulation of `total` requests begins; the answer is to be told how many have ended."""
        self.close()
        self._requests += total
        if self._console.quiet:
            return _silent
        self._bar = Progress(label, total)
        return self._bar

    def simulated(self) -> None:
        """All have run."""
        self.close()
        seconds = time.monotonic() - self._started_s
        noun = "request" if self._requests == 1 else "requests"
        self._console.note(f"simulated {self._requests:,} {noun} in {seconds:.1f} s")

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _silent(finished: int) -> None:
    del finished
