"""`batchlab list`, `batchlab kv`: what comes with batchlab, and what fits."""

import json
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from scenarios.cli.flags import Json, whole_number

Row = tuple[str, ...]
_KERNELS = Path(__file__).parents[1] / "prediction" / "kernels.json"
What = Literal["policies", "scenarios", "models", "gpus", "profiles", "presets", "acceptance"]


def _policies() -> list[Row]:
    """Name, the parameters it takes, what it is in a line."""
    from simulator.policies import named_policies, policy_class, policy_parameters

    rows = []
    for name in named_policies():
        cls = policy_class(name)
        rows.append((name, _first_sentence(cls.__doc__), f"[{' '.join(policy_parameters(cls))}]"))
    return [*rows, ("path.py:Class", "your own: batchlab new policy NAME", "")]


def _scenarios() -> list[Row]:
    """Name, and the first line of the file's comment."""
    from scenarios.schema.loader import header, shipped

    return [(name, _first(header(name))) for name in shipped()]


def _models() -> list[Row]:
    """Name, parameters, weights and KV bytes, longest context, and GPUs whose kernels were measured for it."""
    from simulator.hardware.models import MODELS

    measured = json.loads(_KERNELS.read_text(encoding="utf-8"))
    return [
        (
            name,
            f"{model.num_parameters / 1e9:7.2f} B parameters",
            f"{model.weight_bytes(1) / 2**30:6.1f} GiB weights",
            f"{model.kv_bytes_per_token(1) / 1024:6.1f} KiB KV per token",
            f"context {model.max_model_len:,}",
            f"kernels of {' '.join(measured[name]) or 'no GPU'}",
        )
        for name, model in MODELS.items()
    ]


def _gpus() -> list[Row]:
    """Name, memory, bandwidth, compute, price, source."""
    from simulator.hardware.gpus import GPUS

    return [
        (
            name,
            f"{gpu.memory_gib:6.1f} GiB",
            f"{gpu.bandwidth_gb_s:5.0f} GB/s",
            f"{gpu.bf16_tflops:6.0f} bf16 TFLOP/s",
            "price unknown" if gpu.usd_per_hour is None else f"{gpu.usd_per_hour:.2f} USD/h",
            gpu.source,
        )
        for name, gpu in GPUS.items()
    ]


def _profiles() -> list[Row]:
    from scenarios.profiles import all_described

    return all_described()


def _presets() -> list[Row]:
    """Name, the trace's own rate, what it is like."""
    from scenarios.schema.workload import PRESETS

    return [
        (name, "rate required" if each.rate is None else f"{each.rate:4.2f} requests/s", each.title)
        for name, each in PRESETS.items()
    ]


def _acceptance() -> list[Row]:
    """Name, mean acceptance lengths by number of drafts, model, method and source."""
    from simulator.speculative import PRESETS

    rows: list[Row] = []
    for name, each in PRESETS.items():
        lengths = [f"{1 + sum(each.rates_of(drafts)):.2f}" for drafts in range(1, each.most_drafts + 1)]
        shown = " ".join(lengths) if each.at is None else f"{each.at[1]:.2f} with {each.at[0]}"
        rows.append((name, shown, f"{each.model}, {each.method}: {each.of}"))
    return rows


_LISTINGS: Mapping[What, Callable[[], list[Row]]] = {
    "policies": _policies,
    "scenarios": _scenarios,
    "models": _models,
    "gpus": _gpus,
    "profiles": _profiles,
    "presets": _presets,
    "acceptance": _acceptance,
}


def _first_sentence(text: str | None) -> str:
    """A docstring's first paragraph up to its first full stop, in one line."""
    paragraph = " ".join((text or "").strip().split("\n\n")[0].split())
    return re.split(r"(?<=\w)\.(?:\s|$)", paragraph)[0]


def _first(comment: list[str]) -> str:
    return next((line.strip("# ").rstrip(".") for line in comment if line.strip("# ")), "")


def list_(what: Annotated[What, typer.Argument(help="What to list.")]) -> None:
    """List what comes with batchlab, a line each."""
    from reports.tables.terminal import terminal_of

    rows = _LISTINGS[what]()
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if not rows:
        typer.echo(f"no {what} come with this version", err=True)
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
    pipeline_parallel: Annotated[
        int, typer.Option("--pipeline-parallel", metavar="N", min=1, help="Stages of a replica's pipeline.")
    ] = 1,
    context: Annotated[
        int | None,
        typer.Option("--context", metavar="L", parser=whole_number, help="Tokens of a request; default: a table."),
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
    max_model_len: Annotated[
        int | None,
        typer.Option("--max-model-len", metavar="N", parser=whole_number, help="The longest context of the server."),
    ] = None,
    prefix_caching: Annotated[
        bool, typer.Option(help="Whether states of linear attention are kept for other requests.")
    ] = True,
    json: Json = False,
) -> None:
    """Count the requests that fit into KV memory.

    Shows where the GPU's memory goes, the KV bytes of a token, the blocks, and the requests that fit at the same time.
    Where a model's layers keep different things (all tokens, a window, a state), it shows the groups that vLLM makes.
    """
    from scenarios.runs.storage.run_folder import to_json
    from simulator.hardware.gpus import find_gpu
    from simulator.hardware.kv import MemorySettings, kv_figures, kv_table
    from simulator.hardware.model_config import named_model
    from simulator.hardware.stages import pipeline_figures

    sizes = tensor_parallel, gpu_memory_utilization, block_size, max_num_batched_tokens
    settings = MemorySettings(named_model(model), find_gpu(gpu), *sizes)
    how = partial(pipeline_figures, stages=pipeline_parallel) if pipeline_parallel > 1 else kv_figures
    figures = how(settings, context, max_model_len, caches=prefix_caching)
    typer.echo(to_json(figures) if json else kv_table(figures) + "\n", nl=False)
