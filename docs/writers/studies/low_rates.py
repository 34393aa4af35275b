"""Static against continuous batching below 10 requests per second."""

from collections.abc import Mapping
from dataclasses import dataclass

from docs.writers.claims.claim import Expectation, Table
from docs.writers.claims.runs import figure, run, steady_throughput, times
from docs.writers.studies.study import Line, Panel, Study, StudyResult

SCENARIO = "study-low-rates"
KINDS = ("chat", "code", "reasoning")
RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SEEDS = range(3)

_AS_GOOD = 1.1  # latency within 10 %
_ALONE = 1e-4  # requests/s: no two of them ever meet
_AT_ONCE = 1e6


@dataclass(frozen=True, slots=True)
class _Kind:
    """Measurements of one kind of traffic."""

    alone_s: float  # mean time of a request that is served alone
    cv: float  # its coefficient of variation
    capacity: float  # requests/s that static batching carries at most
    e2e: Mapping[float, float]  # mean latency of static / of continuous, by rate
    ttft_s: Mapping[float, tuple[float, float]]  # p99 of the time to first token of static and of continuous, by rate

    def wait(self, rate: float) -> float:
        """Mean wait for the request before / mean time of a request, for low rates: rate E[S^2] / (2 E[S])."""
        return rate * self.alone_s * (1 + self.cv**2) / 2

    @property
    def good_to(self) -> float:
        """The rate at which that wait reaches a tenth."""
        return (_AS_GOOD - 1) / self.wait(1.0)


def measure() -> StudyResult:
    """Each kind of traffic at each rate under both policies, as means over the seeds."""
    kinds = {kind: _measure(kind) for kind in KINDS}
    figures = {"requests": 600.0}
    for name, each in kinds.items():
        figures |= {
            f"alone_{name}": each.alone_s,
            f"good_to_{name}": each.good_to,
            f"capacity_{name}": each.capacity,
            f"low_{name}": each.e2e[0.1],
            f"at_1_{name}": each.e2e[1.0],
            f"static_ttft_{name}": each.ttft_s[1.0][0],
            f"continuous_ttft_{name}": each.ttft_s[1.0][1],
            f"tenth_{name}": _crossing(each.e2e) / each.good_to,
            f"load_{name}": _crossing(each.e2e) / each.capacity,
        }
    return StudyResult(figures, [_by_kind(kinds), _by_rate(kinds)], _panels(kinds))


def _measure(kind: str) -> _Kind:
    own = f"workload.classes.0.preset={kind}"

    def at(rate: float, policy: str, name: str) -> float:
        keys = (own, f"workload.classes.0.arrival.rate={rate:g}")
        return sum(figure(run(SCENARIO, policy, *keys, f"seed={seed}"), name) for seed in SEEDS) / len(SEEDS)

    alone_ms, spread_ms = (at(_ALONE, "continuous", name) for name in ("mean_e2el_ms", "std_e2el_ms"))
    at_once = run(SCENARIO, "static", own, f"workload.classes.0.arrival.rate={_AT_ONCE:g}")
    capacity = steady_throughput(at_once) / float(at_once.records.requests.output_tokens.mean())
    e2e = {rate: at(rate, "static", "mean_e2el_ms") / at(rate, "continuous", "mean_e2el_ms") for rate in RATES}
    ttft_s = {
        rate: (at(rate, "static", "p99_ttft_ms") / 1e3, at(rate, "continuous", "p99_ttft_ms") / 1e3) for rate in RATES
    }
    run.cache_clear()
    return _Kind(alone_ms / 1e3, spread_ms / alone_ms, capacity, e2e, ttft_s)


def _crossing(e2e: Mapping[float, float]) -> float:
    """The rate at which the ratio passes the limit, interpolated between the two rates around it."""
    below, above = 0.0, RATES[0]
    low, high = 1.0, e2e[above]
    for rate in RATES[1:]:
        if high > _AS_GOOD:
            break
        below, low, above, high = above, high, rate, e2e[rate]
    return below + (above - below) * (_AS_GOOD - low) / (high - low)


def _by_kind(kinds: Mapping[str, _Kind]) -> Table:
    head = ["", "a request alone, s", "CV", "as good up to, by the rule", "measured", "static carries", "of that, %"]
    rows = [
        [
            name,
            f"{each.alone_s:.2f}",
            f"{each.cv:.2f}",
            f"{each.good_to:.2f}/s",
            f"{_crossing(each.e2e):.2f}/s",
            f"{each.capacity:.1f}/s",
            f"{100 * _crossing(each.e2e) / each.capacity:.0f}",
        ]
        for name, each in kinds.items()
    ]
    return Table(head, rows, "As good: a mean latency within 10 % of the other's")


