"""`batchlab calibrate measure | import | fit | tables | check | ask`: from kernels to a profile, or to tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from scenarios.cli.flags import Console, Json, Out, Overwrite, OverwriteFile, Quiet, Set

if TYPE_CHECKING:
    from calibration.own_steps import Belief, OwnFit
    from calibration.rows import KernelRows, Rejected
    from simulator.hardware.gpus import Gpu
    from simulator.hardware.models import Model as Model_


# `batchlab calibrate measure`: the rows of a profile, measured on the device at hand.

Device = Annotated[str, typer.Option("--device", metavar="cuda|cpu", help="The device to run on.")]
Layers = Annotated[int | None, typer.Option("--layers", min=1, metavar="N", help="Only the model's first N layers.")]


def measure(
    device: Device = "cpu",
    model: Annotated[str | None, typer.Option("--model", metavar="M", help="A model (batchlab list models).")] = None,
    scenario: Annotated[
        str | None,
        typer.Option("--scenario", metavar="SCENARIO", help="Take model, block size and limits from a scenario."),
    ] = None,
    set_: Set = None,
    layers: Layers = None,
    max_num_seqs: Annotated[
        int | None, typer.Option("--max-num-seqs", min=1, metavar="N", help="The largest batch.")
    ] = None,
    max_context: Annotated[
        int | None, typer.Option("--max-context", min=16, metavar="N", help="The longest context.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option("--max-num-batched-tokens", min=16, metavar="N", help="The largest step.")
    ] = None,
    gpu: Annotated[str, typer.Option("--gpu", metavar="G", help="The GPU's name in batchlab list gpus.")] = "",
    steps_only: Annotated[
        bool, typer.Option("--steps-only", help="Measure whole steps only, and no single kernels.")
    ] = False,
    out: Out = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Measure the step times of a model on this machine.

    Writes rows.jsonl.gz, which `batchlab calibrate fit` reads, and measured.json, which says on what it was measured
    and how steady that was, to --out, else to runs/measured-MODEL-DEVICE. An earlier measurement there is an error,
    unless --overwrite is given.
    """
    from gpu_backend import require_torch
    from scenarios.runs.storage.output import check_output, default_folder
    from scenarios.schema.loader import load
    from simulator.errors import InputError
    from simulator.hardware.model_config import named_model
    from simulator.parameters import check_choice

    check_choice(device, ("cuda", "cpu"), "device")
    if (model is None) == (scenario is None):
        raise InputError("no model is given", hint="--model M (batchlab list models) or --scenario S")
    if set_ and scenario is None:
        raise InputError("--set changes a key of a scenario, and none is given", hint="--scenario S")
    require_torch(device)
    console = Console(quiet=quiet)
    from gpu_backend.session import MEASURED, ROWS, measure_into

    chosen = None if scenario is None else load(scenario, set_ or [])
    dimensions = chosen.resolve_model() if chosen is not None else named_model(model or "")
    layered = f"layers={layers}" if layers else ""
    whole = "steps" if steps_only else ""
    target = out or default_folder("measured", scenario or dimensions.name, device, layered, whole, changed=set_ or [])
    measured = (target / ROWS).exists()  # without rows, what is there is the log of a device that was not steady
    check_output(target, overwrite=overwrite or not measured, expected=None)
    if chosen is not None:  # a limit that is not given is the scenario's
        value = chosen.engine.parameter
        max_num_seqs = max_num_seqs or value("max_num_seqs")
        max_context = max_context or dimensions.max_model_len
        max_num_batched_tokens = max_num_batched_tokens or value("max_num_batched_tokens")
    measure_into(
        target,
        dimensions,
        device,
        layers=layers,
        limits=(max_num_seqs, max_context, max_num_batched_tokens),
        block_size=16 if chosen is None else chosen.engine.block_size,
        gpu=gpu,
        steps_only=steps_only,
        say=console.note,
    )
    console.out(f"rows: {target / ROWS}\nmeasured on: {target / MEASURED}\n")


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
    from calibration.fit import write_document
    from calibration.own_steps import scope_of
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
    from calibration.sources import find_source
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
    from calibration.fit import check_profile, check_tables
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

    from calibration.rows import merge, reject_impossible
    from calibration.sources import read_source
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
    from calibration.rows import model_of
    from simulator.errors import InputError

    if not text:
        raise InputError("the rows do not name their model", hint="--model M (batchlab list models)")
    return model_of(text)


