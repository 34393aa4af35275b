"""Prefill and decode apart against together, at equal GPUs."""

from collections.abc import Mapping
from statistics import fmean

from docs.writers.claims.claim import Expectation, Table
from docs.writers.claims.runs import figure, run
from docs.writers.studies.study import Line, Panel, Study, StudyResult
from scenarios.runs.result import Result
from simulator.metrics.latency import Slo, meets_slo

SCENARIO = "study-disaggregation"
POLICY = "chunked_prefill"
RATES: Mapping[str, tuple[int, ...]] = {"chat": (8, 16, 24, 32, 40, 48), "code": (4, 8, 12, 16, 20, 24)}
SEEDS = range(2)
_TOGETHER = ("fleet.0.role=both", "fleet.1.role=both")
SPLITS: Mapping[str, tuple[str, ...]] = {
    "together": _TOGETHER,
    "together, 512 a step": (*_TOGETHER, "engine.max_num_batched_tokens=512"),
    "2 prefill + 2 decode": ("fleet.0.replicas=2", "fleet.1.replicas=2"),
    "3 prefill + 1 decode": (),
}
_SHORT = dict(zip(SPLITS, ("0", "512", "2", "3"), strict=True))  # in the names of figures
LIMITS: Mapping[str, Slo] = {
    "TPOT within 30 ms": Slo(ttft_ms=1000, tpot_ms=30),
    "TPOT within 100 ms": Slo(ttft_ms=1000, tpot_ms=100),
}
GOOD = 0.9

_Shares = Mapping[tuple[str, str, str], list[tuple[float, float]]]  # kind, limits, split -> (rate, share)


def measure() -> StudyResult:
    """Two kinds of traffic at rising rates before three ways to use four replicas."""
    shares: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    figures: dict[str, float] = {}
    for kind, rates in RATES.items():
        for split, keys in SPLITS.items():
            for rate in rates:
                results = [_run(kind, keys, rate, seed) for seed in SEEDS]
                for name, slo in LIMITS.items():
                    share = fmean(float(meets_slo(each.records, slo).mean()) for each in results)
                    shares.setdefault((kind, name, split), []).append((float(rate), share))
                if rate == 16:
                    key = f"{kind}_{_SHORT[split]}"
                    figures[f"itl_{key}"] = fmean(figure(each, "p99_itl_ms") for each in results)
                    figures[f"ttft_{key}"] = fmean(figure(each, "p99_ttft_ms") for each in results)
                    if not keys:
                        figures |= _transfers(kind, results[0])
            run.cache_clear()
    tight, loose = LIMITS
    for kind in RATES:
        for name, of in (("tight", tight), ("loose", loose)):
            for split, short in _SHORT.items():
                figures[f"{name}_{kind}_{short}"] = _good_to(shares[kind, of, split])
        figures[f"gain_{kind}"] = figures[f"tight_{kind}_3"] / figures[f"tight_{kind}_0"]
        figures[f"loss_{kind}"] = figures[f"loose_{kind}_3"] / figures[f"loose_{kind}_0"]
    return StudyResult(figures, [_table(shares)], _panels(shares))


def _run(kind: str, keys: tuple[str, ...], rate: int, seed: int) -> Result:
    own = [f"workload.classes.0.preset={kind}", f"workload.classes.0.arrival.rate={rate}"]
    poisson = "workload.classes.0.arrival.process=poisson"
    return run(SCENARIO, POLICY, own[0], poisson, own[1], *keys, f"seed={seed}")


