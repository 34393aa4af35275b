"""The profiles that come with batchlab: the source of each, and how to fit it again.

The tables are not in the repository. Each entry names a folder of one of the public sources, as they are laid out
below `root`: `llmservingsim_profiles/`, `aiconfigurator_kernels/`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibration.fit import fit_profile, write_document
from calibration.heldout import held_out
from calibration.rows import KernelRows, reject_impossible
from calibration.sources import AICONFIGURATOR, read_aiconfigurator, read_llmservingsim
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import find_model

LLMSERVINGSIM = {
    "source": "casys-kaist/LLMServingSim",
    "commit": "5daddb21a545658d5150b535712d0494584b5278",
    "licence": "MIT",
}


@dataclass(frozen=True, slots=True)
class Shipped:
    """One profile: model, GPU, parallelism, and the folder of its kernels."""

    model: str
    gpu: str
    tensor_parallel: int
    source: str
    folder: str

    @property
    def name(self) -> str:
        tail = f"-tp{self.tensor_parallel}" if self.tensor_parallel > 1 else ""
        return f"{self.gpu}-{self.model}{tail}"


_H100, _H200, _A100 = "h100_sxm/vllm_0.19.0", "h200_sxm/vllm_0.18.0", "a100_sxm/vllm_0.14.0"
_PRO, _META, _QWEN = "RTXPRO6000", "meta-llama/Llama-3.1-8B/bf16", "Qwen/Qwen3-32B/bf16"

SHIPPED = (
    Shipped("llama-3.1-8b", "rtx-pro-6000", 1, "llmservingsim", f"{_PRO}/{_META}"),
    Shipped("llama-3.1-8b", "rtx-pro-6000", 2, "llmservingsim", f"{_PRO}/{_META}"),
    Shipped("llama-3.1-8b", "rtx-4090", 1, "llmservingsim", f"RTX4090/{_META}"),
    Shipped("qwen3-32b", "rtx-pro-6000", 1, "llmservingsim", f"{_PRO}/{_QWEN}"),
    Shipped("qwen3-32b", "rtx-pro-6000", 2, "llmservingsim", f"{_PRO}/{_QWEN}"),
    Shipped("qwen3-30b-a3b", "rtx-pro-6000", 1, "llmservingsim", f"{_PRO}/Qwen/Qwen3-30B-A3B-Instruct-2507/bf16"),
    *(
        Shipped("llama-3.1-8b", gpu, 1, "aiconfigurator", folder)
        for gpu, folder in (("h100", _H100), ("h200", _H200), ("a100-80gb", _A100))
    ),
    *(
        Shipped("qwen3-32b", gpu, ranks, "aiconfigurator", folder)
        for gpu, folder in (("h100", _H100), ("h200", _H200))
        for ranks in (1, 2, 4, 8)
    ),
    *(Shipped(model, "h100", 4, "aiconfigurator", _H100) for model in ("llama-2-70b", "llama-3.1-70b")),
)


def measured_together() -> Iterator[tuple[Shipped, int, int]]:
    """The shipped profiles whose source measured prompts and decodes in one kernel; query and KV heads of a GPU."""
    for entry in SHIPPED:
        if entry.source == "llmservingsim":
            model = find_model(entry.model)
            yield entry, model.heads // entry.tensor_parallel, model.local_kv_heads(entry.tensor_parallel)


def kernels_folder(entry: Shipped, root: Path) -> Path:
    """The folder of a shipped profile's kernels."""
    return root / f"{entry.source}_{'profiles' if entry.source == 'llmservingsim' else 'kernels'}" / entry.folder


def read_shipped(entry: Shipped, root: Path) -> KernelRows:
    """The rows that a shipped profile is fitted from."""
    if entry.source == "llmservingsim":
        rows = read_llmservingsim(kernels_folder(entry, root), entry.tensor_parallel)
        source = {**LLMSERVINGSIM, "path": f"profiler/perf/{entry.folder}/tp{entry.tensor_parallel}"}
        return replace(rows, sources=(source,))
    rows = read_aiconfigurator(kernels_folder(entry, root), find_model(entry.model), entry.tensor_parallel)
    source = {**AICONFIGURATOR, "path": f"aic-core/src/aiconfigurator_core/systems/data/{entry.folder}"}
    return replace(rows, sources=({**source, "cache": "cold (calibration/cold.py)"},))


def fit_shipped(entry: Shipped, root: Path) -> dict[str, Any]:
    """A shipped profile, fitted and tested."""
    model, gpu = find_model(entry.model), find_gpu(entry.gpu)
    rows, rejected = reject_impossible(read_shipped(entry, root), gpu, model)
    document = fit_profile(rows, model, gpu, entry.name)
    document["rejected"] = [part.document() for part in rejected]
    document["errors"] = held_out(rows, model, gpu)
    return document


def make(root: Path, folder: Path, name: str) -> Path | None:
    """Fit a shipped profile again, into `folder / "profiles"`; None where its source is not below `root`."""
    entry = next(each for each in SHIPPED if each.name == name)
    if not kernels_folder(entry, root).is_dir():
        return None
    path = folder / "profiles" / f"{name}.json"
    write_document(fit_shipped(entry, root), path)
    return path


NAMES = tuple(entry.name for entry in SHIPPED)
