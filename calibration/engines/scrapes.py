"""Scrapes of a vLLM server's `/metrics`, one after the other in a file: the mean step between each two.

    while sleep 30; do curl -s localhost:8000/metrics; done > scrapes.txt

A step of decodes takes the mean time between two tokens. The histogram of tokens an iteration counts the steps, the
counters of tokens say what they computed, and finished requests how long prompts and answers are. A single scrape is
the mean since the server started.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise

from calibration.engines.reader import WHOLE, Reader, Step, mean_step

_SAMPLE = re.compile(r"^vllm:(\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_MARK = "vllm:iteration_tokens_total_count"
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


def _steps(text: str) -> Iterator[Step]:
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


READER = Reader("vllm-metrics", "vLLM /metrics", WHOLE, 0.1, lambda text: _MARK in text, _steps)
