"""Numbers and goals in the sentences of a plan."""

from scenarios.plan.bounds import Bounds
from scenarios.plan.goal import Goal
from scenarios.plan.trial import REJECTED, STEADY, Trial
from simulator.percent import percent


def described(trial: Trial) -> str:
    """Name the goals that a run misses, with their values; or else the goal that is nearest to its limit."""
    if trial.stopped:
        return "a goal is missed"
    return " and ".join(valued(goal, trial) for goal in trial.missed or (trial.worst,))


def valued(goal: Goal, trial: Trial) -> str:
    """A goal's value in a run: `p99_ttft_ms is 1,204 (limit 1,000)`."""
    if goal == STEADY and trial.rejected > REJECTED:
        return f"{percent(trial.rejected, 0)} of the requests are rejected ({trial.why_rejected})"
    if goal == STEADY:
        return "the queue keeps growing" if not goal.holds(trial.value_of(goal)) else "the queue does not grow"
    of = "" if goal.class_name is None else f"{goal.class_name}:"
    return f"{of}{goal.metric} is {number(trial.value_of(goal))} (limit {number(goal.limit)})"


def number(value: float | int | bool | None) -> str:
    """A value to three or four digits, with thousands separators."""
    if value is None:
        return "undefined"
    size = abs(float(value))
    return f"{float(value):,.0f}" if size >= 1000 else f"{float(value):.4g}" if size >= 1 else f"{float(value):.3g}"


def rate_text(rate: float) -> str:
    """A rate to three digits: 16.5, 4.17, 0.0140."""
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:#.3g}".rstrip(".")


def money(usd: float) -> str:
    """US dollars: 1,640, 2.70, 0.214."""
    return f"{usd:,.0f}" if usd >= 1000 else f"{usd:,.2f}" if usd >= 1 else f"{usd:#.3g}"


def bounds_text(bounds: Bounds) -> tuple[str, str]:
    """A rate and its interval: `16.5` and `[15.9, 17.2]`."""
    return rate_text(bounds.value), f"[{rate_text(bounds.low)}, {rate_text(bounds.high)}]"


def change(share: float) -> str:
    """A signed share: +12 %, -5.6 %."""
    return percent(share, 0 if abs(share) >= 0.1 else 1, signed=True)
