"""Sessions of a trace: which answer a request follows, and how long after it.

A format whose rows are turns of conversations, or calls of agents, hands each to `Turns`, which remembers the last turn
of every session: about 200 bytes a session for as long as the file is read.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scenarios.traces.rows import plural


class _Turn(NamedTuple):
    number: int
    request_id: str
    arrival_ns: int
    end_ns: int | None  # when its answer ended, as recorded


@dataclass(slots=True)
class Turns:
    """The sessions seen so far, by name, and counts for the remarks."""

    _last: dict[str, _Turn] = field(default_factory=dict)
    _untimed: int = 0
    _bounds: int = 0
    _anew: int = 0

    def turn(
        self,
        session: str,
        arrival_ns: int | None = None,
        wait_ns: int | None = None,
        took_ns: int | None = None,
        request_id: str | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """The arrival of the session's next request in nanoseconds, and the native columns that say what it follows.

        `arrival_ns` is its recorded time, `wait_ns` the recorded time since the answer before it, `took_ns` how long
        its own answer took; None where the trace does not say. Without a recorded time a request arrives as though
        the answers before it had taken none. Without a recorded wait the gap between the two requests stands for it,
        less the answer's time where that is known.
        """
        last = self._last.get(session)
        number = 0 if last is None else last.number + 1
        name = f"{session}/{number}" if request_id is None else request_id
        extra: dict[str, Any] = {"request_id": name, "session_id": session}
        if last is None:
            arrival = arrival_ns or 0
        elif arrival_ns is not None and arrival_ns < last.arrival_ns:
            arrival = arrival_ns  # time went back: the session begins anew
            self._anew += 1
        else:
            arrival, delay = self._following(last, arrival_ns, wait_ns)
            extra |= {"after_request_id": last.request_id, "delay_s": delay / 1e9}
        self._last[session] = _Turn(number, name, arrival, None if took_ns is None else arrival + took_ns)
        return arrival, extra

    def _following(self, last: _Turn, arrival_ns: int | None, wait_ns: int | None) -> tuple[int, int]:
        if arrival_ns is None:
            self._untimed += 1
            return last.arrival_ns + (wait_ns or 0), wait_ns or 0
        if wait_ns is not None:
            return arrival_ns, wait_ns
        self._bounds += last.end_ns is None
        return arrival_ns, max(0, arrival_ns - (last.arrival_ns if last.end_ns is None else last.end_ns))

    def remarks(self) -> list[str]:
        """Return the notes about the sessions, once the rows have been read."""
        notes = []
        if self._untimed:
            what = "without a time of its own arrives" if self._untimed == 1 else "without times of their own arrive"
            notes.append(f"{plural(self._untimed, 'turn')} {what} as if the answers before them took no time")
        if self._bounds:
            notes.append(
                f"{plural(self._bounds, 'delay')} after the answer before not recorded: the gap between the two"
                " requests is taken instead, which includes the answer's time"
            )
        if self._anew:
            notes.append(
                f"{plural(self._anew, 'turn')} recorded before the turn that it follows: a new session starts there"
            )
        return notes
