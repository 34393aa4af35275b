"""Mooncake's traces: JSON Lines with timestamp (ms), input_length, output_length and hash_ids.

`hash_ids` name the prompt's blocks of 512 tokens, the last one perhaps partial; equal ids mean equal content up to
and including that block. GuideLLM's trace_synthetic has the same keys without hash_ids, and seconds.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from scenarios.traces.format import UNIT_NS, Head, OpenTrace, Signature, Source, TimeUnit, TraceFormat
from scenarios.traces.rows import Row, RowError, integers, json_object, split_csv, ticks_ns, tokens, word
from simulator.errors import InputError

AGENTIC = ("wait_for", "branches", "prefix_reset", "tool_wait_ms")
"""Keys of Dynamo's agentic layout, which has Mooncake's besides."""

LENGTHS = ("timestamp", "input_length", "output_length")
MS_STEP = 50
"""Whole stamps whose usual step is at least this are milliseconds."""


def _open(head: Head) -> OpenTrace:
    return open_as(head, *_unit(head))


def open_as(head: Head, time_unit: TimeUnit, note: str | None, name: str = "mooncake") -> OpenTrace:
    """The rows of a file in this layout whose timestamps count in `time_unit`."""
    unit_ns, answer = UNIT_NS[time_unit], head.answer

    def parse(text: str) -> Row:
        fields = json_object(text)
        if "delay" in fields and fields.get("timestamp") is None:
            raise RowError("no timestamp but a delay: a turn of a session (format: aiperf)")
        return (
            ticks_ns(fields.get("timestamp"), "timestamp", unit_ns),
            tokens(fields.get("input_length"), "input_length"),
            answer(fields.get("output_length"), "output_length"),
            _extra(fields),
        )

    return OpenTrace(head.rows, parse, "ticks", time_unit, name, note)


def given_unit(head: Head) -> tuple[TimeUnit, str] | None:
    """The unit that the reader was given, and the note about it; None where it was not."""
    return None if head.time_unit is None else (head.time_unit, f"timestamps read as {head.time_unit}, as asked for")


def _unit(head: Head) -> tuple[TimeUnit, str | None]:
    if (given := given_unit(head)) is not None:
        return given
    if head.asked:
        return "ms", None
    stamps = sampled_stamps(head, "timestamp")
    if any(stamp != int(stamp) for stamp in stamps):
        raise InputError(
            "hash_ids mark a Mooncake trace, whose timestamps are whole milliseconds, but these have fractions",
            file=head.file,
            line=head.sample[0][0],
            hint="give time_unit (--time-unit): s or ms",
        )
    step = usual_step(stamps)
    if step is None or step >= MS_STEP:
        return "ms", None
    return "ms", f"timestamps read as ms, though the usual step is {step:g}: if they are seconds, give time_unit: s"


def sampled_stamps(head: Head, key: str) -> list[float]:
    """The finite numbers under `key` in the sampled lines; what is wrong with others is said when they are read."""
    stamps: list[float] = []
    place = head.positions.get(key)
    for _, text in head.sample:
        try:
            value: Any = json_object(text).get(key) if place is None else split_csv(text)[place]
            stamps.append(float(value))
        except (RowError, TypeError, ValueError, OverflowError, IndexError):
            continue
    return [stamp for stamp in stamps if stamp - stamp == 0.0]


def usual_step(stamps: Sequence[float]) -> float | None:
    """The median of the steps between different stamps; None where all are equal."""
    steps = [abs(b - a) for a, b in pairwise(stamps) if b != a]
    return median(steps) if steps else None


def _extra(fields: dict[str, Any]) -> dict[str, Any] | None:
    extra: dict[str, Any] = {}
    hashes = fields.get("hash_ids")
    if hashes is not None:
        extra["block_hashes"] = integers(hashes, "hash_ids")
    session = fields.get("session_id")
    if session is not None:
        extra["session_id"] = word(session, "session_id")
    return extra or None


_RAW = "https://raw.githubusercontent.com/kvcache-ai/Mooncake/main/FAST25-release/traces"
_CITE = "Qin et al., Mooncake, FAST 2025"

FORMAT = TraceFormat(
    name="mooncake",
    title="Mooncake's traces",
    open=_open,
    json=(Signature((*LENGTHS, "hash_ids"), lacks=("chat_id", "session_id", *AGENTIC)),),
    json_if_asked=(Signature(LENGTHS),),
    times="timestamp is a number of milliseconds",
    also="`hash_ids` of 512 tokens, or of the size that their numbers fit",
    units=("s", "ms", "us", "ns"),
    sources=(
        Source(
            "conversation_trace.jsonl",
            "an hour of Kimi's chat with block hashes; arrivals in ticks of 3 s (see jitter_s)",
            f"{_RAW}/conversation_trace.jsonl",
            "Apache-2.0",
            "12,031",
            "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
            _CITE,
        ),
        Source(
            "synthetic_trace.jsonl",
            "requests put together from public data sets, with block hashes",
            f"{_RAW}/synthetic_trace.jsonl",
            "Apache-2.0",
            cite=_CITE,
        ),
    ),
)
