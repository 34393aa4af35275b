"""`vllm bench forward --output-json FILE` (vLLM 0.33 and later): exact batches, timed as CUDA graphs.

A list of cases with their requests (`query_len`, and `kv_len` after the step) and `median_us`. The time is of the
model's layers: head, sampler and host are not in it (vllm/benchmarks/forward/main.py). Requests that verify drafts are
left out.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from calibration.engines.reader import KERNELS, Reader, Step, json_of, step_of


def _is_it(text: str) -> bool:
    held = json_of(text) if text.lstrip().startswith("[") else None
    return isinstance(held, list) and bool(held) and isinstance(held[0], dict) and {"case", "median_us"} <= set(held[0])


def _steps(text: str) -> Iterator[Step]:
    for case in json_of(text):
        requests = case["requests"]
        if any(each["num_draft_tokens"] for each in requests):
            continue
        yield step_of(*_parts(requests), us=float(case["median_us"]))


def _parts(requests: list[dict[str, Any]]) -> tuple[Any, Any, Any]:
    query, kv = (np.array([each[name] for each in requests], dtype=float) for name in ("query_len", "kv_len"))
    decodes = (query == 1) & (kv > 1)
    return kv[decodes], query[~decodes], kv[~decodes]


READER = Reader("vllm-forward", "vllm bench forward", KERNELS, 0.01, _is_it, _steps, is_padded=False)
