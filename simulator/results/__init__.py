# Modules that setup.py compiles where that is asked for.
COMPILED = ("buffers", "recorder")
