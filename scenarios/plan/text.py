"""A plan as a person reads it: the answer in a sentence, a table, what binds, what to change, how to deploy it."""

from dataclasses import replace

from scenarios.plan.answer import Answer, Bounds, Plan
from scenarios.plan.goal import Goal
from scenarios.plan.trial import REJECTED, STEADY, Trial
from scenarios.prediction.prediction import prediction_words
from simulator.metrics.metric import percent

# Numbers and goals in the sentences of a plan.


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


_SURE = 0.10  # a rate that moves by more than this with 5 % of the step times is at the edge


def sentence(plan: Plan) -> str:
    """The answer in a sentence."""
    if not plan.answers:
        return "There is no candidate."
    best = plan.answers[0]
    name, at = labels(plan)[0], f"at {rate_text(plan.load)} requests/s"
    up_to, between = ("", "") if best.bounds is None else bounds_text(best.bounds)
    if not best.feasible:
        head = "No candidate meets the SLO" + (f" {at}" if plan.find != "rate" else "")
        if best.shown is None or best.shown.stopped:
            return f"{head}. {best.note}".strip()
        would = f"; it would meet it up to {up_to} requests/s {between}" if up_to else ""
        return f"{head}. The nearest is {name}: {described(best.shown)}{would}."
    if plan.find == "rate":
        found = f"{name} meets the SLO up to {up_to} requests/s (95 %: {between})"
    elif plan.find == "replicas":
        several = "replica" if best.replicas == 1 else "replicas"
        meet = "meets" if best.replicas == 1 else "meet"
        found = f"{best.replicas:,} {several} of {name} {meet} the SLO {at}, and up to {up_to} (95 %: {between})"
    else:
        found = f"{name} meets the SLO {at}, and up to {up_to} (95 %: {between})"
    prices = [] if best.usd_per_hour is None else [f"{best.usd_per_hour:,.2f} USD/h"]
    if best.usd_per_million is not None:
        prices.append(f"{money(best.usd_per_million)} USD per million output tokens")
    if best.shown is not None and best.shown.energy:
        prices.append("{:.2g} J per output token ({:.2g} to {:.2g})".format(*best.shown.energy.values()))
    price = f", for {', '.join(prices)}" if prices else ""
    load = f" {rate_text(best.shown.rate)} requests/s is {best.load_words}." if best.shown and best.load_words else ""
    return f"{found}{price}.{load}{_equals(plan)}"


def _equals(plan: Plan) -> str:
    others = [name for name, answer in zip(labels(plan), plan.answers, strict=True) if answer.equal_to_best][1:]
    if not others:
        return ""
    listed = others[0] if len(others) == 1 else f"{', '.join(others[:-1])} and {others[-1]}"
    return f" It cannot be told apart from {listed}."


HEAD = (
    "candidate", "rate (req/s)", "95 %", "replicas", "GPUs", "USD/h", "USD/M tok", "binds", "bottleneck", "load +", "=",
)  # fmt: skip
TEXT_COLUMNS = 1


def table(plan: Plan) -> list[tuple[str, ...]]:
    """The table: a line a candidate, its head first. GPUs have no column where a replica has one each."""
    lines = [HEAD, *map(_line, labels(plan), plan.answers)]
    if any(answer.gpus != answer.replicas for answer in plan.answers):
        return lines
    place = HEAD.index("GPUs")
    return [(*line[:place], *line[place + 1 :]) for line in lines]


def labels(plan: Plan) -> list[str]:
    """The candidates in the words that tell them apart: without the settings that all of them have."""
    settings = [answer.candidate.settings for answer in plan.answers]
    rest = [
        {key: value for key, value in own.items() if any(key not in s or s[key] != value for s in settings)}
        for own in settings
    ]
    if not all(rest):
        return [answer.candidate.label for answer in plan.answers]
    return [replace(answer.candidate, settings=own).label for answer, own in zip(plan.answers, rest, strict=True)]


def _line(label: str, answer: Answer) -> tuple[str, ...]:
    bounds = answer.bounds
    return (
        label,
        "-" if bounds is None else rate_text(bounds.value),
        "" if bounds is None else f"{rate_text(bounds.low)} - {rate_text(bounds.high)}",
        f"{answer.replicas:,}" if answer.feasible else f"({answer.replicas:,})",
        f"{answer.gpus:,}",
        "-" if answer.usd_per_hour is None else f"{answer.usd_per_hour:,.2f}",
        "-" if answer.usd_per_million is None else money(answer.usd_per_million),
        "-" if answer.binding is None else _limit(answer.binding),
        answer.shares.bottleneck or "-",
        "-" if answer.headroom is None else change(answer.headroom),
        "=" if answer.equal_to_best else "",
    )


def _limit(goal: Goal) -> str:
    """A limit as its flag has it; or, where no limit breaks first, that the queue grows."""
    return "saturation" if goal == STEADY else goal.text


def below(plan: Plan) -> list[str]:
    """Return the lines about the best candidate under the table."""
    if not plan.answers:
        return []
    best = plan.answers[0]
    lines = []
    if best.binding is not None:
        why = f"; the time of its slowest requests: {best.shares.text}" if best.shares.text else ""
        lines.append(f"binds:   {_limit(best.binding)} breaks first{why}")
    if best.slower is not None and best.faster is not None:
        edge = ""
        if max(-best.slower, best.faster) > _SURE:
            edge = ": at the edge of saturation, where a few per cent of the step times decide"
        moves = f"{change(best.slower)} if steps are 5 % slower, {change(best.faster)} if faster"
        lines.append(f"unsure:  the rate moves by {moves}{edge}")
    if best.prediction is not None:
        lines.append(f"within:  {prediction_words(best.prediction)}")
    if best.rate_at_best is not None and best.bounds is not None:
        share = best.bounds.value / best.rate_at_best
        reached = f"you reach {share:.0%}" if share <= 1 else "a run this short ends before its queue is full"
        lines.append(f"at best: upper bound for any scheduler: {rate_text(best.rate_at_best)} req/s ({reached})")
    if best.note:
        lines.append(f"note:    {best.note}")
    if best.advice:
        lines.append(f"change:  {best.advice}")
    return [*lines, f"deploy:  {best.deploy}"]
