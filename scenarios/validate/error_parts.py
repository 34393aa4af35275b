"""The part of a simulation that carries its error: prefill, decode, queueing or memory.

Where the log says when requests were first scheduled, a request's end-to-end error is the sum of three, exactly: the
wait (arrival to scheduled), prefill (scheduled to first token) and decode (first to last token). But waits follow from
the rest: on a full server a slot comes free every T / N seconds, T being how long a request holds its slot and N how
many there are (Little's law). A request scheduled t seconds after the queue began is therefore late by t times the
relative error of T / N. That share of the waits' error is put to what caused it: to prefill and decode as they make up
the error of T, and to memory, which sets N where requests wait. What remains is queueing itself: order, admission,
routing.

Where the log has no such times, decode is still known; prefill is estimated by the requests that found the server
quiet, for which the time to first token is nearly all prefill; the rest is queueing, with memory inside it.
"""

from dataclasses import dataclass

import numpy as np

from scenarios.validate.compare import Side, Validation, known
from simulator.results.records import Floats, Ints

QUIET = 0.25  # of the most requests in flight: a request that finds fewer meets a quiet server
FEWEST = 5  # requests that a median needs to be worth a sentence
SMALL = 0.01  # of the mean end-to-end latency: a part below it carries nothing
QUEUED_S = 0.1  # a longer wait is for a slot, not for the step in flight
_POINTS = 400


