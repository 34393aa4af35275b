"""The version of batchlab: the one place, which the distribution's metadata is built from."""

__version__ = "1.0.0"
