"""`batchlab calibrate measure`: the rows of a profile, measured on the device at hand."""

from typing import Annotated

import typer

from scenarios.cli.flags import Console, Out, Overwrite, Quiet, Set

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
    from gpu_backend.extra import require_torch
    from scenarios.runs.storage.folder_names import default_folder
    from scenarios.runs.storage.output import check_output
    from scenarios.schema.loader import load
    from simulator.errors import InputError
    from simulator.hardware.dimensions import check_choice
    from simulator.hardware.model_config import named_model

    check_choice(device, ("cuda", "cpu"), "device")
    if (model is None) == (scenario is None):
        raise InputError("no model is given", hint="--model M (batchlab list models) or --scenario S")
    if set_ and scenario is None:
        raise InputError("--set changes a key of a scenario, and none is given", hint="--scenario S")
    require_torch(device)
    console = Console(quiet=quiet)
    from gpu_backend.profiler import MEASURED, ROWS
    from gpu_backend.session import measure_into

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
