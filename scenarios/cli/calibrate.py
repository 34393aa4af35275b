"""`batchlab calibrate import | fit | tables | check`: from measured kernels to a profile, or to tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scenarios.cli.flags import OverwriteFile, Quiet

if TYPE_CHECKING:
    from calibration.limits import Rejected
    from calibration.rows import KernelRows
    from simulator.hardware.gpus import Gpu
    from simulator.hardware.models import Model as Model_

Document = dict[str, Any]

Model = Annotated[str, typer.Option("--model", metavar="M", help="A model: its name, config.json or dimensions.")]
GpuName = Annotated[str, typer.Option("--gpu", metavar="G", help="A GPU (batchlab list gpus).")]
Ranks = Annotated[int, typer.Option("--tensor-parallel", metavar="N", min=1, help="GPUs per replica.")]


def import_(
    sources: Annotated[list[Path], typer.Argument(metavar="SOURCE...", help="Folders or files of public profiles.")],
    format_: Annotated[
        str, typer.Option("--format", metavar="F", help="A format; default: by what the file holds.")
    ] = "auto",
    model: Model = "",
    gpu: GpuName = "",
    tensor_parallel: Ranks = 1,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file of rows.")] = Path("rows.jsonl.gz"),
    overwrite: OverwriteFile = False,
    quiet: Quiet = False,
) -> None:
    """Bring public kernel tables into one format.

    Rows that are faster than the GPU can be are left out, counted and listed.
    """
    from calibration.rows import write_rows
    from scenarios.runs.storage.output import output_file

    rows, _ = _read(sources, format_, model, gpu, tensor_parallel, quiet)
    with output_file(out, overwrite=overwrite) as path:
        write_rows(rows, path)
    kinds = ", ".join(f"{len(table['us']):,} {kind}" for kind, table in rows.tables.items())
    typer.echo(f"rows: {out} ({kinds})")


def fit(
    sources: Annotated[
        list[Path] | None, typer.Argument(metavar="[ROWS...]", help="Files of rows, or what import reads.")
    ] = None,
    from_steps: Annotated[
        Path | None,
        typer.Option("--from-steps", metavar="FILE", help="A log of steps instead: tokens, contexts, milliseconds."),
    ] = None,
    model: Model = "",
    gpu: GpuName = "",
    tensor_parallel: Ranks = 1,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The profile's name.")] = "",
    held_out: Annotated[
        bool, typer.Option("--held-out/--no-held-out", help="Test it on rows that were held out.")
    ] = True,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The profile; default: NAME.json.")] = None,
    overwrite: OverwriteFile = False,
    quiet: Quiet = False,
) -> None:
    """Fit a profile, and say how far it is off on rows that were held out.

    A log of steps is a CSV with a column ms and either tokens and context, which gives `cost: {kind: linear}`, or
    decode_seqs, decode_context, prefill_tokens and, where they are known, prefill_seqs, prefill_context, prefill_pairs.

    What an engine measures of itself is known by its contents: JSON of vllm bench forward, vLLM's log with
    --enable-logging-iteration-details, SGLang's forward-pass metrics, scrapes of vLLM's /metrics, results of vllm bench
    serve or sweep. A few steps are enough: the rest stays as kernel tables say.
    """
    from calibration.document import write_document
    from calibration.own_steps import scope_of
    from scenarios.cli.calibrate_own import fit_own
    from simulator.errors import InputError

    if from_steps is not None:
        _fit_steps(from_steps, model, gpu, tensor_parallel, name, out, overwrite)
        return
    if not sources:
        raise InputError("nothing to fit", hint="give files of rows, or --from-steps FILE")
    rows, rejected = _read(sources, "auto", model, gpu, tensor_parallel, quiet)
    if scope_of(rows) is not None:
        chosen, device = _model(model or rows.model), _gpu(rows.gpu)
        name = name or f"{device.name}-{chosen.name}-measured"
        own = fit_own(rows, model or rows.model, device.name, name)
        _store("profile", own.document, out or Path(f"{name}.json"), write_document, overwrite=overwrite)
        was, now = own.before["mape"], own.held_out["mape"]
        typer.echo(f"held out: {now:.1f} % off on average, {was:.1f} % before it was measured", err=True)
        return
    if len(rows.table("step")["us"]) and not len(rows.table("attention")["us"]):
        _fit_steps(sources[0], rows.model, rows.gpu, rows.tensor_parallel, name, out, overwrite, rows)
        return
    from calibration.fit import fit_profile
    from calibration.heldout import held_out as test

    chosen, device = _model(model or rows.model), _gpu(rows.gpu)
    name = name or "-".join(part for part in (rows.gpu, rows.model) if part)
    document = fit_profile(rows, chosen, device, name)
    document["rejected"] = [part.document() for part in rejected]
    if held_out:
        document["errors"] = test(rows, chosen, device)
    _store("profile", document, out or Path(f"{name}.json"), write_document, overwrite=overwrite)


def tables(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="aiconfigurator's tables: systems/data/GPU, or GPU/vllm_VERSION.")
    ],
    gpu: GpuName = "",
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The tables' name.")] = "",
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Default: NAME.json.gz.")] = None,
    overwrite: OverwriteFile = False,
) -> None:
    """Make compact tables of a GPU's kernels: `cost: {kind: profile, path: FILE}` composes any dense model of them."""
    from calibration.sources.aiconfigurator import find_source
    from calibration.tabulate import tabulate, write_tables
    from scenarios.profiles import TABLES_SUFFIX
    from simulator.errors import InputError

    if out is not None and not out.name.endswith(TABLES_SUFFIX):
        raise InputError(f"tables are written to a name that ends in {TABLES_SUFFIX}, not {out.name}")
    document = tabulate(find_source(source), name, gpu)
    target = out or Path(f"{document['name']}{TABLES_SUFFIX}")
    _store("tables", document, target, write_tables, overwrite=overwrite)


