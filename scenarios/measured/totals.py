"""The totals that a tool wrote beside its requests, compared with these: a file may hold only a sample of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scenarios.traces.rows import plural

_ALIKE = 0.001  # relative: tools round, and count tokens again


@dataclass(frozen=True, slots=True)
class Totals:
    """What the tool itself counted of the served requests; None where its file does not say.

    `requests` with an answer, their prompt tokens, and their output tokens. `keeps_all` is what makes the tool write
    every request.
    """

    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    keeps_all: str = ""

    def kept_of(self, rows: int) -> int | None:
        """Return how many requests were served, where the file holds fewer rows of them; else None."""
        return self.requests if self.requests is not None and self.requests > rows else None

    def notes(self, rows: int, input_tokens: int, output_tokens: int) -> list[str]:
        """Say what differs between these totals and the sums over the file's rows."""
        if (served := self.kept_of(rows)) is not None:
            how = f"; {self.keeps_all}" if self.keeps_all else ""
            return [
                f"warning: the file keeps {rows:,} of {plural(served, 'served request')}, a sample: its latencies are"
                f" compared as a distribution, its arrivals are not the traffic, and its rates are scaled by"
                f" {served / rows:.3g}{how}"
            ]
        found = []
        for name, total, added in (
            ("requests", self.requests, rows),
            ("prompt tokens", self.input_tokens, input_tokens),
            ("output tokens", self.output_tokens, output_tokens),
        ):
            if total is not None and abs(total - added) > _ALIKE * max(total, added):
                found.append(f"warning: the file counts {total:,} {name}, and its rows add up to {added:,}")
        return found


def whole(fields: object, *path: str) -> int | None:
    """Return the whole number under these keys of a JSON document; None where there is none."""
    for key in path:
        fields = fields.get(key) if isinstance(fields, Mapping) else None
    value: Any = fields
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
