"""What engines measure of themselves, as rows of whole steps: readers of one form.

A file is known by what it holds, not by its name. `READERS` has them in the order in which they are asked.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from calibration.rows import COLUMNS, KernelRows, make_table
from simulator.errors import InputError
from simulator.timing.profile.surface import Array

# The form of a reader of an engine's own measurements, and the rows of steps that all of them make.

KERNELS, DEVICE, WHOLE = "kernels", "device", "whole"
"""What a time holds: the layers alone; all that the device does in a step; the whole step, the host's part too."""
Step = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Reader:
    """A kind of file: `is_it` knows its text, `steps` reads them. InputError where it holds no step.

    `scope` is what its times hold. `noise` is by how much a time may be off for what the file does not say, as a
    fraction: contexts of single requests, or everything but means.
    """

    name: str
    tool: str
    scope: str
    noise: float
    is_it: Callable[[str], bool]
    steps: Callable[[str], Iterable[Step]]
    is_padded: bool = True

    def read(self, text: str, path: Path) -> KernelRows:
        """The rows of a file. InputError names it."""
        try:
            rows = [step for step in self.steps(text) if step["us"] > 0]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            what = f"not what {self.tool} writes: {type(error).__name__} {error}"
            raise InputError(what, file=str(path)) from None
        if not rows:
            raise InputError(f"no step in this file of {self.tool}", file=str(path))
        source: dict[str, Any] = {"tool": self.tool, "scope": self.scope, "noise": self.noise}
        if not self.is_padded:
            source["graphs"] = "none"
        table = make_table("step", {name: [row.get(name, 0.0) for row in rows] for name in COLUMNS["step"]})
        return KernelRows(gpu="", software=self.tool, sources=(source,), tables={"step": table})


def step_of(decodes: Array, queries: Array, contexts: Array, us: float) -> Step:
    """A step of decodes with these KV tokens, and of prompt chunks of these tokens that end with these KV tokens."""
    return {
        "decode_seqs": len(decodes),
        "decode_context": decodes.sum(),
        "decode_longest": decodes.max(initial=0.0),
        "decode_squares": (decodes**2).sum(),
        "prefill_seqs": len(queries),
        "prefill_tokens": queries.sum(),
        "prefill_context": contexts.sum(),
        "prefill_pairs": (queries * (contexts - queries) + queries * (queries + 1.0) / 2.0).sum(),
        "prefill_longest": contexts.max(initial=0.0),
        "us": us,
    }


def mean_step(decodes: float, context: float, prompts: float, prompt: float, us: float) -> Step:
    """The mean step of a server: so many decodes of that context, and prompts (mostly below 1) of so many tokens."""
    return {
        "decode_seqs": decodes,
        "decode_context": decodes * context,
        "prefill_seqs": prompts,
        "prefill_tokens": prompts * prompt,
        "prefill_context": prompts * prompt,
        "prefill_pairs": prompts * prompt * (prompt + 1.0) / 2.0,
        "prefill_longest": min(prompts, 1.0) * prompt,
        "us": us,
    }


