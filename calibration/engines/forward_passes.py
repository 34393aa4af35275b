"""SGLang's forward-pass metrics (`--enable-forward-pass-metrics`), a message a line as JSON.

SGLang sends them over ZMQ, a message a forward pass (sglang/srt/observability/forward_pass_metrics.py; Dynamo's engines
send the same). `wall_time` is the device's time in seconds. Contexts of decodes come as sum and variance.
"""

import json
from collections.abc import Iterator

from calibration.engines.reader import DEVICE, Reader, Step

_MARK = '"scheduled_requests"'


def _steps(text: str) -> Iterator[Step]:
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


READER = Reader(
    "sglang-passes", "SGLang forward-pass metrics", DEVICE, 0.02, lambda text: _MARK in text.split("\n", 1)[0], _steps
)
