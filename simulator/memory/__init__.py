# Modules that setup.py compiles where that is asked for.
COMPILED = ("block_keys", "free_runs", "group_tables", "grouped", "ledger")
