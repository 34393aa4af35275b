"""What a server may expect of an answer's length."""

from __future__ import annotations

from simulator.request import RequestView


def expected_output(request: RequestView) -> int:
    """Predicted output tokens where somebody predicts them, else the cap that the client sent."""
    predicted = request.predicted_output_tokens
    return request.max_tokens if predicted is None else predicted
