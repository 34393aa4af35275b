"""The JSON of `vllm bench serve --save-result --save-detailed` (vLLM 0.33.0, vllm/benchmarks/serve.py).

The same fields in the same order, so that whatever reads a measured result reads a simulated one. Lists have an entry
a request in the order sent; a request without an answer has an error and no tokens. The clock begins at 0 and there is
no date: `date` is that of second 0. `request_rate` and `burstiness` (1 / CV² of the gaps between arrivals) are those of
the requests that came. Figures over requests are those of summary.json.
"""

from typing import Any

import numpy as np

from reports.exports.exported_run import Exported, ExportFormat, write_json
from simulator.metrics.latency import token_times_s
from simulator.results.records import Floats, Status

FILE = "vllm-bench.json"
_STATISTICS = ("mean", "median", "std", "p50", "p90", "p95", "p99")
_LEAST_CV = 1e-3  # of arrivals as regular as a clock
_KEYS = [f"{statistic}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for statistic in _STATISTICS]


def result(run: Exported) -> dict[str, Any]:
    """The document."""
    requests, summary = run.records.requests, run.summary
    tokens = dict(token_times_s(run.records))
    order = run.in_order_sent()
    rate, burstiness = _traffic(requests.arrival_s)
    return {
        "date": "19700101-000000",
        "endpoint_type": "batchlab",
        "backend": "batchlab",
        "label": run.label,
        "model_id": run.model,
        "tokenizer_id": run.model,
        "num_prompts": len(order),
        "request_rate": rate,
        "burstiness": burstiness,
        "max_concurrency": None,
        "duration": summary["duration"],
        "completed": summary["completed"],
        "failed": int((requests.status != Status.FINISHED).sum()),
        **{name: summary[name] for name in ("total_input_tokens", "total_output_tokens", "request_throughput")},
        **{name: summary[name] for name in ("request_goodput", "output_throughput", "total_token_throughput")},
        "input_lens": requests.input_tokens[order].tolist(),
        "output_lens": [int(requests.output_tokens[row]) if row in tokens else 0 for row in order],
        "ttfts": [_since(run, row, tokens[row][0]) if row in tokens else 0.0 for row in order],
        "itls": [_rounded(np.diff(tokens[row])) if row in tokens else [] for row in order],
        "latencies": [_since(run, row, tokens[row][-1]) if row in tokens else 0.0 for row in order],
        "start_times": _rounded(requests.arrival_s[order]),
        "queue_times": [0.0] * len(order),
        "generated_texts": [""] * len(order),
        "errors": [run.failure(row) for row in order],
        **_peaks(run, tokens),
        "rtfx": 0.0,
        **{key: summary[key] or 0.0 for key in _KEYS},  # what is undefined is 0 there
    }


def _since(run: Exported, row: int, time_s: float) -> float:
    return round(float(time_s - run.records.requests.arrival_s[row]), 9)


def _rounded(seconds: Floats) -> list[float]:
    """To nanoseconds, which is what a client's clock counts: half the size of the file."""
    found: list[float] = np.round(seconds, 9).tolist()
    return found


def _traffic(arrival_s: Floats) -> tuple[float | str, float]:
    """Requests a second and burstiness; "inf", as vLLM writes it, where all came at once."""
    gaps = np.diff(np.sort(arrival_s))
    mean = float(gaps.mean()) if len(gaps) else 0.0
    if not mean:
        return "inf", 1.0
    return 1.0 / mean, 1.0 / max(float(gaps.std()) / mean, _LEAST_CV) ** 2


def _peaks(run: Exported, tokens: dict[int, Floats]) -> dict[str, Any]:
    """The most tokens, and the most requests under way, in a second; seconds count from the first request answered."""
    if not tokens:
        return {"max_output_tokens_per_s": 0.0, "max_concurrent_requests": 0}
    rows = list(tokens)
    arrival_s = run.records.requests.arrival_s[rows]
    start_s = float(arrival_s.min())
    came = np.concatenate([tokens[row] for row in rows])
    by_second = np.bincount((came - start_s).astype(np.int64))
    first = (arrival_s - start_s).astype(np.int64)
    last = (np.array([tokens[row][-1] for row in rows]) - start_s).astype(np.int64)
    change = np.bincount(first, minlength=int(last.max()) + 2) - np.bincount(last + 1, minlength=int(last.max()) + 2)
    return {"max_output_tokens_per_s": float(by_second.max()), "max_concurrent_requests": int(np.cumsum(change).max())}


FORMAT = ExportFormat(
    title="whatever reads a result of `vllm bench serve`",
    note="every field of `vllm bench serve --save-result --save-detailed`, so `batchlab validate` reads it too",
    files=(FILE,),
    write=lambda run, folder: write_json(folder / FILE, result(run)),
)
