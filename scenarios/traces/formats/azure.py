"""Azure's public LLM traces of 2023, 2024 and 2025: TIMESTAMP (a date-time), ContextTokens, GeneratedTokens.

The multimodal one counts the images of a request, too (NumImages), whose tokens are among ContextTokens.

The years differ in how they write a date-time: 7 fractional digits and no offset; 6 digits, or none, and "+00:00";
"T", 3 digits and "Z". Widths may mix within a file.
"""

from collections.abc import Sequence

from scenarios.traces.format import (
    Head,
    OpenTrace,
    PlainRows,
    Signature,
    Source,
    TraceFormat,
    counts,
    fields_of,
    stamps_ns,
)
from scenarios.traces.rows import Row, Stamps, count, csv_fields, tokens

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def _open(head: Head) -> OpenTrace:
    when, context, generated = (head.positions[name] for name in COLUMNS)
    images = head.positions.get("NumImages")
    width, answer = len(head.names), head.answer
    stamps = Stamps()
    parse_stamp = stamps.parse

    def parse(text: str) -> Row:
        fields = csv_fields(text, width)
        return (
            parse_stamp(fields[when]),
            tokens(fields[context], "ContextTokens"),
            answer(fields[generated], "GeneratedTokens"),
            None if images is None else {"num_images": count(fields[images], "NumImages")},
        )

    def parse_plain(texts: Sequence[str]) -> PlainRows | None:
        fields = fields_of(texts, width)
        if fields is None or (inputs := counts(fields[context])) is None or (got := counts(fields[generated])) is None:
            return None
        offset = next((each for each in ("Z", "+00:00") if fields[when][0].endswith(each)), "")
        arrivals = stamps_ns(fields[when], offset)
        if arrivals is None:
            return None
        stamps.count(len(texts), bool(offset))
        return PlainRows(arrivals, inputs, got)

    plain = parse_plain if images is None else None
    return OpenTrace(head.rows, parse, "utc", remarks=stamps.remarks, parse_plain=plain)


_RAW = "https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data"
_BLOB = "https://azurepublicdatasettraces.blob.core.windows.net/azurellminfererencetrace"  # spelt like this
_SPLITWISE = "Patel et al., Splitwise, ISCA 2024"
_DYNAMO = "Stojkovic et al., DynamoLLM, arXiv 2408.00741"

FORMAT = TraceFormat(
    name="azure",
    title="Azure's LLM inference traces",
    open=_open,
    csv=(Signature(COLUMNS),),
    columns=(*COLUMNS, "NumImages"),
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
