"""`batchlab export`."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.cli.flags import Console, Out, Overwrite, Quiet
from simulator.errors import InputError
from simulator.parameters import names_in

if TYPE_CHECKING:
    from reports.exports.exported_run import Exported, ExportFormat

FORMATS = names_in("reports.exports.formats")  # the files there: --help imports none of them


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The folder of a run.")],
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", metavar="FORMAT", help=f"One of {', '.join(FORMATS)}; repeatable. Else perfetto."),
    ] = None,
    out: Out = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Write a run in the formats of other tools.

    The export comes from the rows of the folder; nothing is simulated. The files go to --out, else into the folder
    itself; docs/run-folder.md names them. With --log-decisions, the Perfetto trace also shows each prompt chunk.
    """
    from reports.exports.exported_run import export_files
    from scenarios.runs.storage.output import kind_of, output
    from scenarios.runs.storage.run_folder import single_run

    console = Console(quiet=quiet)
    chosen = _chosen(formats or ["perfetto"])
    exported = _read(single_run(run, "export"))
    target = out or run
    own = kind_of(target) is not None or any((target / name).is_file() for name in export_files())
    owned = [name for form in chosen for name in form.files]
    with output(target, overwrite=overwrite, expected={} if own else None, owned=owned) as folder:
        for form in chosen:
            form.write(exported, folder)
        written = sorted(path.name for path in folder.iterdir())
    for name in written:
        console.out(f"{target / name}  {_size((target / name).stat().st_size)}\n")


def _chosen(names: list[str]) -> list[ExportFormat]:
    """Return the formats of these names. Raises InputError for an unknown name, and where a package is missing."""
    from reports.exports.exported_run import export_formats
    from scenarios.schema.source.hints import did_you_mean

    formats = export_formats()
    for name in names:
        if name not in formats:
            raise InputError(f"no export format is called {name!r}", hint=did_you_mean(name, list(formats)))
    chosen = {name: formats[name] for name in names}
    for name, form in chosen.items():
        if form.package and find_spec(form.package) is None:
            raise InputError(f"the format {name} needs {form.package}", hint=f"pip install 'batchlab[{form.extra}]'")
    return list(chosen.values())


def _read(folder: Path) -> Exported:
    from reports.exports.exported_run import Exported
    from scenarios.assembly.engines import policies_label
    from scenarios.runs.storage.run_folder import DECISIONS, SCENARIO, read_decisions, read_run, run_tables
    from scenarios.schema.loader import load

    saved = read_run(folder)
    scenario = load(folder / SCENARIO, check_files=False)
    tables = run_tables(saved.records, scenario.measure.window(saved.records))

    return Exported(
        policies_label(scenario),
        saved.summary,
        saved.records,
        {name.partition(".")[0]: table for name, table in tables.items()},
        scenario.resolve_model().max_model_len,
        scenario.engine.enable_prefix_caching,
        partial(read_decisions, folder / DECISIONS) if (folder / DECISIONS).is_file() else None,
    )


def _size(count: int) -> str:
    """Return a number of bytes in kB or MB."""
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"
