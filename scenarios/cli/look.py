"""`batchlab list`, `batchlab kv`: what comes with batchlab, and what fits."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from scenarios.cli.flags import Json


class What(StrEnum):
    """The kinds of things that can be listed."""

    POLICIES = "policies"
    SCENARIOS = "scenarios"
    MODELS = "models"
    GPUS = "gpus"
    PROFILES = "profiles"
    PRESETS = "presets"


def list_(what: Annotated[What, typer.Argument(help="What to list.")]) -> None:
    """List what comes with batchlab, a line each."""
    from reports.tables.terminal import terminal_of
    from scenarios.cli.listing import LISTINGS

    rows = LISTINGS[what.value]()
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if not rows:
        typer.echo(f"no {what.value} come with this version", err=True)
    terminal = terminal_of(sys.stdout)
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        typer.echo(terminal.folded(line, widths[0] + 2))


def kv(
    model: Annotated[
        str, typer.Option("--model", metavar="M", help="A model (batchlab list models), or a config.json.")
    ],
    gpu: Annotated[str, typer.Option("--gpu", metavar="G", help="A GPU (batchlab list gpus).")],
    tensor_parallel: Annotated[
        int, typer.Option("--tensor-parallel", metavar="N", min=1, help="GPUs per replica.")
    ] = 1,
    context: Annotated[
        int | None, typer.Option("--context", metavar="L", min=1, help="Tokens of a request; default: a table.")
    ] = None,
    gpu_memory_utilization: Annotated[
        float,
        typer.Option(
            "--gpu-memory-utilization", metavar="X", help="The share of the GPU's memory that the server takes."
        ),
    ] = 0.9,
    block_size: Annotated[int, typer.Option("--block-size", metavar="N", min=1, help="Tokens in a block.")] = 16,
    max_num_batched_tokens: Annotated[
        int,
        typer.Option(
            "--max-num-batched-tokens", metavar="N", min=1, help="Tokens of a step; they size the activations."
        ),
    ] = 2048,
    json: Json = False,
) -> None:
    """Count the requests that fit into KV memory.

    Shows where the GPU's memory goes, the KV bytes of a token, the blocks, and the requests that fit at the same time.
    """
    from scenarios.runs.storage.run_folder import to_json
    from simulator.hardware.gpus import find_gpu
    from simulator.hardware.kv import MemorySettings, kv_figures, kv_table
    from simulator.hardware.model_config import named_model

    sizes = tensor_parallel, gpu_memory_utilization, block_size, max_num_batched_tokens
    figures = kv_figures(MemorySettings(named_model(model), find_gpu(gpu), *sizes), context)
    typer.echo(to_json(figures) if json else kv_table(figures) + "\n", nl=False)
