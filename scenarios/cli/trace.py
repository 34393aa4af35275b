"""`batchlab trace`: what a trace holds, any trace as a native one, where public ones come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scenarios.cli.flags import Console, Json, OverwriteFile, Quiet

if TYPE_CHECKING:
    from scenarios.traces.options import TraceOptions

File = Annotated[Path, typer.Argument(metavar="FILE", help="A trace, gzipped or not.")]
Format = Annotated[str, typer.Option("--format", metavar="F", help="The format, if it is not recognised.")]
TimeUnit = Annotated[
    str | None, typer.Option("--time-unit", metavar="s|ms|us|ns", help="The unit of time stamps without one.")
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns", metavar="NATIVE=NAME,...", help="The file's names of the native columns, for any other layout."
    ),
]
Start = Annotated[float, typer.Option("--start", metavar="S", help="Leave out what comes before, in seconds.")]
Duration = Annotated[
    float | None, typer.Option("--duration", metavar="S", help="Keep this many seconds from the start.")
]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", help="Keep at most N requests.")]
Sample = Annotated[
    float, typer.Option("--sample", metavar="X", help="Keep a request with this probability, a session as a whole.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="The seed of the sample.")]
Strict = Annotated[bool, typer.Option("--strict", help="A row that cannot be used is an error.")]
ZeroOutput = Annotated[
    str, typer.Option("--zero-output", metavar="skip|one", help="An answer without tokens: skip it, or count one.")
]


@dataclass(frozen=True, slots=True)
class Reading:
    """The flags that say how a trace is read, and which part of it."""

    format_: Format = "auto"
    time_unit: TimeUnit = None
    columns: Columns = None
    start: Start = 0.0
    duration: Duration = None
    limit: Limit = None
    sample: Sample = 1.0
    seed: Seed = 0
    strict: Strict = False
    zero_output: ZeroOutput = "skip"

    def options(self) -> TraceOptions:
        """Return the options that the flags give. Raises InputError for a value out of range."""
        from scenarios.traces.options import TraceOptions
        from simulator.errors import InputError

        pairs = [part.partition("=") for part in (self.columns or "").split(",") if part]
        for native, _, name in pairs:
            if not native or not name:
                raise InputError(f"--columns: {native}{name} is not NATIVE=NAME", hint="such as arrival_time_s=when")
        given: dict[str, Any] = {
            "format": self.format_, "time_unit": self.time_unit, "start_s": self.start, "duration_s": self.duration,
            "limit": self.limit, "sample": self.sample, "seed": self.seed, "strict": self.strict,
            "zero_output": self.zero_output,
        }  # fmt: skip
        return TraceOptions(columns={native.strip(): name.strip() for native, _, name in pairs} or None, **given)


def trace_inspect(
    file: File,
    reading: Reading,
    json: Json = False,
) -> None:
    """Describe a trace.

    Shows its format, rates, burstiness, lengths and their tails, and the rows that cannot be used.
    """
    from dataclasses import asdict

    from scenarios.runs.storage.run_folder import to_json
    from scenarios.traces.inspect import facts_table, inspect_trace

    facts = inspect_trace(file, reading.options())
    typer.echo(to_json(asdict(facts)) if json else facts_table(facts), nl=False)


def trace_convert(
    file: File,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The native trace: .csv or .jsonl, gzipped with .gz after it.")
    ],
    reading: Reading,
    overwrite: OverwriteFile = False,
    quiet: Quiet = False,
) -> None:
    """Turn a trace of any format, or a part of it, into a native one.

    Rows are streamed: the trace may be larger than memory.
    """
    from scenarios.runs.storage.output import output_file
    from scenarios.traces.convert import convert_trace, native_kind
    from simulator.errors import InputError

    native_kind(out)  # before anything is read
    options = reading.options()
    with output_file(out, overwrite=overwrite) as path:
        try:
            notes = convert_trace(file, path, options)
        except InputError as error:
            if error.file != str(path):
                raise
            raise InputError(error.message, file=str(out), hint=error.hint) from None
    console = Console(quiet=quiet)
    console.notes(notes[1:])
    console.out(f"trace: {out} ({notes[0]})\n")


def trace_sources() -> None:
    """Say where public traces come from: address, licence, checksum.

    Nothing is downloaded.
    """
    from scenarios.traces.detect import where_from

    typer.echo(where_from(), nl=False)
