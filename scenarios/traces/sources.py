"""Where the public traces come from: none is shipped, each is fetched from its source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """A public trace file. `sha256` is that of the plain file (before any gzip), where it is known."""

    file: str
    what: str
    address: str
    licence: str
    format: str
    rows: str | None = None
    sha256: str | None = None
    cite: str | None = None


_AZURE = "https://github.com/Azure/AzurePublicDataset"
_AZURE_RAW = "https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data"
_AZURE_BLOB = "https://azurepublicdatasettraces.blob.core.windows.net/azurellminfererencetrace"  # spelt like this
_MOONCAKE = "https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release"
_MOONCAKE_RAW = "https://raw.githubusercontent.com/kvcache-ai/Mooncake/main/FAST25-release/traces"
_SPLITWISE = "Patel et al., Splitwise, ISCA 2024"
_DYNAMO = "Stojkovic et al., DynamoLLM, arXiv 2408.00741"

SOURCES = (
    Source(
        "AzureLLMInferenceTrace_conv.csv",
        "an hour of a chat service, November 2023",
        f"{_AZURE_RAW}/AzureLLMInferenceTrace_conv.csv",
        "CC-BY-4.0",
        "azure",
        "19,366",
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        _SPLITWISE,
    ),
    Source(
        "AzureLLMInferenceTrace_code.csv",
        "an hour of a code-completion service, November 2023: bursts and long silences",
        f"{_AZURE_RAW}/AzureLLMInferenceTrace_code.csv",
        "CC-BY-4.0",
        "azure",
        "8,819",
        "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
        _SPLITWISE,
    ),
    Source(
        "AzureLLMInferenceTrace_conv_1week.csv",
        "a week of a chat service, May 2024",
        f"{_AZURE_BLOB}/AzureLLMInferenceTrace_conv_1week.csv",
        "CC-BY-4.0",
        "azure",
        "27.3 million",
        cite=_DYNAMO,
    ),
    Source(
        "AzureLLMInferenceTrace_code_1week.csv",
        "a week of a code-completion service, May 2024",
        f"{_AZURE_BLOB}/AzureLLMInferenceTrace_code_1week.csv",
        "CC-BY-4.0",
        "azure",
        "16.8 million",
        cite=_DYNAMO,
    ),
    Source(
        "AzureLMMInferenceTrace_multimodal.csv.gz",
        "a multimodal service, October 2024; image tokens are among ContextTokens",
        f"{_AZURE_RAW}/AzureLMMInferenceTrace_multimodal.csv.gz",
        "CC-BY-4.0",
        "azure",
        cite="Qiu et al., ModServe, SoCC 2025",
    ),
    Source(
        "conversation_trace.jsonl",
        "an hour of Kimi's chat with block hashes; arrivals in ticks of 3 s (see jitter_s)",
        f"{_MOONCAKE_RAW}/conversation_trace.jsonl",
        "Apache-2.0",
        "mooncake",
        "12,031",
        "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        "Qin et al., Mooncake, FAST 2025",
    ),
    Source(
        "synthetic_trace.jsonl",
        "requests put together from public data sets, with block hashes",
        f"{_MOONCAKE_RAW}/synthetic_trace.jsonl",
        "Apache-2.0",
        "mooncake",
        cite="Qin et al., Mooncake, FAST 2025",
    ),
)


def where_from() -> str:
    """A text for a person: each public trace that can be read, its address, licence and checksum."""
    lines = [
        "Public traces that can be read as they are (plain or gzipped). None is shipped: fetch a file from its",
        f"address, for instance with curl -LO. Azure's traces are described at {_AZURE}",
        f"and Mooncake's at {_MOONCAKE}. Checksums are of the plain files.",
    ]
    for source in SOURCES:
        lines += [
            "",
            source.file,
            f"  what      {source.what}",
            f"  address   {source.address}",
            f"  licence   {source.licence}" + (f"; cite {source.cite}" if source.cite else ""),
            f"  format    {source.format}" + (f", {source.rows} rows" if source.rows else ""),
        ]
        if source.sha256 is not None:
            lines.append(f"  sha256    {source.sha256}")
    return "\n".join(lines) + "\n"
