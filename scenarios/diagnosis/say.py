"""Numbers in the sentences of findings."""

import math


def seconds(value: float) -> str:
    """A time: 12.4 ms, 3.2 s, 181 s, 12.4 min."""
    if not math.isfinite(value):
        return "-"
    if value < 1:
        return f"{1e3 * value:.3g} ms"
    return f"{value:.3g} s" if value < 600 else f"{value / 60:.1f} min"


def moment(value: float) -> str:
    """A moment of the run: 181 s, 12.4 min."""
    return f"{value:.0f} s" if value < 600 else f"{value / 60:.1f} min"


def count(value: float) -> str:
    """A number: 1,234; 12.3; 0.45."""
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"


def rounded(value: float) -> float | None:
    """Round evidence for JSON to four digits; None for what is no number."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