def check(
    profile: Annotated[
        str, typer.Argument(metavar="PROFILE", help="A file, or the name of a shipped one (batchlab list profiles).")
    ],
    model: Annotated[
        str, typer.Option("--model", metavar="M", help="For tables: the source of each part of model M.")
    ] = "",
    tensor_parallel: Ranks = 1,
) -> None:
    """Read a profile or tables, say what is in them and how well it was predicted, and try a profile on a few steps."""
    from scenarios.profiles import profile_path

    _check(profile_path(profile), model, tensor_parallel)


def _check(profile: Path, model: str = "", tensor_parallel: int = 1) -> None:
    from calibration.check import check_profile, check_tables
    from scenarios.profiles import TABLES_SUFFIX
    from simulator.errors import InputError

    if profile.name.endswith(TABLES_SUFFIX):
        report = check_tables(profile, _model(model) if model else None, tensor_parallel)
    elif model:
        raise InputError("--model is for tables: a profile is of one model", hint="batchlab list profiles")
    else:
        report = check_profile(profile)
    for line in report.lines:
        typer.echo(line)
    if report.complaints:
        raise InputError(f"the profile cannot be used: {report.complaints[0]}", file=str(profile))


def _read(
    sources: list[Path], form: str, model: str, gpu: str, tensor_parallel: int, quiet: bool
) -> tuple[KernelRows, list[Rejected]]:
    """Read all sources as one, without impossible rows. Says on stderr what was left out."""
    from dataclasses import replace

    from calibration.limits import reject_impossible
    from calibration.rows import merge
    from calibration.sources.detect import read_source
    from simulator.errors import InputError
    from simulator.hardware.models import MODELS

    parts = [read_source(path, form, model, gpu, tensor_parallel) for path in sources]
    rows = merge(parts)
    chosen = _model(model) if model else None
    for path, source in zip(sources, parts, strict=True):
        if chosen is not None and source.model and not _is_same(source.model, chosen):
            what = f"these are kernels of {source.model}, and --model says {chosen.name}"
            raise InputError(what, file=str(path), hint="leave --model out, or give rows of that model")
    rows = replace(rows, model=rows.model if chosen is None else chosen.name, gpu=gpu or rows.gpu)
    known = {(part.gpu, part.tensor_parallel) for part in parts if part.gpu}
    if len(known) > 1:
        raise InputError(f"sources of different GPUs or parallelism: {sorted(known)}", hint="fit one profile for each")
    if not rows.gpu:
        return rows, []
    rows, rejected = reject_impossible(rows, _gpu(rows.gpu), chosen or MODELS.get(rows.model))
    for part in rejected:
        if not quiet:
            typer.echo(f"{part.count:,} of {part.of:,} rows of {part.kind} are faster than the GPU can be:", err=True)
            for line in part.listed:
                typer.echo(f"  {line}", err=True)
    return rows, rejected


def _model(text: str) -> Model_:
    from calibration.names import model_of
    from simulator.errors import InputError

    if not text:
        raise InputError("the rows do not name their model", hint="--model M (batchlab list models)")
    return model_of(text)


def _is_same(name: str, model: Model_) -> bool:
    """Return whether a name means the model, or one of the same shapes."""
    from simulator.hardware.models import MODELS
    from simulator.timing.profile.profile_scope import shapes

    return name == model.name or (name in MODELS and shapes(MODELS[name]) == shapes(model))


def _gpu(name: str) -> Gpu:
    from simulator.errors import InputError
    from simulator.hardware.gpus import find_gpu

    if not name:
        raise InputError("the rows do not say on which GPU they were measured", hint="--gpu G (batchlab list gpus)")
    return find_gpu(name)


def _fit_steps(
    path: Path,
    model: str,
    gpu: str,
    tensor_parallel: int,
    name: str,
    out: Path | None,
    overwrite: bool,
    rows: KernelRows | None = None,
) -> None:
    from calibration.document import write_document
    from calibration.steps import fit_steps, read_step_log
    from scenarios.runs.storage.output import output_file
    from scenarios.runs.storage.run_folder import to_json

    name = name or path.name.split(".")[0]
    fitted = fit_steps(read_step_log(path) if rows is None else rows, name, model, gpu, tensor_parallel)
    if fitted.document is not None:
        _store("profile", fitted.document, out or Path(f"{name}.json"), write_document, overwrite=overwrite)
        return
    assert fitted.linear is not None
    linear = {key: getattr(fitted.linear, key) for key in ("base_s", "per_token_s", "per_context_token_s")}
    found = fitted.errors["random"]
    typer.echo(f"cost: {{kind: linear, {', '.join(f'{key}: {value:g}' for key, value in linear.items())}}}")
    typer.echo(f"held out: MAPE {found['mape']:.1f} %, bias {found['bias']:+.1f} %, {found['rows']} steps", err=True)
    if out is not None:
        with output_file(out, overwrite=overwrite) as made:
            made.write_text(to_json({"cost": {"kind": "linear", **linear}}), encoding="utf-8")


def _store(
    what: str, document: Document, target: Path, write: Callable[[Document, Path], object], *, overwrite: bool
) -> None:
    """Write a document, check what was written, and say where it is."""
    from scenarios.runs.storage.output import output_file

    with output_file(target, overwrite=overwrite) as made:
        write(document, made)
    _check(target)
    typer.echo(f"{what}: {target}")
