"""The entry `prediction` of summary.json: its key, and the metrics that have an interval in it, in order."""

PREDICTION = "prediction"
TTFT, TPOT, E2E = "mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms"
THROUGHPUT, PRICE = "request_throughput", "usd_per_million_output_tokens"
PREDICTED = (TTFT, TPOT, E2E, THROUGHPUT, PRICE)
