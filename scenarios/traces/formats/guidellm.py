"""GuideLLM's trace_synthetic as JSON Lines: Mooncake's keys without hash_ids, timestamps in seconds.

The keys alone do not tell it from a Mooncake trace without hashes, so the timestamps have to: fractions are seconds,
whole numbers in steps of `MS_STEP` and more are milliseconds, anything else is refused.
"""

from scenarios.traces.format import Head, OpenTrace, Signature, TimeUnit, TraceFormat
from scenarios.traces.formats.mooncake import AGENTIC, LENGTHS, MS_STEP, given_unit, open_as, sampled_stamps, usual_step
from simulator.errors import InputError


def _open(head: Head) -> OpenTrace:
    unit, note = stamps_unit(head)
    return open_as(head, unit, note, "mooncake" if unit == "ms" else "guidellm")


def stamps_unit(head: Head) -> tuple[TimeUnit, str | None]:
    """Return the unit of the timestamps of a file without hashes, and a note. Raises InputError in doubt."""
    if (given := given_unit(head)) is not None:
        return given
    if head.asked:
        return "s", None
    stamps = sampled_stamps(head, "timestamp")
    if any(stamp != int(stamp) for stamp in stamps):
        return "s", "no hash_ids, and timestamps with fractions: read as seconds (GuideLLM's layout)"
    step = usual_step(stamps)
    if step is None and head.whole:
        return "ms", "every timestamp is the same, so their unit does not matter"
    if step is None or step < MS_STEP:
        raise InputError(
            "timestamps without hash_ids may be ms (Mooncake) or s (GuideLLM), and these whole numbers "
            + (f"with a usual step of {step:g} " if step is not None else "")
            + "do not show which",
            file=head.file,
            line=head.sample[0][0],
            hint="give time_unit (--time-unit): s or ms",
        )
    return "ms", f"no hash_ids, and whole timestamps with a usual step of {step:g}: read as ms (Mooncake's layout)"


FORMAT = TraceFormat(
    name="guidellm",
    title="GuideLLM trace_synthetic",
    open=_open,
    json=(Signature(LENGTHS, lacks=("chat_id", "hash_ids", "session_id", *AGENTIC)),),
    json_if_asked=(Signature(LENGTHS),),
    times="timestamp is a number of seconds",
    also="times may be milliseconds, by their steps",
    units=("s", "ms", "us", "ns"),
)
