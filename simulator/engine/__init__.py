# Modules that setup.py compiles where that is asked for.
COMPILED = (
    "aborts",
    "cache_apply",
    "completion",
    "decode_batch",
    "in_flight",
    "intake",
    "itemized",
    "itemized_apply",
    "itemized_results",
    "itemized_step",
    "late_fills",
    "late_results",
    "loop",
    "replica",
    "state",
    "view",
)