def _is_same(name: str, model: Model_) -> bool:
    """Return whether a name means the model, or one of the same shapes."""
    from simulator.hardware.models import MODELS
    from simulator.timing.profile.profile_schema import shapes

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
    from calibration.fit import write_document
    from calibration.own_steps import fit_steps, read_step_log
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


# `batchlab calibrate ask`, and `calibrate fit` of what an engine measured of itself.

MOST_TOKENS = 8192  # of a step that is asked for
LOAD = 64.0  # the load (`traits_of`) by whose runs a prediction's error is taken
UTILISATION = 0.9


@dataclass(frozen=True, slots=True)
class Before:
    """What is believed of a model's steps on a GPU before they are measured, and why."""

    belief: Belief
    model: Model_
    gpu: Gpu
    why: str
    most_keys: float


def before(model: str, gpu: str, tensor_parallel: int, policy: str) -> Before:
    """Return the belief by kernel tables where there are some, else by the roofline. InputError for what cannot be."""
    from calibration.own_steps import believe
    from scenarios.assembly.fleet_parts import build_fleet
    from scenarios.prediction.prediction import basis_of, step_factors
    from scenarios.schema.loader import load
    from simulator.errors import InputError
    from simulator.metrics.summary import TPOT

    def built(kind: str) -> Any:
        scenario = load({
            "name": "before", "model": _model_value(model), "cost": {"kind": kind},
            "hardware": {"gpu": gpu, "tensor_parallel": tensor_parallel}, "host": {"step_s": 0, "per_seq_s": 0},
            "engine": {"policy": policy}, "workload": {"requests": 1, "classes": [_CLASS]},
        })  # fmt: skip
        return scenario, build_fleet(scenario)

    try:
        scenario, fleet = built("profile")
    except InputError:
        scenario, fleet = built("roofline")
    basis = basis_of(fleet)
    assert basis is not None
    low, high = step_factors(scenario, basis, LOAD, _LEVEL)[TPOT]
    resolved, device = scenario.resolve_model(), scenario.resolve_gpu()
    left = UTILISATION * device.memory_bytes - resolved.weight_bytes(tensor_parallel)
    most_keys = left / resolved.kv_bytes_per_token(tensor_parallel)
    belief = believe(fleet[0].parts.cost.step_s, math.log(high / low) / (2.0 * _TIMES), MOST_TOKENS, most_keys)
    return Before(belief, resolved, device, basis.why, most_keys)


_CLASS = {"name": "all", "arrival": {"process": "poisson", "rate": 1}, "input": {"dist": "fixed", "value": 1},
          "output": {"dist": "fixed", "value": 1}}  # fmt: skip
_LEVEL, _TIMES = 0.9, 1.645


def _model_value(text: str) -> Any:
    """Return the model as a scenario has it: a name, a path or a mapping."""
    from calibration.rows import model_name

    if text.lstrip().startswith("{"):
        import yaml

        return yaml.safe_load(text)
    return model_name(text) or text


def fit_own(rows: KernelRows, model: str, gpu: str, name: str) -> OwnFit:
    """Fit a profile to what an engine measured of itself."""
    from calibration.own_steps import fit_own_steps

    known = before(model, gpu, rows.tensor_parallel, "sglang" if "SGLang" in rows.software else "vllm")
    return fit_own_steps(rows, known.belief, known.model, known.gpu, name)


