"""vLLM's log with `--enable-logging-iteration-details`: a line an iteration, with its requests, tokens and time.

    Iteration(7): 1 context requests, 2048 context tokens, 3 generation requests, 3 generation tokens, iteration elapsed
    time: 46.36 ms, GPU KV cache usage: 0.9%

It says no contexts. They come from the usage of the cache times its size, which the same log has at start-up ("GPU KV
cache size: 480,000 tokens"), shared by all requests of the iteration alike; without that line nothing is known of them
and the log is refused. Iterations of a dummy batch, with images or with drafts are left out. With asynchronous
scheduling vLLM logs how long it waited for a step, which is less than the step took: `--no-async-scheduling` for this.
"""

import re
from collections.abc import Iterator

from calibration.engines.reader import WHOLE, Reader, Step
from simulator.errors import InputError

_LINE = re.compile(
    r"Iteration\(\d+\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, "
    r"(\d+) generation tokens, iteration elapsed time: ([\d.]+) ms( \(dummy\))?, \S+ KV cache usage: ([\d.]+)%(.*)"
)
_SIZE = re.compile(r"KV cache size: ([\d,]+) tokens")


def _steps(text: str) -> Iterator[Step]:
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


READER = Reader(
    "vllm-iterations", "vLLM iteration log", WHOLE, 0.05, lambda text: _LINE.search(text) is not None, _steps
)
