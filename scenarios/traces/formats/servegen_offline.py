"""ServeGen's offline statistics: JSON Lines with the lengths of a batch, without arrival times.

`hash_ids` name blocks of 16 tokens. `duration` (ms) is how long the request took when it was measured, and not read.
Rows of image statistics have no output_length: see `zero_output`.
"""

from typing import Any

from scenarios.traces.format import Head, OpenTrace, Signature, TraceFormat
from scenarios.traces.rows import Row, integers, json_object, tokens, word

BLOCK_SIZE = 16


def _open(head: Head) -> OpenTrace:
    answer = head.answer

    def parse(text: str) -> Row:
        fields = json_object(text)
        extra: dict[str, Any] = {}
        if fields.get("request_id") is not None:
            extra["request_id"] = word(fields["request_id"], "request_id")
        if fields.get("type") is not None:
            extra["class"] = word(fields["type"], "type")
        if fields.get("hash_ids"):
            extra |= {"block_hashes": integers(fields["hash_ids"], "hash_ids"), "hash_block_size": BLOCK_SIZE}
        inputs = tokens(fields.get("input_length"), "input_length")
        return 0.0, inputs, answer(fields.get("output_length"), "output_length"), extra

    return OpenTrace(head.rows, parse, "run", timed=False)


FORMAT = TraceFormat(
    name="servegen-offline",
    title="ServeGen offline statistics (no arrival times)",
    open=_open,
    json=(
        Signature(("request_id", "input_length", "duration"), lacks=("timestamp",)),
        Signature(("request_id", "input_length", "hash_ids", "img_ids"), lacks=("timestamp",)),
    ),
    times="it has no arrival times",
    also="lengths of a batch",
)