def ask(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model: its name, config.json or dimensions.")],
    gpu: Annotated[str, typer.Argument(metavar="GPU", help="A GPU (batchlab list gpus).")],
    tensor_parallel: Annotated[
        int, typer.Option("--tensor-parallel", metavar="N", min=1, help="GPUs per replica.")
    ] = 1,
    engine: Annotated[
        Literal["vllm", "sglang"], typer.Option("--engine", metavar="vllm|sglang", help="The engine that is there.")
    ] = "vllm",
    json: Json = False,
) -> None:
    """Say which few shapes to measure, as commands: those that make the prediction's interval narrowest.

    Before the first measurement the interval is that of predictions for real servers.
    """
    from calibration.engines import READERS
    from calibration.own_steps import ask as choose
    from calibration.own_steps import candidates
    from scenarios.runs.storage.run_folder import to_json

    known = before(model, gpu, tensor_parallel, engine)
    reader = next(each for each in READERS if each.name == {"vllm": "vllm-forward", "sglang": "sglang-passes"}[engine])
    shapes = candidates(MOST_TOKENS, known.most_keys, known.model.max_model_len or MOST_TOKENS)
    if engine == "sglang":
        shapes = [each for each in shapes if not (each.seqs and each.chunks) and not each.cached]
    asked = choose(known.belief, shapes, reader.noise, MOST_TOKENS, known.most_keys)
    make = _vllm if engine == "vllm" else _sglang
    commands = [*make(asked.shapes, model, known.model, tensor_parallel), _fit(model, gpu, tensor_parallel, engine)]
    told = {"now": asked.now, "after": asked.after, "with_all": asked.with_all}
    if json:
        held = {"shapes": [each.case() for each in asked.shapes], "interval_width": told, "commands": commands}
        typer.echo(to_json({**held, "before": known.why}), nl=False)
        return
    typer.echo(f"now: {known.why}; 90 % of steps lie in an interval whose ends are {asked.now:.2f} times apart")
    typer.echo(
        f"with these {len(asked.shapes)} shapes: {asked.after:.2f} times; with all {len(shapes)}: {asked.with_all:.2f}"
    )
    for command in commands:
        typer.echo(f"\n{command}")


def _repository(model: str, resolved: Model_) -> str:
    from simulator.hardware.models import HUGGING_FACE

    return model if "/" in model else HUGGING_FACE.get(resolved.name, model)


def _vllm(shapes: Any, model: str, resolved: Model_, ranks: int) -> list[str]:
    start = "vllm" if ranks == 1 else f"torchrun --nproc-per-node={ranks} -m vllm.entrypoints.cli.main"
    lines = [f"{start} bench forward --model {_repository(model, resolved)} --tensor-parallel-size {ranks}"]
    lines += [f"  --case {each.case()}" for each in shapes]
    return [" \\\n".join([*lines, "  --kv-len-jitter 0 --output-json measured.json"])]


def _sglang(shapes: Any, model: str, resolved: Model_, ranks: int) -> list[str]:
    name = _repository(model, resolved)
    serve = f"python -m sglang.launch_server --model-path {name} --tp {ranks} --disable-radix-cache \\\n"
    serve += f"  --enable-forward-pass-metrics --forward-pass-metrics-ipc-name ipc://{_SOCKET}"
    found = [serve, _RECORD]
    for each in shapes:
        users, prompt, answer = (each.seqs, each.context, 32) if each.seqs else (each.chunks, each.tokens, 2)
        found.append(
            f"python -m sglang.bench_serving --dataset-name random --random-range-ratio 1 --num-prompts {2 * users} "
            f"--max-concurrency {users} \\\n  --random-input-len {max(1, prompt - answer // 2)} "
            f"--random-output-len {answer}"
        )
    return found


_SOCKET = "passes"
_RECORD = f"""python -c "import zmq, msgspec; from sglang.srt.observability.forward_pass_metrics import decode
s = zmq.Context().socket(zmq.SUB); s.connect('ipc://{_SOCKET}.0'); s.subscribe(b'')
f = open('measured.jsonl', 'wb', 0)
while True: f.write(msgspec.json.encode(decode(s.recv_multipart()[2])) + b'\\n')" &"""


def _fit(model: str, gpu: str, ranks: int, engine: str) -> str:
    file = "measured.json" if engine == "vllm" else "measured.jsonl"
    return f"batchlab calibrate fit {file} --model {model} --gpu {gpu} --tensor-parallel {ranks} --out my-profile.json"