@dataclass(frozen=True, slots=True)
class ErrorPart:
    """One part: its mean per request in both (ms; NaN: not known), and what it adds to the mean end-to-end error."""

    name: str
    measured_ms: float
    simulated_ms: float
    carries_ms: float

    @property
    def error(self) -> float:
        """The error of the part itself, as a signed fraction; NaN where it is not known."""
        return self.simulated_ms / self.measured_ms - 1.0 if self.measured_ms > 0 else np.nan


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The parts, which add up to the mean end-to-end error; what to make of them; the mean measured latency."""

    parts: tuple[ErrorPart, ...]
    words: tuple[str, ...]
    mean_e2el_ms: float

    @property
    def carrier(self) -> str:
        """The part that carries most; empty where none carries anything to speak of."""
        most = max(self.parts, key=lambda part: abs(part.carries_ms), default=None)
        return most.name if most is not None and abs(most.carries_ms) > SMALL * self.mean_e2el_ms else ""


def diagnose(found: Validation, *, at_client: bool = False) -> Diagnosis | None:
    """Find the part that carries the error of matched requests; None where none match, where they have no arrivals,
    or where they are a sample."""
    measured, simulated = found.measured, found.simulated
    if not found.matched or np.isnan(measured.arrival_s).any() or measured.stands_for != 1.0:
        return None  # the load at a time is not known from a sample
    logged = all(np.isfinite(side.scheduled_s).all() for side in (measured, simulated))
    parts = _with_waits(measured, simulated) if logged else _without_waits(measured, simulated)
    words = [_carrier_words(parts, measured)]
    words += _quiet_words(measured, simulated, logged, at_client)
    words += _load_words(measured, simulated)
    words += _memory_words(measured, simulated) if logged else []
    words += _preemption_words(measured, simulated)
    return Diagnosis(tuple(parts), tuple(text for text in words if text), _mean(measured.e2el_s) * 1e3)


def diagnosis_data(verdict: Diagnosis | None) -> dict[str, object]:
    """Return the diagnosis for JSON; nothing carries an error where there is none."""
    if verdict is None:
        return {"carrier": None, "parts": {}}
    parts = {part.name: {"error": known(part.error), "carries_ms": part.carries_ms} for part in verdict.parts}
    return {"carrier": verdict.carrier or None, "parts": parts}


def _with_waits(measured: Side, simulated: Side) -> list[ErrorPart]:
    prefill_m, prefill_s = measured.ttft_s - measured.queue_s, simulated.ttft_s - simulated.queue_s
    decode_m, decode_s = measured.e2el_s - measured.ttft_s, simulated.e2el_s - simulated.ttft_s
    prefill, decode = _mean(prefill_s - prefill_m), _mean(decode_s - decode_m)
    queue = _mean(simulated.queue_s - measured.queue_s)
    held_m = _mean(prefill_m + decode_m)
    lever = _lever_s(measured)
    by_prefill, by_decode = lever * prefill / held_m, lever * decode / held_m
    slots_m, slots_s = slots_when_waiting(measured), slots_when_waiting(simulated)
    by_memory = -lever * (slots_s / slots_m - 1.0) if slots_m > 0 and slots_s > 0 else 0.0
    rest = queue - by_prefill - by_decode - by_memory
    return [
        ErrorPart("prefill", _mean(prefill_m) * 1e3, _mean(prefill_s) * 1e3, (prefill + by_prefill) * 1e3),
        ErrorPart("decode", _mean(decode_m) * 1e3, _mean(decode_s) * 1e3, (decode + by_decode) * 1e3),
        ErrorPart("queueing", _mean(measured.queue_s) * 1e3, _mean(simulated.queue_s) * 1e3, rest * 1e3),
        ErrorPart("memory", np.nan, np.nan, by_memory * 1e3),
    ]


def _without_waits(measured: Side, simulated: Side) -> list[ErrorPart]:
    decode_m, decode_s = measured.e2el_s - measured.ttft_s, simulated.e2el_s - simulated.ttft_s
    quiet = quiet_requests(measured)
    ttft = _mean(simulated.ttft_s - measured.ttft_s)
    prefill = float(np.median((simulated.ttft_s - measured.ttft_s)[quiet])) if len(quiet) else 0.0
    return [
        ErrorPart("prefill", np.nan, np.nan, prefill * 1e3),
        ErrorPart("decode", _mean(decode_m) * 1e3, _mean(decode_s) * 1e3, _mean(decode_s - decode_m) * 1e3),
        ErrorPart("queueing", np.nan, np.nan, (ttft - prefill) * 1e3),
    ]


def _lever_s(side: Side) -> float:
    """Return the mean age of the queue as each request was scheduled; 0 counts for a request that did not queue."""
    queued = side.queue_s > QUEUED_S
    if not queued.any():
        return 0.0
    began_s = float(side.arrival_s[queued].min())
    return float(np.where(queued, np.maximum(side.scheduled_s - began_s, 0.0), 0.0).mean())


def slots_when_waiting(side: Side) -> float:
    """The median number of requests that hold a slot while others wait; 0.0 where none ever waits."""
    times = np.linspace(0.0, float(side.last_s.max()), _POINTS)
    queued = side.between("arrival_s", "scheduled_s", times) >= 1.0
    holding = side.between("scheduled_s", "last_s", times)
    held = holding[queued & (holding > 0)]
    return float(np.median(held)) if len(held) >= FEWEST else 0.0


def quiet_requests(side: Side) -> Ints:
    """Places of the requests that found fewer than a quarter of the most in flight; empty for fewer than five."""
    found = side.between("arrival_s", "last_s", side.arrival_s) - 1.0
    places = np.flatnonzero(found < QUIET * max(float(found.max()), 1.0))
    return places if len(places) >= FEWEST else places[:0]


def _carrier_words(parts: list[ErrorPart], measured: Side) -> str:
    total = sum(part.carries_ms for part in parts)
    mean_ms = _mean(measured.e2el_s) * 1e3
    shares = ", ".join(f"{part.name} {round(part.carries_ms):+,d} ms" for part in parts)
    most = max(parts, key=lambda part: abs(part.carries_ms))
    share = 100 * total / mean_ms
    if abs(total) < 0.5 and all(abs(part.carries_ms) < 0.5 for part in parts):
        return f"The mean end-to-end latency, {mean_ms:,.0f} ms, is right; no part causes more than 0.5 ms of error."
    text = f"The mean end-to-end latency is off by {total:+,.0f} ms of {mean_ms:,.0f} ms ({share:+.1f} %)"
    if abs(most.carries_ms) <= SMALL * mean_ms:
        return f"{text}; no part causes more than {100 * SMALL:.0f} % of it: {shares}."
    waits = "A wait counts for the part that made the queue longer."
    return f"{text}, and {most.name} causes most of it: {shares}. {waits}"


def _quiet_words(measured: Side, simulated: Side, waits: bool, at_client: bool) -> list[str]:
    """Prefill alone: the time to first token of requests that found the server quiet, less their wait."""
    quiet = quiet_requests(measured)
    if not len(quiet):
        return ["No request found the server quiet, so low load does not tell prefill from queueing."]
    m = (measured.ttft_s - measured.queue_s if waits else measured.ttft_s)[quiet]
    s = (simulated.ttft_s - simulated.queue_s if waits else simulated.ttft_s)[quiet]
    what = "from scheduled to first token" if waits else "to first token"
    late_ms = float(np.median(m - s)) * 1e3
    text = (
        f"Prefill: the {len(quiet):,} requests that found the server quiet took {np.median(m) * 1e3:,.1f} ms {what},"
        f" here {np.median(s) * 1e3:,.1f} ms ({100 * (np.median(s) / np.median(m) - 1):+.1f} %)."
    )
    if at_client and late_ms > 1.0:
        text += f" The times were taken at the client, which accounts for some of the {late_ms:,.1f} ms between them."
    return [text]


def _load_words(measured: Side, simulated: Side) -> list[str]:
    """TPOT by the load while a request decoded: a base that is off shows in the first third, a slope in the last."""
    known = np.flatnonzero((measured.tpot_s > 0) & (simulated.tpot_s > 0))
    if len(known) < 3 * FEWEST:
        return []
    m = measured.only(known)
    middle = m.arrival_s + (m.ttft_s + m.e2el_s) / 2.0
    load = measured.between("arrival_s", "last_s", middle)
    order = np.argsort(load, kind="stable")
    errors = (simulated.tpot_s[known] / m.tpot_s - 1.0)[order]
    thirds = [float(np.median(third)) for third in np.array_split(errors, 3)]
    low, high = thirds[0], thirds[-1]
    shown = ", ".join(f"{100 * third:+.1f} %" for third in thirds)
    text = f"Decode: the median error of TPOT at low, medium and high load is {shown}"
    if max(abs(low), abs(high)) < SMALL:
        return [f"{text}: right at any load."]
    if abs(low - high) < SMALL:
        return [f"{text}: off by the same factor at any load."]
    wrong = "the cost that grows with the batch" if abs(high) > abs(low) else "the fixed cost of a step"
    return [f"{text}: {wrong} is off."]


def _memory_words(measured: Side, simulated: Side) -> list[str]:
    m, s = slots_when_waiting(measured), slots_when_waiting(simulated)
    if m == 0.0 and s == 0.0:
        return ["No request waited long enough for memory or slots to matter."]
    if m == 0.0 or s == 0.0:
        where = "on the server" if s == 0.0 else "in the simulation"
        return [f"Memory: requests queue {where} alone."]
    text = f"Memory: while others wait, {m:,.0f} requests hold a slot on the server and {s:,.0f} here"
    alike = abs(s / m - 1.0) <= 2 * SMALL
    return [f"{text}: it holds as much." if alike else f"{text}: look at num_gpu_blocks and max_num_seqs."]


def _preemption_words(measured: Side, simulated: Side) -> list[str]:
    here = 0 if simulated.preemptions is None else int(simulated.preemptions.sum())
    if measured.preemptions is not None:
        there = int(measured.preemptions.sum())
        return [f"Preemptions: {there:,} on the server, {here:,} here."] if there or here else []
    return [f"Preemptions: {here:,} here; the log does not count them."] if here else []


def _mean(values: Floats) -> float:
    return float(np.mean(values))
