# Modules that setup.py compiles where that is asked for.
COMPILED = ("adapters", "ahead", "connected", "connector", "drafts", "groups", "imports", "pipeline")
