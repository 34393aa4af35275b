"""What the report's numbers mean, and what other tools call them."""

from __future__ import annotations

from reports.tables import TableRows

LEGEND = (
    "Of a request: t0 arrival, tq first time scheduled, t1 first output token, tn last output token, n output tokens. "
    "Duration: first arrival to last token of the measured requests. Percentiles are linear (numpy.percentile), over "
    "finished requests."
)

METRICS = TableRows(
    ("metric", "definition", "to know"),
    (
        ("TTFT", "t1 - t0", "time to first token, waiting included"),
        (
            "TPOT",
            "(tn - t1) / (n - 1)",
            "time per output token; left out for n = 1, and where a batch hands all tokens over at once; there it "
            "counts as 0 in goodput",
        ),
        ("ITL", "gaps between neighbouring tokens", "pooled over requests: each gap is one sample"),
        ("E2E", "tn - t0", "end-to-end latency; without streaming, tn is when the batch returns"),
        ("queue time", "tq - t0", "waits after a preemption are apart"),
        ("throughput", "completed / duration", "output: output tokens / duration"),
        ("goodput", "requests within every SLO / duration", ""),
        ("within SLO", "requests within every SLO / requests", "rejected and unfinished requests count as misses"),
        ("batch full", "running requests / max_num_seqs, mean over time", "batch_occupancy in summary.json"),
        ("KV peak", "used / usable KV blocks, at the fullest moment", "kv_utilization_peak"),
        ("preemptions", "times a running request lost its place", "its KV is thrown away or moved to the host"),
        ("padding", "padded / computed tokens", "padding_fraction"),
        ("wasted slots", "slot-steps held by finished requests / all slot-steps", "wasted_slot_fraction"),
        ("saturated", "the queue grew as long as requests came", "such a run has no steady state to take means of"),
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
