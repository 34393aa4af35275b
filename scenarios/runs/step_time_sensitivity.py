"""The sensitivity of a run's TTFT to a few per cent of step time: it is large where requests wait for a busy server.

With a utilisation u the wait grows as 1 / (1 - u). So near saturation an error of the step times comes out many times
larger in TTFT, and during an overload it adds up. Step costs are seldom better than 5 %.
"""

from dataclasses import dataclass

from scenarios.assembly.workloads import build_workload
from scenarios.prediction.prediction import has_loops
from scenarios.runs.result import Result
from scenarios.runs.runner import run_on

STEP = 0.05
BUSY = 0.9
WAITING = 0.5
MAGNIFIED = 2.0
CHEAP_REQUESTS, CHEAP_STEPS = 2_000, 200_000
"""A run of at most as many requests and steps is run again without being asked."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Mean and p99 of TTFT (ms) as simulated, and with steps 5 % shorter and 5 % longer."""

    plain: tuple[float, float]
    shorter: tuple[float, float]
    longer: tuple[float, float]

    @property
    def is_magnified(self) -> bool:
        """Return whether mean TTFT moves by more than twice what the steps do, either way."""
        return max(abs(each[0] / self.plain[0] - 1.0) for each in (self.shorter, self.longer)) > MAGNIFIED * STEP


def may_hang(result: Result) -> bool:
    """Return whether the server is nearly always busy, and TTFT is mostly waiting, for requests of an open loop.

    In a closed loop the number of users bounds the queue.
    """
    summary = result.summary
    busy, ttft_ms, queue_ms = (summary[key] for key in ("busy_fraction", "mean_ttft_ms", "mean_queue_time_ms"))
    if not busy or not ttft_ms or queue_ms is None or has_loops(result.scenario):
        return False
    return bool(busy >= BUSY and queue_ms >= WAITING * ttft_ms)


def is_cheap(result: Result) -> bool:
    """Return whether running it twice more costs little."""
    return len(result.records.requests.row) <= CHEAP_REQUESTS and result.records.num_steps <= CHEAP_STEPS


def step_times(result: Result) -> StepTimes | None:
    """Run it again on the same requests with other step times. Returns None where one of the runs has no TTFT."""
    workload = build_workload(result.scenario)
    again = [run_on(result.scenario, workload, step_time=1.0 + off) for off in (-STEP, STEP)]
    found = []
    for each in (result, *again):
        mean, tail = each.summary["mean_ttft_ms"], each.summary["p99_ttft_ms"]
        if not mean or tail is None:
            return None
        found.append((float(mean), float(tail)))
    return StepTimes(*found)


def sensitivity_words(result: Result, asked: bool | None = None) -> str | None:
    """Return a note on how TTFT follows the step times, if any. `asked` True tries it in any case, False never."""
    if asked is False or not (asked or may_hang(result)):
        return None
    if not (asked or is_cheap(result)):
        busy = 100.0 * result.summary["busy_fraction"]
        share = 100.0 * result.summary["mean_queue_time_ms"] / result.summary["mean_ttft_ms"]
        return (
            f"warning: TTFT is sensitive to step times: the server is busy {busy:.0f} % of the time, and queue time is"
            f" {share:.0f} % of mean TTFT; --sensitivity tries steps 5 % shorter and longer"
        )
    found = step_times(result)
    if found is None or not (asked or found.is_magnified):
        return None
    moves = "; ".join(
        f"with steps 5 % {name}, mean TTFT {_figure(mean, found.plain[0])} and p99 {_figure(tail, found.plain[1])}"
        for name, (mean, tail) in (("shorter", found.shorter), ("longer", found.longer))
    )
    if not found.is_magnified:
        return f"TTFT follows the step times: {moves}"
    return f"warning: TTFT is sensitive to step times: {moves}"


def _figure(value: float, plain: float) -> str:
    return f"{value:,.0f} ms ({100.0 * (value / plain - 1.0):+.0f} %)"
