"""Splitwise's perf_model.csv: static batches on whole servers, milliseconds: steps, not kernels.

A row is a batch that is prefilled at once (prompt_time) and decodes token_size tokens (token_time each, on average):
so it is two rows of steps, the decode with the mean context of its run.
"""

from pathlib import Path

import numpy as np

from calibration.rows import KernelRows, gpu_name, make_table, model_name, read_csv
from simulator.errors import InputError

COLUMNS = (
    "model", "hardware", "prompt_size", "batch_size", "token_size", "prompt_time", "token_time", "tensor_parallel",
)  # fmt: skip


def read_splitwise(path: Path, model: str = "", gpu: str = "", tensor_parallel: int = 1) -> KernelRows:
    """Read the steps of one model, GPU and parallelism, by batchlab's names. InputError where there are none."""
    columns = read_csv(path, COLUMNS)
    models = np.array([model_name(str(name)) for name in columns["model"]])
    gpus = np.array([gpu_name(str(name)) if "cap" not in str(name) else "" for name in columns["hardware"]])
    here = (columns["tensor_parallel"] == tensor_parallel) & (models == model) & (gpus == gpu)
    if not here.any():
        all_of_them = zip(models, gpus, columns["tensor_parallel"], strict=True)
        known = sorted({f"{m} on {g} with tensor_parallel {t:g}" for m, g, t in all_of_them if m and g})
        what = f"no rows of {model or '(no --model)'} on {gpu or '(no --gpu)'} with tensor_parallel {tensor_parallel}"
        raise InputError(what, file=str(path), hint=f"there are: {'; '.join(known)}")
    batch, prompt, tokens = (columns[name][here] for name in ("batch_size", "prompt_size", "token_size"))
    nothing = np.zeros(len(batch))
    context = prompt + (tokens + 1.0) / 2.0
    steps = {
        "decode_seqs": (nothing, batch),
        "decode_context": (nothing, batch * context),
        "prefill_seqs": (batch, nothing),
        "prefill_tokens": (batch * prompt, nothing),
        "prefill_context": (batch * prompt, nothing),
        "prefill_pairs": (batch * prompt * (prompt + 1.0) / 2.0, nothing),
        "decode_longest": (nothing, context),
        "decode_squares": (nothing, batch * context**2),
        "prefill_longest": (prompt, nothing),
        "us": (columns["prompt_time"][here] * 1e3, columns["token_time"][here] * 1e3),
    }
    table = make_table("step", {name: np.concatenate(parts) for name, parts in steps.items()})
    return KernelRows(
        gpu=gpu, model=model, tensor_parallel=tensor_parallel, software="not stated", tables={"step": table}
    )
