"""Per-request logs of real servers, written by the usual tools, read into one shape."""

from scenarios.measured.measured_run import MeasuredRun, Timeline
from scenarios.measured.read_log import read_measured, read_timeseries

__all__ = ["MeasuredRun", "Timeline", "read_measured", "read_timeseries"]