def _by_rate(kinds: Mapping[str, _Kind]) -> Table:
    head = ["", *(f"{rate:g}/s" for rate in RATES)]
    rows = []
    for name, each in kinds.items():
        rows.append([f"{name}, mean e2e", *(_ratio(each.e2e[rate]) for rate in RATES)])
        rows.append([f"{name}, p99 TTFT", *(_ratio(static / other) for static, other in each.ttft_s.values())])
    return Table(head, rows, f"Latency of static / continuous, means of {len(SEEDS)} seeds")


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 2 else times(value)


def _panels(kinds: Mapping[str, _Kind]) -> list[Panel]:
    limit = [(RATES[0], _AS_GOOD), (RATES[-1], _AS_GOOD)]
    by_rate = [Line(name, list(each.e2e.items())) for name, each in kinds.items()]
    scaled = [Line(name, [(each.wait(rate), each.e2e[rate]) for rate in RATES]) for name, each in kinds.items()]
    waits = [x for line in scaled for x, _ in line.points]
    lowest, highest = min(waits), max(waits)
    shape = [lowest * (highest / lowest) ** (step / 40) for step in range(41)]
    rule = Line("1 + the expected wait", [(x, 1 + x) for x in shape if x < 3], dashed=True)
    y_label = "mean latency, static / continuous"
    return [
        Panel("By rate", "requests/s", y_label, [*by_rate, Line("10 % worse", limit, dashed=True)]),
        Panel("By the expected wait", "wait for one request before / its own time", y_label, [*scaled, rule]),
    ]


STUDY = Study(
    name="low-rates",
    setup="Llama-3.1-8B on one H100, step times by roofline; lengths of the presets `chat`, `code` and `reasoning`,"
    " Poisson arrivals, {requests:.0f} requests a run, three seeds.",
    alt="Mean latency of static batching over that of continuous batching, by rate and by the expected wait",
    answer=(
        "**No rate is low in itself.** With continuous batching a request starts at the next step. With static"
        " batching, a request that comes during another's answer waits until that answer ends. At low rates at most"
        " one request is before it, so the mean wait is that of a queue with one server: rate x E[S²] / 2, where S is"
        " the time that a request takes alone. This wait is a tenth of a request's own time at the rate 0.2 / (E[S]"
        " (1 + CV²)). By that rule static batching stays within 10 % of continuous batching's mean latency up to"
        " {good_to_reasoning:.2f} requests per second of reasoning, whose answers take {alone_reasoning:.1f} s, up to"
        " {good_to_chat:.2f} of chat ({alone_chat:.1f} s), and up to {good_to_code:.2f} of code completion"
        " ({alone_code:.2f} s). The left picture has three curves. On the right, over the expected wait, they begin"
        " as one. All of these rates are a few per cent of the load that static batching can serve:"
        " {load_reasoning:.0%} for reasoning, {load_chat:.0%} for chat, {load_code:.0%} for code.",
        "Well below 10 requests per second the two policies differ. At 1 per second static batching's mean latency is"
        " {at_1_code:.1f} times the other's for code and {at_1_chat:.1f} times for chat. For reasoning it is"
        " overloaded, as it can serve only {capacity_reasoning:.1f} per second. The tail gets worse first: at 1 per"
        " second p99 of the time to first token is {static_ttft_chat:.1f} s instead of {continuous_ttft_chat:.2f} s"
        " for chat, and {static_ttft_code:.1f} s instead of {continuous_ttft_code:.2f} s for code.",
    ),
    limits="the rule counts one request in front, and none in the same batch. Measured, the limit of 10 % lies at"
    " {tenth_chat:.2f}, {tenth_code:.2f} and {tenth_reasoning:.2f} times the rule's rate for chat, code and"
    " reasoning. As soon as batches form, static batching pads prompts and holds short answers until long ones"
    " end. Long prompts with short answers (code) suffer most from this. Arrivals in bursts meet more often"
    " than Poisson arrivals, so the limit is lower. Beyond the load that static batching can serve, its queue"
    " grows as long as the run lasts, and the ratio depends on the length of the run.",
    expected=(
        Expectation("low_chat", 1.115, 0.03, "1.115 ± 0.03", "1 + the expected wait at 0.1/s"),
        Expectation("tenth_chat", 1.0, 0.15, "1 ± 15 %", "the rule"),
        Expectation("tenth_reasoning", 1.0, 0.2, "1 ± 20 %", "the rule; a tail of long answers meets more than one"),
    ),
    measure=measure,
)
