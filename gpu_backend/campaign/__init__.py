"""Everything that needs a GPU, in one command of less than nine minutes: `python -m gpu_backend.campaign --out DIR`."""
