"""The output length that a server may expect."""

from __future__ import annotations

from simulator.request import RequestView


def expected_output(request: RequestView) -> int:
    """Predicted output tokens where there is a prediction, else `max_tokens`."""
    predicted = request.predicted_output_tokens
    return request.max_tokens if predicted is None else predicted
