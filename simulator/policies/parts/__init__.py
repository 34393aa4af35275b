# Modules that setup.py compiles where that is asked for.
COMPILED = ("free_blocks", "plans")
