"""What engines measure of themselves, as rows of whole steps: a reader a file, all of one form (`reader.Reader`).

A file is known by what it holds, not by its name. `READERS` has them in the order in which they are asked.
"""

from calibration.engines import forward_bench, forward_passes, iteration_log, scrapes, serve_bench
from calibration.engines.reader import Reader

READERS: tuple[Reader, ...] = (
    forward_bench.READER, serve_bench.READER, forward_passes.READER, iteration_log.READER, scrapes.READER,
)  # fmt: skip

__all__ = ["READERS", "Reader"]
