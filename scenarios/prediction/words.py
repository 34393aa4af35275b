"""The interval of a prediction in a sentence."""

from collections.abc import Mapping
from typing import Any

_SHORT = {
    "mean_ttft_ms": ("mean TTFT", "ms"),
    "mean_tpot_ms": ("TPOT", "ms"),
    "mean_e2el_ms": ("E2E", "ms"),
    "request_throughput": ("throughput", "requests/s"),
    "usd_per_million_output_tokens": ("cost", "USD per million output tokens"),
}


def prediction_words(entry: Mapping[str, Any]) -> str:
    """Return where the real server lies: "with 90 %: mean TTFT 80 to 210 ms, ... (measured kernels of ...)"."""
    parts = [
        f"{_SHORT[name][0]} {_figure(ends['low'])} to {_figure(ends['high'])} {_SHORT[name][1]}"
        for name, ends in entry["metrics"].items()
    ]
    return f"{100 * entry['coverage']:g} % of similar real servers fell in {', '.join(parts)} ({entry['why']})"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
