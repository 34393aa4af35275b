"""`batchlab list`, `batchlab kv`, `batchlab trace inspect`: what there is, and what fits."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from scenarios.cli.flags import Json


class What(StrEnum):
    """What can be listed."""

    POLICIES = "policies"
    SCENARIOS = "scenarios"
    MODELS = "models"
    GPUS = "gpus"
    PROFILES = "profiles"


def list_(what: Annotated[What, typer.Argument(help="What to list.")]) -> None:
    """Print what there is, a line each."""
    from scenarios.cli.listing import LISTINGS

    rows = LISTINGS[what.value]()
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if not rows:
        typer.echo(f"no {what.value} come with this version", err=True)
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def kv(
    model: Annotated[
        str, typer.Option("--model", metavar="M", help="A model (batchlab list models), or a config.json.")
    ],
    gpu: Annotated[str, typer.Option("--gpu", metavar="G", help="A GPU (batchlab list gpus).")],
    tensor_parallel: Annotated[int, typer.Option("--tensor-parallel", metavar="N", min=1, help="GPUs a replica.")] = 1,
    context: Annotated[
        int | None, typer.Option("--context", metavar="L", min=1, help="Tokens of a request; default: a table.")
    ] = None,
    gpu_memory_utilization: Annotated[
        float, typer.Option("--gpu-memory-utilization", metavar="X", help="The server's share of the memory.")
    ] = 0.9,
    block_size: Annotated[int, typer.Option("--block-size", metavar="N", min=1, help="Tokens in a block.")] = 16,
    max_num_batched_tokens: Annotated[
        int, typer.Option("--max-num-batched-tokens", metavar="N", min=1, help="Sizes the activations.")
    ] = 2048,
    json: Json = False,
) -> None:
    """How many requests fit into KV memory.

    Where the GPU's memory goes, bytes of KV a token, blocks, and requests that fit at the same time.
    """
    from scenarios.runs.storage.run_folder import to_json
    from simulator.hardware.gpus import find_gpu
    from simulator.hardware.kv import kv_figures, kv_table
    from simulator.hardware.model_config import named_model

    figures = kv_figures(
        named_model(model),
        find_gpu(gpu),
        tensor_parallel,
        context,
        gpu_memory_utilization,
        block_size,
        max_num_batched_tokens,
    )
    typer.echo(to_json(figures) if json else kv_table(figures) + "\n", nl=False)


def trace_inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace, gzipped or not.")],
    format_: Annotated[str, typer.Option("--format", metavar="F", help="The format, where it is not clear.")] = "auto",
    time_unit: Annotated[
        str | None, typer.Option("--time-unit", metavar="s|ms|us|ns", help="The unit of bare time stamps.")
    ] = None,
    json: Json = False,
) -> None:
    """Say what a trace holds.

    Its format, rates, burstiness, lengths and their tails, and the rows that cannot be used.
    """
    from dataclasses import asdict, replace

    from scenarios.runs.storage.run_folder import to_json
    from scenarios.traces.inspect import facts_table, inspect_trace
    from scenarios.traces.options import TraceOptions

    options = TraceOptions(format=format_)
    if time_unit is not None:
        options = replace(options, time_unit=time_unit)  # type: ignore[arg-type] # checked there
    facts = inspect_trace(file, options)
    typer.echo(to_json(asdict(facts)) if json else facts_table(facts), nl=False)
