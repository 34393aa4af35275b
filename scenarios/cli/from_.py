"""`batchlab from`: a scenario of the server that somebody has."""

from pathlib import Path
from typing import Annotated

import typer

from scenarios.cli.flags import Console, Given, Json, OverwriteFile, Quiet, Set
from simulator.errors import InputError


def from_(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="A server's command line in quotes, a file (a YAML of flags, compose, Kubernetes, Helm values, the log"
            " of a start, a scrape), or http://HOST:PORT. What the first leaves open, the next may say.",
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the scenario to this file.")] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME", help="The GPU, which a command does not say.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Your traffic; default: a placeholder.")
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option("--measured", metavar="FILE", help="The server's per-request log: validate the scenario at once."),
    ] = None,
    server: Annotated[str | None, typer.Option("--server", metavar="NAME", help="Which of several servers.")] = None,
    set_: Set = None,
    overwrite: OverwriteFile = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn a server's flags into a scenario.

    Each key says where it was taken from. Notes say by name what has no effect here, what is not modelled, and what is
    unknown. With --measured, `validate` runs on the result, with the arrivals and lengths of the log unless --trace
    gives others.
    """
    from scenarios.from_server import make
    from scenarios.runs.storage.run_folder import to_json
    from scenarios.servers.sources import choose, read_source
    from simulator.hardware.gpus import find_gpu

    console = Console(quiet=quiet)
    if gpu is not None:
        find_gpu(gpu)
    if measured is not None and out is None:
        raise InputError("--measured needs --out", hint="the file of the scenario that is validated")
    chosen = [choose(read_source(each), server if place == 0 else None) for place, each in enumerate(source)]
    found = make([start for start, _ in chosen], gpu=gpu, trace=trace, overrides=set_ or [])
    text = found.text()
    if out is not None:
        _write(out, text, overwrite=overwrite)
    console.notes([*(note for _, notes in chosen for note in notes), *found.all_notes()])
    if json and measured is None:
        console.out(to_json(found.to_json()))
    elif out is None:
        console.out(text)
    elif not json:
        console.out(f"{out}: run it with\n  batchlab run {out if out.is_absolute() else f'./{out}'}\n")
    if measured is not None:
        from scenarios.cli.validate import validate

        validate(str(out), measured, replay=trace is None, given=Given(overwrite=overwrite, json=json, quiet=quiet))


def _write(path: Path, text: str, *, overwrite: bool) -> None:
    try:
        with path.open("w" if overwrite else "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{path} exists already", hint="--overwrite replaces it") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
