"""The sources of public traces: none is shipped, each is fetched from its source."""

import re

from scenarios.traces.format import Source
from scenarios.traces.formats import trace_formats


def public_traces() -> tuple[tuple[str, Source], ...]:
    """Each public trace with the name of its format, in the order of the formats."""
    return tuple((name, source) for name, each in trace_formats().items() for source in each.sources)


def where_from() -> str:
    """A text for a person: each public trace that can be read, its address, licence and checksum."""
    lines = [
        "Public traces that batchlab reads without conversion, plain or gzipped. None is shipped: fetch a file from",
        "its address, for instance with curl -LO. Checksums are of the plain files.",
    ]
    for name, source in public_traces():
        lines += [
            "",
            source.file,
            f"  what      {source.what}",
            f"  address   {source.address}",
            f"  licence   {source.licence}" + (f"; cite {source.cite}" if source.cite else ""),
            f"  format    {name}" + (f", {source.rows} rows" if source.rows else ""),
        ]
        if source.sha256 is not None:
            lines.append(f"  sha256    {source.sha256}")
    return "\n".join(lines) + "\n"


def public_source_hint(file: str) -> str | None:
    """Return how to get a missing file that is called like a public trace, gzipped or not; None for any other name."""
    wanted = _plain(file)
    for _, source in public_traces():
        if wanted in (_plain(source.file), f"mooncake{_plain(source.file)}"):
            return (
                f"{source.file} is public, not shipped ({source.licence}): curl -LO {source.address}"
                " (batchlab trace sources lists them all)"
            )
    return None


def _plain(name: str) -> str:
    """A name without `.gz`, case and marks between its words."""
    return re.sub(r"[\W_]+", "", name.casefold().removesuffix(".gz"))
