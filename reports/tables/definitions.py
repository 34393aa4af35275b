"""The definitions of the metrics that a report shows, and the names that other tools have for them."""

from reports.tables.request_tables import TableRows
from reports.verdict.shown_metrics import COLUMNS
from simulator.metrics.latency import LATENCIES
from simulator.metrics.table import METRICS

LEGEND = (
    "Of a request: t0 arrival, tq first time scheduled, t1 first output token, tn last output token, n output tokens. "
    "Duration: first arrival to last token of the measured requests. Percentiles are linear (numpy.percentile), over "
    "finished requests."
)

_LATENCY_KEYS = tuple(key for key in METRICS if key.endswith(tuple(f"_{name}_ms" for name in LATENCIES)))
SHOWN = tuple(METRICS[key] for key in METRICS if key in COLUMNS and key not in _LATENCY_KEYS)

METRICS_TABLE = TableRows(
    ("metric", "definition", "to know"),
    (
        *((each.title, each.definition, f"{each.words}; {each.remark}") for each in LATENCIES.values()),
        *((metric.title, metric.definition, metric.remark) for metric in SHOWN),
    ),
    3,
)

OTHER_TOOLS = TableRows(
    ("elsewhere", "what it is", "here"),
    (
        ("vLLM bench serve", "TTFT, TPOT, ITL, E2EL, goodput", "the same names and definitions"),
        ("AIPerf: ITL", "(tn - t1) / (n - 1) of each request", "TPOT"),
        ("AIPerf: ICL", "gaps between neighbouring tokens", "ITL"),
        ("GuideLLM: ITL", "(tn - t1) / (n - 1), weighted by n - 1", "TPOT weighted by n - 1, the mean of ITL"),
        ("GuideLLM: TPOT", "(tn - t0) / n", "none: it includes the TTFT"),
    ),
    3,
)
