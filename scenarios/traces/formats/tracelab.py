"""TraceLab's rounds of coding agents (Claude Code, Codex): JSON Lines, a call of the model each, with its events.

A round is asked for at its last `user_message` or `tool_result` before the model's first output, and answered at its
last output (`reasoning`, `text`, `tool_call`): so the time from one answer of a session to its next round is that of
its tools, or of a person. A round that brings a user's message begins a task. A session's prompt is taken to be the one
before and more, until it becomes shorter (the agent has compacted its context); of an answer the next prompt finds
nothing in the cache. Text that sessions share is not recorded. (uw-syfi/TraceLab, README.md, "Data format")
"""

from typing import Any

from scenarios.traces.format import Head, OpenTrace, Signature, Source, TraceFormat
from scenarios.traces.rows import Row, RowError, Stamps, Turns, json_object, tokens, word

_INPUTS, _OUTPUTS = ("user_message", "tool_result"), ("reasoning", "text", "tool_call")


class _Session:
    """How far a session has come: its tasks, its contexts, and the tokens of its last prompt."""

    __slots__ = ("contexts", "prompt", "tasks")

    def __init__(self) -> None:
        self.tasks = self.contexts = self.prompt = 0


class _Rows:
    """The parser of one file, which knows the sessions so far."""

    def __init__(self, head: Head) -> None:
        self._answer = head.answer
        self._turns = Turns()
        self._stamps = Stamps("timestamp")
        self._sessions: dict[str, _Session] = {}

    def parse(self, text: str) -> Row:
        fields = json_object(text)
        inputs = tokens(fields.get("input_tokens_total"), "input_tokens_total")
        outputs = self._answer(fields.get("output_tokens"), "output_tokens")
        asked, answered, by_user = self._times(fields.get("timing_events"))
        name = word(fields.get("session_id"), "session_id")
        session = self._sessions.setdefault(name, _Session())
        session.tasks += by_user or not session.tasks
        session.contexts += inputs < session.prompt or not session.contexts
        session.prompt = inputs
        arrival, extra = self._turns.turn(name, asked, took_ns=answered - asked)
        extra |= {
            "task_id": f"{name}:{session.tasks}",
            "prefix_group": f"{name}#{session.contexts}",
            "prefix_tokens": inputs,
        }
        if fields.get("model") is not None:
            extra["class"] = word(fields["model"], "model")
        return arrival, inputs, outputs, extra

    def _times(self, events: Any) -> tuple[int, int, bool]:
        """When the round was asked for, when it was answered, and whether it brought a user's message."""
        if type(events) is not list or not all(type(event) is dict for event in events):
            raise RowError("timing_events is not a list of events", events)
        times = [(self._stamps.parse(str(event.get("timestamp"))), event.get("event_type")) for event in events]
        ends = [at for at, kind in times if kind in _OUTPUTS]
        if not ends:
            raise RowError("timing_events has no output of the model")
        before = [(at, kind) for at, kind in times if kind in _INPUTS and at <= ends[0]]
        asked = max((at for at, _ in before), default=min(at for at, _ in times))
        return asked, max(ends), any(kind == "user_message" for _, kind in before)

    def remarks(self) -> list[str]:
        return self._turns.remarks()


def _open(head: Head) -> OpenTrace:
    rows = _Rows(head)
    return OpenTrace(head.rows, rows.parse, "utc", remarks=rows.remarks)


FORMAT = TraceFormat(
    name="tracelab",
    title="TraceLab's rounds of coding agents",
    open=_open,
    json=(Signature(("session_id", "input_tokens_total", "output_tokens", "timing_events")),),
    times="the timestamps of timing_events are date-times",
    also="sessions with the times of tools and people, tasks, contexts that grow",
    sources=(
        Source(
            "syfi_coding_trace.jsonl.gz",
            "rounds of 43 developers with Claude Code and Codex, September 2025 to June 2026",
            "https://github.com/uw-syfi/TraceLab/releases/download/v2026-06-08-syfi-trace/syfi_coding_trace.jsonl.gz",
            "CC BY 4.0",
            "357,161",
            cite="Zhu et al., TraceLab, arXiv:2606.30560, 2026",
        ),
    ),
)