def _transfers(kind: str, result: Result) -> dict[str, float]:
    """The time of a transfer as measured, and its bytes over the bandwidth."""
    records, model = result.records, result.scenario.resolve_model()
    assert records.transfers is not None
    tokens = records.requests.input_tokens[records.transfers.row]
    expected_s = float((-(-tokens // 16) * 16).mean()) * model.kv_bytes_per_token(1) / 50e9
    measured_s = figure(result, "mean_kv_transfer_s")
    return {f"moves_{kind}": measured_s * 1e3, f"by_bytes_{kind}": measured_s / expected_s}


def _good_to(points: list[tuple[float, float]]) -> float:
    """The rate at which the share falls below `GOOD`, interpolated; the last rate where it does not."""
    before = (0.0, 1.0)
    for rate, share in points:
        if share < GOOD:
            return before[0] + (rate - before[0]) * (before[1] - GOOD) / (before[1] - share)
        before = rate, share
    return before[0]


def _shown(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without what is so far beyond the limits that a picture need not tell it apart."""
    return [(rate, share) for rate, share in points if share >= 0.1]


def _table(shares: _Shares) -> Table:
    rows = [
        [f"{kind}, {limits}", *(f"{_good_to(shares[kind, limits, split]):.1f}/s" for split in SPLITS)]
        for kind in RATES
        for limits in LIMITS
    ]
    return Table(
        ["", *SPLITS], rows, f"Rate up to which {GOOD * 100:.0f} % of the requests meet TTFT within 1 s and TPOT"
    )


def _panels(shares: _Shares) -> list[Panel]:
    found = []
    for kind, rates in RATES.items():
        limit = Line(f"{GOOD * 100:.0f} %", [(float(rates[0]), GOOD), (float(rates[-1]), GOOD)], dashed=True)
        for limits in LIMITS:
            lines = [Line(split, _shown(shares[kind, limits, split])) for split in SPLITS]
            found.append(Panel(f"{kind}, {limits}", "requests/s", "share within both limits", [*lines, limit]))
    return found


STUDY = Study(
    name="disaggregation",
    setup="Llama-3.1-70B on four replicas of four H100, step times by roofline, chunked prefill with 2,048 tokens a"
    " step; lengths of the presets `chat` and `code`, Poisson arrivals, 800 requests a run, two seeds. KV moves"
    " over one link of 50 GB/s. The limits are TTFT within 1 s, and TPOT within 30 or 100 ms.",
    alt="Share of requests within their limits by rate, for prefill and decode on the same replicas and on separate"
    " ones",
    answer=(
        "**It pays if the SLO limits the time between tokens.** Together, another request's prompt makes every decode"
        " wait. At 16 requests per second p99 of the gap between tokens is {itl_chat_0:.0f} ms for chat, the time of"
        " a step full of prompt. On a replica that only decodes it is {itl_chat_3:.0f} ms. With TPOT within 30 ms"
        " three replicas that prefill and one that decodes serve {tight_chat_3:.0f} requests per second of chat; four"
        " that do both serve {tight_chat_0:.0f}, so the gain is {gain_chat:.1f} times. For code the figures are"
        " {tight_code_3:.0f} and {tight_code_0:.0f} ({gain_code:.1f} times). Steps of at most 512 tokens are the"
        " other remedy: with them, replicas that do both serve {tight_chat_512:.0f} of chat and {tight_code_512:.0f}"
        " of code.",
        "**It does not pay if that limit is loose.** With TPOT within 100 ms the four that do both serve"
        " {loose_code_0:.0f} requests per second of code, and the better split {loose_code_3:.0f}. For chat they"
        " serve {loose_chat_0:.0f}, and the split {loose_chat_3:.0f}. A replica that only decodes has spare compute"
        " that it cannot use, while prompts queue before the other three. The split has to fit the traffic: two and"
        " two serve {tight_chat_2:.0f} of chat and {tight_code_2:.0f} of code. The transfer costs little:"
        " {moves_chat:.1f} ms for a prompt of chat and {moves_code:.1f} ms for one of code, once for each request.",
    ),
    limits="there is one link for all transfers, with the bandwidth of one port, and no way to hide them (such as"
    " layer by layer). The split is fixed: systems that change roles with the load use some of the idle time."
    " A roofline knows no cost of interference beyond the longer step.",
    expected=(
        Expectation("by_bytes_chat", 1.0, 1e-6, "1", "bytes of the prompt's blocks / bandwidth"),
        Expectation("by_bytes_code", 1.0, 1e-6, "1", "bytes of the prompt's blocks / bandwidth"),
    ),
    measure=measure,
)
