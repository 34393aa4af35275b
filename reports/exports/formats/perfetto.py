"""The run as a Perfetto trace: Chrome's JSON, which ui.perfetto.dev and chrome://tracing open as it is.

A process a replica. In it a track of its steps (a slice a step, or a run of equal decode steps, as in steps.csv), a
track a slot (a slice a stay of a request, with its phases inside), tracks of the requests that were preempted, and
counters: running, waiting, KV blocks. Where the run logged its decisions, a prefill is cut into its chunks. A process
of the clients has an instant for each request that came. An arrow leads from a preemption to where the request goes on,
and where KV moved between replicas, from one end of the link to the other.

A request's decode is one slice, and a counter has a sample where it changes, so that an hour of traffic stays within
what a browser opens. Times are the engine's, in nanoseconds, which Chrome's JSON writes as microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reports.exports.exported_run import Event, Exported, ExportFormat, Track, Tracks
from reports.slots import Phase, Stays, assign, stays
from simulator.results.records import Floats, Records, Status

FILE = "trace.json"
_PHASES = {Phase.PREFILL: "prefill", Phase.PADDING: "padding", Phase.DECODE: "decode", Phase.HELD: "held"}


def _write(run: Exported, folder: Path) -> None:
    names = ("scenario", "policy", "model", "gpu", "replicas", "seed", "version")  # of the trace's info page
    head = {"displayTimeUnit": "ms", "otherData": {name: str(run.about[name]) for name in names}}
    with (folder / FILE).open("w", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(head, ensure_ascii=False)[:-1] + ', "traceEvents": [')
        before = "\n"
        for event in _events(run):
            file.write(before + json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
            before = ",\n"
        file.write("\n]}\n")


def _events(run: Exported) -> Iterator[Event]:
    records = run.at_engine
    tracks = Tracks()
    groups = [group.name for group in records.sizes for _ in range(group.replicas)]
    chunks = _Chunks(run) if run.decisions is not None else None
    for replica, group in enumerate(groups):
        name = f"replica {replica}" + (f" ({group})" if records.groups else "")
        process = tracks.process(name)
        yield from _steps(records, replica, tracks, process)
        yield from _slots(run, stays(records, replica), tracks, process, replica, chunks)
        yield from _preempted(run, records, replica, tracks, process)
        yield from _counters(records, replica, tracks, process)
    yield from _clients(run, records, tracks)
    yield from _transfers(run, records, tracks)
    yield from tracks.names()


def _steps(records: Records, replica: int, tracks: Tracks, process: int) -> Iterator[Event]:
    """A slice a row of the steps; its argument `steps` says how many it stands for."""
    rows = records.rows
    track = tracks.track(process, "steps")
    for row in np.flatnonzero(rows.replica == replica).tolist():
        prefilling, decoding = int(rows.prefilling[row]), int(rows.decoding[row])
        name = "decode" if not prefilling else "mixed" if decoding else "prefill"
        told = {
            "steps": int(rows.repeat[row]),
            "tokens": int(rows.tokens[row]),
            "prefill_tokens": int(rows.prefill_tokens[row]),
            "running": int(rows.running[row]),
            "context_tokens": int(rows.context_tokens[row]),
        }
        yield track.slice(name, "step", float(rows.start_s[row]), float(rows.end_s[row]), told)


def _lanes(tracks: Tracks, process: int, word: str, stay: Stays) -> list[Track]:
    """The track of each stay, in as few tracks as stays at a time need."""
    lane = assign(stay)
    lanes = [tracks.track(process, f"{word} {number}") for number in range(int(lane.max(initial=-1)) + 1)]
    return [lanes[each] for each in lane.tolist()]


def _slots(
    run: Exported, stay: Stays, tracks: Tracks, process: int, replica: int, chunks: _Chunks | None
) -> Iterator[Event]:
    """A slice a stay in a slot, and inside it its phases, or the chunks of its prefill."""
    requests, classes = run.records.requests, run.records.class_names
    lanes = _lanes(tracks, process, "slot", stay)
    last = {row: place for place, row in enumerate(stay.row.tolist())}
    seen, leaves = _moved(run.records, replica)
    bounds = {phase: stay.bounds(phase) for phase in Phase}
    for place, (row, track) in enumerate(zip(stay.row.tolist(), lanes, strict=True)):
        name = run.request_ids[row]
        told: dict[str, Any] = {"request": name}
        if requests.scheduled_s[row] == stay.start_s[place]:
            told |= {
                "class": classes[int(requests.class_index[row])],
                "input_tokens": int(requests.input_tokens[row]),
                "output_tokens": int(requests.output_tokens[row]),
                "cached_tokens": int(requests.cached_tokens[row]),
                "queue_ms": round(1e3 * float(requests.scheduled_s[row] - requests.arrival_s[row]), 6),
            }
        flow = {"in": row in seen, "out": last[row] != place or row in leaves}
        start_s, end_s = float(stay.start_s[place]), float(stay.end_s[place])
        yield track.slice(name, "request", start_s, end_s, told, flow=row + 1 if any(flow.values()) else None, **flow)
        seen.add(row)
        for phase, word in _PHASES.items():
            begin, end = (float(edge[place]) for edge in bounds[phase])
            if end > begin:
                yield track.slice(word, "phase", begin, end)
                if phase is Phase.PREFILL and chunks is not None:
                    for chunk_start_s, chunk_end_s, tokens in chunks.within(replica, name, begin, end):
                        yield track.slice("chunk", "chunk", chunk_start_s, chunk_end_s, {"tokens": tokens})


def _moved(records: Records, replica: int) -> tuple[set[int], set[int]]:
    """The requests whose KV came to this replica, and those whose KV went from it."""
    moved = records.transfers
    if moved is None:
        return set(), set()
    here, away = (moved.row[end == replica].tolist() for end in (moved.to_replica, moved.from_replica))
    return set(here), set(away)


def _preempted(run: Exported, records: Records, replica: int, tracks: Tracks, process: int) -> Iterator[Event]:
    """A slice a wait after a preemption."""
    again = records.requeues
    mine = np.flatnonzero(records.requests.replica[again.row] == replica)
    released = records.requests.released_s[again.row[mine]]
    until = np.where(np.isnan(again.to_s[mine]), np.where(np.isnan(released), run.end_s, released), again.to_s[mine])
    order = np.lexsort((again.row[mine], again.from_s[mine]))
    mine, start_s, end_s = mine[order], again.from_s[mine][order], until[order]
    end_s = np.maximum(end_s, start_s)
    lanes = _lanes(tracks, process, "preempted", Stays(again.row[mine], start_s, start_s, start_s, end_s, end_s))
    for track, entry, start, end in zip(lanes, mine.tolist(), start_s.tolist(), end_s.tolist(), strict=True):
        word = "swapped out" if again.swapped[entry] else "preempted"
        told = {"request": run.request_ids[int(again.row[entry])]}
        yield track.slice(word, "preemption", start, end, told)


def _counters(records: Records, replica: int, tracks: Tracks, process: int) -> Iterator[Event]:
    """A sample where a value changes; between steps nothing runs."""
    rows = records.rows
    mine = np.flatnonzero(rows.replica == replica)
    if not len(mine):
        return
    start_s, end_s, first = rows.start_s[mine], rows.end_s[mine], rows.first_step[mine]
    final = first + rows.repeat[mine] - 1  # the row's last step
    idle = np.append(start_s[1:] > end_s[:-1], True)
    inside = final > first
    penultimate_s = records.step_end_s[np.maximum(final - 1, 0)]
    used = records.step_used_blocks
    yield from tracks.counter(process, "running requests", *_joined((start_s, rows.running[mine]), (end_s[idle], 0)))
    yield from tracks.counter(process, "waiting requests", *_joined((start_s, rows.waiting[mine])))
    kv = _joined((start_s, used[first]), (penultimate_s[inside], used[final[inside]]), (end_s[idle], 0))
    yield from tracks.counter(process, "KV blocks", *kv)


def _joined(*parts: tuple[Floats, Any]) -> tuple[Floats, Any]:
    """Samples of several kinds in the order of time; of those at one time, the order given."""
    times = np.concatenate([time for time, _ in parts])
    values = np.concatenate([np.broadcast_to(value, time.shape) for time, value in parts])
    order = np.argsort(times, kind="stable")
    return times[order], values[order]


def _clients(run: Exported, records: Records, tracks: Tracks) -> Iterator[Event]:
    """An instant for each request that came, with what became of it."""
    requests = records.requests
    track = tracks.track(tracks.process("clients"), "requests")
    for row in run.in_order_sent():
        told = {
            "request": run.request_ids[row],
            "status": Status(int(requests.status[row])).name.lower(),
            "replica": int(requests.replica[row]),
        }
        yield track.instant("arrival", "arrival", float(requests.arrival_s[row]), told)


def _transfers(run: Exported, records: Records, tracks: Tracks) -> Iterator[Event]:
    """A slice for each move of KV from a replica that prefilled to one that decodes."""
    moved = records.transfers
    if moved is None:
        return
    order = np.lexsort((moved.row, moved.start_s))
    start_s, end_s = moved.start_s[order], np.fmax(moved.end_s, moved.start_s)[order]
    known = ~np.isnan(start_s)
    order, start_s, end_s = order[known], start_s[known], np.fmin(end_s[known], run.end_s)
    stay = Stays(moved.row[order], start_s, start_s, start_s, end_s, end_s)
    lanes = _lanes(tracks, tracks.process("KV link"), "transfer", stay)
    for track, entry, start, end in zip(lanes, order.tolist(), start_s.tolist(), end_s.tolist(), strict=True):
        told = {
            "request": run.request_ids[int(moved.row[entry])],
            "from_replica": int(moved.from_replica[entry]),
            "to_replica": int(moved.to_replica[entry]),
            "bytes": int(moved.bytes[entry]),
        }
        yield track.slice("transfer", "transfer", start, end, told)


class _Chunks:
    """The prompt chunks of each request, from the decision log."""

    def __init__(self, run: Exported) -> None:
        self._found: dict[tuple[int, str], list[tuple[float, float, int]]] = {}
        assert run.decisions is not None
        for step in run.decisions():
            scheduled: Mapping[str, int] = step["scheduled"]
            for name, tokens in scheduled.items():
                if tokens != 1 or name in step["admitted"]:
                    chunk = float(step["t_start_s"]), float(step["t_end_s"]), tokens
                    self._found.setdefault((int(step["replica"]), name), []).append(chunk)

    def within(self, replica: int, name: str, start_s: float, end_s: float) -> Iterator[tuple[float, float, int]]:
        """Start, end and tokens of those chunks that lie between two times."""
        for chunk in self._found.get((replica, name), ()):
            if start_s <= chunk[0] and chunk[1] <= end_s:
                yield chunk


FORMAT = ExportFormat(
    title="ui.perfetto.dev, chrome://tracing",
    note="replicas, slots, steps, preemptions, counters; with `--log-decisions` each prompt chunk",
    files=(FILE,),
    write=_write,
)
