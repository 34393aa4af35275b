"""Everything that needs a GPU, in one command of less than nine minutes: `python -m tools.campaign --out DIR`."""