def json_of(text: str) -> Any:
    """The JSON of a text; None where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return None


# `vllm bench forward --output-json FILE` (vLLM 0.33 and later): exact batches, timed as CUDA graphs.
#
# A list of cases with their requests (`query_len`, and `kv_len` after the step) and `median_us`. The time is of the
# model's layers: head, sampler and host are not in it (vllm/benchmarks/forward/main.py). Requests that verify
# drafts are left out.


def _is_forward_bench(text: str) -> bool:
    held = json_of(text) if text.lstrip().startswith("[") else None
    return isinstance(held, list) and bool(held) and isinstance(held[0], dict) and {"case", "median_us"} <= set(held[0])


def _forward_bench_steps(text: str) -> Iterator[Step]:
    for case in json_of(text):
        requests = case["requests"]
        if any(each["num_draft_tokens"] for each in requests):
            continue
        yield step_of(*_parts(requests), us=float(case["median_us"]))


def _parts(requests: list[dict[str, Any]]) -> tuple[Any, Any, Any]:
    query, kv = (np.array([each[name] for each in requests], dtype=float) for name in ("query_len", "kv_len"))
    decodes = (query == 1) & (kv > 1)
    return kv[decodes], query[~decodes], kv[~decodes]


FORWARD_BENCH = Reader(
    "vllm-forward", "vllm bench forward", KERNELS, 0.01, _is_forward_bench, _forward_bench_steps, is_padded=False
)


# Results of `vllm bench serve --save-result` and `vllm bench sweep serve`: the mean step of each run.
#
# One run is an object; a sweep's `summary.json` is a list of them, and its folder has one such file for each
# combination.

_KEYS = {"completed", "duration", "total_input_tokens", "total_output_tokens", "mean_tpot_ms"}


def _is_serve_bench(text: str) -> bool:
    held = json_of(text) if text.lstrip()[:1] in ("[", "{") else None
    runs = held if isinstance(held, list) else [held]
    return bool(runs) and all(isinstance(run, dict) and set(run) >= _KEYS for run in runs)


def _serve_bench_steps(text: str) -> Iterator[Step]:
    held = json_of(text)
    for run in held if isinstance(held, list) else [held]:
        done, seconds = float(run["completed"]), float(run["duration"])
        tpot_s = float(run["mean_tpot_ms"]) / 1e3
        if done < 1 or tpot_s <= 0:
            continue
        prompt, answer = (float(run[name]) / done for name in ("total_input_tokens", "total_output_tokens"))
        steps = seconds / tpot_s
        decodes = done * max(answer - 1.0, 0.0) / steps
        yield mean_step(decodes, prompt + answer / 2.0, done / steps, prompt, 1e6 * tpot_s)


SERVE_BENCH = Reader("vllm-serve", "vllm bench serve", WHOLE, 0.1, _is_serve_bench, _serve_bench_steps)


# SGLang's forward-pass metrics (`--enable-forward-pass-metrics`), a message a line as JSON.
#
# SGLang sends them over ZMQ, a message a forward pass (sglang/srt/observability/forward_pass_metrics.py; Dynamo's
# engines send the same). `wall_time` is the device's time in seconds. Contexts of decodes come as sum and variance.

_FORWARD_PASS = '"scheduled_requests"'


def _forward_pass_steps(text: str) -> Iterator[Step]:
    for line in text.splitlines():
        if not line.strip():
            continue
        held = json.loads(line)
        of, seconds = held["scheduled_requests"], float(held["wall_time"])
        tokens, cached, chunks = (
            float(of[name]) for name in ("sum_prefill_tokens", "sum_prefill_kv_tokens", "num_prefill_requests")
        )
        seqs, context = float(of["num_decode_requests"]), float(of["sum_decode_kv_tokens"])
        each = max(chunks, 1.0)
        mean = context / max(seqs, 1.0)
        squares = seqs * (float(of["var_decode_kv_tokens"]) + mean**2)
        yield {
            "decode_seqs": seqs,
            "decode_context": context,
            "decode_squares": squares,
            "decode_longest": mean + float(of["var_decode_kv_tokens"]) ** 0.5,
            "prefill_seqs": chunks,
            "prefill_tokens": tokens,
            "prefill_context": tokens + cached,
            "prefill_pairs": tokens * cached / each + tokens * (tokens / each + 1.0) / 2.0,
            "prefill_longest": (tokens + cached) / each,
            "us": seconds * 1e6,
        }


FORWARD_PASSES = Reader(
    "sglang-passes",
    "SGLang forward-pass metrics",
    DEVICE,
    0.02,
    lambda text: _FORWARD_PASS in text.split("\n", 1)[0],
    _forward_pass_steps,
)


# vLLM's log with `--enable-logging-iteration-details`: a line an iteration, with its requests, tokens and time.
#     Iteration(7): 1 context requests, 2048 context tokens, 3 generation requests, 3 generation tokens, iteration
#     elapsed time: 46.36 ms, GPU KV cache usage: 0.9%
#
# It says no contexts. They come from the usage of the cache times its size, which the same log has at start-up
# ("GPU KV cache size: 480,000 tokens"), shared by all requests of the iteration alike; without that line nothing is
# known of them and the log is refused. Iterations of a dummy batch, with images or with drafts are left out. With
# asynchronous scheduling vLLM logs how long it waited for a step, which is less than the step took:
# `--no-async-scheduling` for this.

_LINE = re.compile(
    r"Iteration\(\d+\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, "
    r"(\d+) generation tokens, iteration elapsed time: ([\d.]+) ms( \(dummy\))?, \S+ KV cache usage: ([\d.]+)%(.*)"
)
_SIZE = re.compile(r"KV cache size: ([\d,]+) tokens")


def _iteration_steps(text: str) -> Iterator[Step]:
    size = _SIZE.search(text)
    if size is None:
        hint = "keep the log from the server's start: its line 'GPU KV cache size: N tokens' says what usage means"
        raise InputError("the log does not say how large the KV cache is", hint=hint)
    whole = float(size[1].replace(",", ""))
    for found in _LINE.finditer(text):
        chunks, tokens, seqs, generated = (float(found[place]) for place in range(1, 5))
        if found[6] or "encoder" in found[8] or generated != seqs:
            continue
        held = max(whole * float(found[7]) / 100.0, tokens + seqs)
        # Requests at the front of their prompts hold less than decodes; which, the log does not say.
        each = held / max(chunks + seqs, 1.0)
        after = max(each * chunks, tokens)
        cached = (after - tokens) / max(chunks, 1.0)
        yield {
            "decode_seqs": seqs,
            "decode_context": max(held - after, seqs) if seqs else 0.0,
            "prefill_seqs": chunks,
            "prefill_tokens": tokens,
            "prefill_context": after if chunks else 0.0,
            "prefill_pairs": tokens * cached + tokens * (tokens / max(chunks, 1.0) + 1.0) / 2.0,
            "prefill_longest": after / max(chunks, 1.0) if chunks else 0.0,
            "us": float(found[5]) * 1e3,
        }


ITERATION_LOG = Reader(
    "vllm-iterations", "vLLM iteration log", WHOLE, 0.05, lambda text: _LINE.search(text) is not None, _iteration_steps
)


# Scrapes of a vLLM server's `/metrics`, one after the other in a file: the mean step between each two.
#     while sleep 30; do curl -s localhost:8000/metrics; done > scrapes.txt
#
# A step of decodes takes the mean time between two tokens. The histogram of tokens an iteration counts the steps,
# the counters of tokens say what they computed, and finished requests how long prompts and answers are. A single
# scrape is the mean since the server started.

_SAMPLE = re.compile(r"^vllm:(\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_SCRAPED = "vllm:iteration_tokens_total_count"
_STEPS = "iteration_tokens_total_count"
_BETWEEN = ("inter_token_latency_seconds", "time_per_output_token_seconds")
"""Times between two tokens of a request, by the name that a version has."""
_LENGTHS = ("request_prompt_tokens", "request_generation_tokens")


def _scrapes(text: str) -> Iterator[Mapping[str, float]]:
    """The samples of each scrape, engines added up; a scrape begins where the first comment comes again."""
    first = next((line for line in text.splitlines() if line.startswith("#")), "")
    parts = text.split(first) if first else [text]
    for part in parts:
        found: dict[str, float] = defaultdict(float)
        for name, value in _SAMPLE.findall(part):
            found[name] += float(value)
        if found:
            yield found


def _scraped_steps(text: str) -> Iterator[Step]:
    scrapes = list(_scrapes(text))
    for before, after in pairwise([{}, *scrapes] if len(scrapes) == 1 else scrapes):
        passed = {name: value - before.get(name, 0.0) for name, value in after.items()}
        between = next((name for name in _BETWEEN if f"{name}_sum" in passed), _BETWEEN[0])
        steps, gaps = passed[_STEPS], passed[f"{between}_count"]
        if steps <= 0 or gaps <= 0:
            continue
        prompt, answer = (after[f"{name}_sum"] / max(after[f"{name}_count"], 1.0) for name in _LENGTHS)
        computed = passed["prompt_tokens_total"] - passed.get("prefix_cache_hits_total", 0.0)
        prompts = max(computed, 0.0) / steps / max(prompt, 1.0)
        yield mean_step(gaps / steps, prompt + answer / 2.0, prompts, prompt, 1e6 * passed[f"{between}_sum"] / gaps)


SCRAPES = Reader("vllm-metrics", "vLLM /metrics", WHOLE, 0.1, lambda text: _SCRAPED in text, _scraped_steps)


READERS: tuple[Reader, ...] = (
    FORWARD_BENCH, SERVE_BENCH, FORWARD_PASSES, ITERATION_LOG, SCRAPES,
)  # fmt: skip
