"""Azure's public LLM traces of 2023, 2024 and 2025: TIMESTAMP (a date-time), ContextTokens, GeneratedTokens.

The years differ in how they write a date-time: 7 fractional digits and no offset; 6 digits, or none, and "+00:00";
"T", 3 digits and "Z". Widths may mix within a file.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from scenarios.traces.format import Head, OpenTrace, Signature, Source, TraceFormat
from scenarios.traces.rows import Row, RowError, csv_fields, plural, tokens

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_STAMP = re.compile(
    r"\s*(\d{4}-\d\d-\d\d[ Tt]\d\d:\d\d):([0-5]\d)(?:[.,](\d+))?\s*(Z|z|[+-]\d\d(?::?\d\d)?)?\s*", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_YEAR, _LAST_YEAR = 1970, 2200  # what 64 bits of nanoseconds hold, and then some sense


class Stamps:
    """Date-times to nanoseconds since 1970; one without an offset counts as UTC. Remembers which kinds it saw.

    The zero of time is set where arrivals are put in order (`scenarios.traces.arrange`).
    """

    def __init__(self) -> None:
        self.naive = 0
        self.with_offset = 0

    def parse(self, text: str) -> int:
        match = _STAMP.fullmatch(text)
        if match is None:
            raise RowError("TIMESTAMP is missing" if not text.strip() else "TIMESTAMP is not a date-time", text)
        minute, second, fraction, offset = match.groups()
        nanoseconds = _minute_ns(minute) + int(second) * 1_000_000_000
        if fraction is not None:
            nanoseconds += int(fraction[:9].ljust(9, "0"))
        if offset is None:
            self.naive += 1
        else:
            self.with_offset += 1
            nanoseconds -= _offset_ns(offset)
        return nanoseconds

    def remarks(self) -> list[str]:
        """Return the note for a file that mixes date-times with and without an offset."""
        if self.naive and self.with_offset:
            return [f"{plural(self.naive, 'date-time')} without an offset read as UTC, like the others"]
        return []


def _open(head: Head) -> OpenTrace:
    when, context, generated = (head.positions[name] for name in COLUMNS)
    width, answer = len(head.names), head.answer
    stamps = Stamps()
    parse_stamp = stamps.parse

    def parse(text: str) -> Row:
        fields = csv_fields(text, width)
        return (
            parse_stamp(fields[when]),
            tokens(fields[context], "ContextTokens"),
            answer(fields[generated], "GeneratedTokens"),
            None,
        )

    return OpenTrace(head.rows, parse, "utc", remarks=stamps.remarks)


@lru_cache(maxsize=4096)
def _minute_ns(text: str) -> int:
    try:
        minute = datetime.strptime(text.replace("T", " ").replace("t", " "), "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
    except ValueError as error:
        raise RowError("TIMESTAMP is not a date-time", text) from error
    if not _FIRST_YEAR <= minute.year <= _LAST_YEAR:
        raise RowError(f"TIMESTAMP is not within {_FIRST_YEAR} to {_LAST_YEAR}", text)
    return (minute - _EPOCH) // timedelta(microseconds=1) * 1000


@lru_cache(maxsize=64)
def _offset_ns(text: str) -> int:
    if text in "Zz":
        return 0
    hours, minutes = int(text[1:3]), int(text[3:].lstrip(":") or 0)
    if hours > 23 or minutes > 59:
        raise RowError("TIMESTAMP has an impossible offset", text)
    seconds = hours * 3600 + minutes * 60
    return (-seconds if text[0] == "-" else seconds) * 1_000_000_000


_RAW = "https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data"
_BLOB = "https://azurepublicdatasettraces.blob.core.windows.net/azurellminfererencetrace"  # spelt like this
_SPLITWISE = "Patel et al., Splitwise, ISCA 2024"
_DYNAMO = "Stojkovic et al., DynamoLLM, arXiv 2408.00741"

FORMAT = TraceFormat(
    name="azure",
    title="Azure's LLM inference traces",
    open=_open,
    csv=(Signature(COLUMNS),),
    columns=COLUMNS,
    times="TIMESTAMP is a date-time",
    sources=(
        Source(
            "AzureLLMInferenceTrace_conv.csv",
            "an hour of a chat service, November 2023",
            f"{_RAW}/AzureLLMInferenceTrace_conv.csv",
            "CC-BY-4.0",
            "19,366",
            "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
            _SPLITWISE,
        ),
        Source(
            "AzureLLMInferenceTrace_code.csv",
            "an hour of a code-completion service, November 2023: bursts and long silences",
            f"{_RAW}/AzureLLMInferenceTrace_code.csv",
            "CC-BY-4.0",
            "8,819",
            "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
            _SPLITWISE,
        ),
        Source(
            "AzureLLMInferenceTrace_conv_1week.csv",
            "a week of a chat service, May 2024",
            f"{_BLOB}/AzureLLMInferenceTrace_conv_1week.csv",
            "CC-BY-4.0",
            "27.3 million",
            cite=_DYNAMO,
        ),
        Source(
            "AzureLLMInferenceTrace_code_1week.csv",
            "a week of a code-completion service, May 2024",
            f"{_BLOB}/AzureLLMInferenceTrace_code_1week.csv",
            "CC-BY-4.0",
            "16.8 million",
            cite=_DYNAMO,
        ),
        Source(
            "AzureLMMInferenceTrace_multimodal.csv.gz",
            "a multimodal service, October 2024; image tokens are among ContextTokens",
            f"{_RAW}/AzureLMMInferenceTrace_multimodal.csv.gz",
            "CC-BY-4.0",
            cite="Qiu et al., ModServe, SoCC 2025",
        ),
    ),
)
