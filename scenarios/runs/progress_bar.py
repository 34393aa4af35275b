"""The progress of a simulation on stderr: a bar on a terminal, a line every few seconds elsewhere.

It is silent for the first two seconds, so short runs show none, and never writes to stdout.
"""

import shutil
import sys
import time
from typing import TextIO

QUIET_S = 2.0  # a run shorter than this shows no progress
BAR_EVERY_S = 0.2
LINE_EVERY_S = 5.0
WIDTH = 30


class Progress:
    """Shows the share of requests (or of `noun`) that have finished. Call it with the number so far.

    With a `total` of 0 (not known) it shows no share until a call gives one.
    """

    def __init__(self, label: str, total: int, *, noun: str = "requests", stream: TextIO | None = None) -> None:
        self.label = label
        self.noun = noun
        self.total = total
        self._stream = sys.stderr if stream is None else stream
        self._bar = self._stream.isatty()
        self._started_s = time.monotonic()
        self._next_s = self._started_s + QUIET_S
        self._width = 0

    def close(self) -> None:
        """Remove the bar; lines stay."""
        if self._bar and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0

    def __call__(self, finished: int, total: int = 0) -> None:
        self.total = total or self.total
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + (BAR_EVERY_S if self._bar else LINE_EVERY_S)
        text = self._text(finished, now_s - self._started_s)
        if self._bar:
            text = text[: shutil.get_terminal_size().columns - 1]  # a bar that wraps could not be removed
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def _text(self, finished: int, elapsed_s: float) -> str:
        if not self.total:
            return f"{self.label}: {finished:,} {self._noun(finished)}"
        share = finished / self.total
        left = f", {elapsed_s * (1 - share) / share:.0f} s left" if share > 0 else ""
        count = f"{self.label}: {finished:,} of {self.total:,} {self._noun(self.total)}, {share:.0%}{left}"
        if not self._bar:
            return count
        done = int(share * WIDTH)
        return f"[{'#' * done}{'.' * (WIDTH - done)}] {count}"

    def _noun(self, count: int) -> str:
        return self.noun.removesuffix("s") if count == 1 else self.noun
