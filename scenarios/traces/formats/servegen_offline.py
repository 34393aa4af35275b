"""ServeGen's offline statistics: lengths of a batch, without arrival times."""

from __future__ import annotations

from scenarios.traces.format import Signature, TraceFormat

FORMAT = TraceFormat(
    name="servegen-offline",
    title="ServeGen offline statistics (no arrival times)",
    json=(
        Signature(("request_id", "input_length", "duration"), lacks=("timestamp",)),
        Signature(("request_id", "input_length", "hash_ids", "img_ids"), lacks=("timestamp",)),
    ),
)
