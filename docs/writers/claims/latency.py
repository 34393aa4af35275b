"""Claims 10, 11, 12 and 14: which requests wait, and how long."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from docs.writers.claims.claim import Claim, ClaimResult, Columns, Table, cells
from docs.writers.claims.runs import figure, longest_gap_ms, run, steady_throughput, times
from scenarios.runs.result import Result
from simulator.metrics.summary import Summary, summarize_by_class

LOW = "claim-10-low-rates"
PERCENTILES = "claim-11-p50-and-p99"
CHUNKS = "claim-12-chunk-against-latency"
PREEMPTION = "claim-14-preemption"

_RATE = "workload.classes.0.arrival.rate"
_SHORT = "workload.classes.0.output={dist: uniform, min: 1, max: 8}"
_KINDS: Mapping[str, tuple[str, ...]] = {
    "8B on an A100, chat": (),
    "8B on an A100, answers of 1 to 8": (_SHORT,),
    "0.6B on an H200, answers of 1 to 8": (_SHORT, "model=qwen3-0.6b", "hardware.gpu=h200"),
}
_RATES = (0.05, 0.1, 0.5, 1, 2, 4, 10)
_AS_GOOD = 1.1


def _low() -> ClaimResult:
    rows = []
    slower: dict[tuple[str, float], float] = {}
    for kind, keys in _KINDS.items():
        for rate in _RATES:
            at = (*keys, f"{_RATE}={rate}")
            static, ours = run(LOW, "static", *at), run(LOW, "chunked_prefill", *at)
            ratio = {
                name: figure(static, name) / figure(ours, name)
                for name in ("output_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_e2el_ms")
            }
            slower[kind, rate] = ratio["mean_e2el_ms"]
            shown = [f"{ratio['output_throughput']:.2f}", *(_times(ratio[n]) for n in list(ratio)[1:])]
            queue = "grows" if static.summary["saturated"] else ""
            rows.append([kind, f"{rate:g}", *shown, queue])
    chat, short, small = _KINDS
    at_once = run(LOW, "static", f"{_RATE}=1e6")
    mean = float(at_once.records.requests.output_tokens.mean())
    return ClaimResult(
        {
            "chat_static_capacity": steady_throughput(at_once) / mean,
            "chat_as_good_to": _highest(slower, chat),
            "short_as_good_to": _highest(slower, short),
            "small_as_good_to": _highest(slower, small),
            "chat_at_1": slower[chat, 1],
            "short_at_10": slower[short, 10],
            "small_at_10": slower[small, 10],
        },
        [
            Table(
                ["", "requests/s", "throughput", "mean TTFT", "p99 TTFT", "mean e2e", "queue of static"],
                rows,
                "Static / chunked_prefill: 1 is equal, a latency above 1 is worse under static",
            )
        ],
    )


def _highest(slower: Mapping[tuple[str, float], float], kind: str) -> float:
    """The highest rate up to which static batching is as good, mean latency within 10 %."""
    found = 0.0
    for rate in _RATES:
        if slower[kind, rate] > _AS_GOOD:
            break
        found = rate
    return found


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 2 else times(ratio)


_ASKED = {
    "TTFT": ("p50_ttft_ms", "p99_ttft_ms"),
    "e2e": ("p50_e2el_ms", "p99_e2el_ms"),
    "ITL": ("p50_itl_ms", "p99_itl_ms"),
}


def _percentiles() -> ClaimResult:
    rows = []
    found: dict[tuple[str, float], Result] = {}
    for rate in (1, 2, 6):
        for policy in ("static", "continuous", "chunked_prefill"):
            result = found[policy, rate] = run(PERCENTILES, policy, f"{_RATE}={rate}")
            cells = [f"{figure(result, name):,.0f}" for names in _ASKED.values() for name in names]
            rows.append([f"{rate:g}", policy, *cells])

    def over_static(policy: str, rate: float, name: str) -> float:
        return figure(found[policy, rate], name) / figure(found["static", rate], name)

    head = ["requests/s", "policy", *(f"{what} {p}, ms" for what in _ASKED for p in ("p50", "p99"))]
    return ClaimResult(
        {
            "ttft_p50_ratio": over_static("chunked_prefill", 1, "p50_ttft_ms"),
            "ttft_p99_ratio": over_static("chunked_prefill", 1, "p99_ttft_ms"),
            "e2e_p50_ratio": over_static("chunked_prefill", 1, "p50_e2el_ms"),
            "e2e_p99_ratio": over_static("chunked_prefill", 1, "p99_e2el_ms"),
            "itl_p50_ratio": over_static("chunked_prefill", 1, "p50_itl_ms"),
            "itl_p99_light": over_static("chunked_prefill", 1, "p99_itl_ms"),
            "itl_p99_stall": over_static("continuous", 6, "p99_itl_ms"),
            "itl_p99_mixed": over_static("chunked_prefill", 6, "p99_itl_ms"),
        },
        [Table(head, rows)],
    )


_BUDGETS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def _chunks() -> ClaimResult:
    found: dict[int, dict[str, float]] = {}
    for budget in _BUDGETS:
        result = run(CHUNKS, "chunked_prefill", f"engine.max_num_batched_tokens={budget}")
        names = ("mean_ttft_ms", "p99_ttft_ms", "p99_tpot_ms", "p50_itl_ms", "p99_itl_ms")
        found[budget] = {name: figure(result, name) for name in names} | {"longest": longest_gap_ms(result)}
    rows = [[f"{budget:,}", *(f"{value:,.0f}" for value in values.values())] for budget, values in found.items()]

    def over(name: str, one: int, other: int) -> float:
        return found[one][name] / found[other][name]

    head = ["chunk", "TTFT mean, ms", "TTFT p99", "TPOT p99", "ITL p50", "ITL p99", "ITL longest"]
    return ClaimResult(
        {
            "ttft_128_over_512": over("mean_ttft_ms", 128, 512),
            "ttft_8192_over_512": over("mean_ttft_ms", 8192, 512),
            "tpot_p99_8192_over_128": over("p99_tpot_ms", 8192, 128),
            "itl_p99_2048_over_128": over("p99_itl_ms", 2048, 128),
            "itl_p99_4096_over_128": over("p99_itl_ms", 4096, 128),
            "itl_p99_8192_over_2048": over("p99_itl_ms", 8192, 2048),
            "itl_longest_8192_over_2048": over("longest", 8192, 2048),
        },
        [Table(head, rows, "max_num_batched_tokens is the largest chunk; all of a step's tokens count to it")],
    )


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to treat the urgent, as one row of claim 14's table."""

    key: str
    label: str
    policy: str
    overrides: Sequence[str] = ()


VARIANTS = (
    Variant("fcfs", "`chunked_prefill`, fcfs", "chunked_prefill"),
    Variant("order", "`chunked_prefill`, order: priority", "chunked_prefill", ("engine.order=priority",)),
    Variant("reserved", "`orca`, order: priority", "orca", ("engine.order=priority",)),
    Variant("recompute", "`preemptive`, recompute", "preemptive"),
    Variant(
        "progress", "`preemptive`, recompute, victim: least_progress", "preemptive", ("engine.victim=least_progress",)
    ),
    Variant("memory", "`preemptive`, recompute, victim: most_memory", "preemptive", ("engine.victim=most_memory",)),
    Variant("pause", "`preemptive`, pause", "preemptive", ("engine.preemption_mode=pause",)),
    Variant("swap", "`preemptive`, swap", "preemptive", ("engine.preemption_mode=swap",)),
    Variant("auto", "`preemptive`, auto", "preemptive", ("engine.preemption_mode=auto",)),
    Variant(
        "overlap",
        "`preemptive`, swap, swap_overlap",
        "preemptive",
        ("engine.preemption_mode=swap", "engine.swap_overlap=true"),
    ),
)
"""What claim 14 compares: another way is another line."""

_URGENT, _OTHER = "interactive", "batch"


_SEEDS = 5
_COLUMNS: Columns = {
    "preemptions": ("preemptions", 1, ".0f"), "recomputed, 1,000 tokens": ("recomputed", 1e-3, ",.0f"),
    "blocks swapped out": ("swapped", 1, ",.0f"), "urgent p99 TTFT, ms": ("ttft", 1, ",.0f"),
    "urgent within SLO": ("attainment", 1, ".1%"), "others' mean e2e, s": ("others", 1e-3, ".0f"),
    "tok/s": ("throughput", 1, ",.0f"),
}  # fmt: skip
_MEANS = [name for name, _, _ in _COLUMNS.values()]


def _preemption() -> ClaimResult:
    figures: dict[str, float] = {}
    rows = []
    for variant in VARIANTS:
        seeds = [_outcome(run(PREEMPTION, variant.policy, *variant.overrides, f"seed={k}")) for k in range(_SEEDS)]
        mean = {name: sum(seed[name] for seed in seeds) / _SEEDS for name in _MEANS}
        figures |= {f"{name}_{variant.key}": value for name, value in mean.items()}
        rows.append([variant.label, *cells(mean, _COLUMNS)])
    figures["throughput_recompute_over_swap"] = figures["throughput_recompute"] / figures["throughput_swap"]
    return ClaimResult(figures, [Table(["policy", *_COLUMNS], rows, f"Means of {_SEEDS} seeds")])


def _outcome(result: Result) -> dict[str, float]:
    """The figures of one run that claim 14 needs, in the order of `_MEANS`."""
    by_class = summarize_by_class(result.records, slo=result.scenario.resolve_slo())
    urgent, other = by_class[_URGENT], by_class[_OTHER]
    found = (
        figure(result, "preemptions"),
        figure(result, "recomputed_tokens"),
        figure(result, "swapped_out_blocks"),
        _number(urgent, "p99_ttft_ms"),
        _number(urgent, "slo_attainment"),
        _number(other, "mean_e2el_ms"),
        figure(result, "output_throughput"),
    )
    return dict(zip(_MEANS, found, strict=True))


def _number(summary: Summary, name: str) -> float:
    value = summary[name]
    assert value is not None, name
    return float(value)


CLAIMS = (
    Claim(
        10,
        LOW,
        "for short answers only",
        "8B chat on an A100: as good to {chat_as_good_to:g}/s; answers of 1 to 8 tokens: to {short_as_good_to:g}/s",
        "As good means here a mean latency within 10 %. The rate times the time of a request decides. At 10 requests"
        " per second static batching is as good for answers of 1 to 8 tokens of a 0.6B model on an H200"
        " ({small_at_10:.2f}). With an 8B model on an A100 it is as good up to {short_as_good_to:g}/s. Throughput is"
        " equal as long as static batching can serve the load at all.",
        "For chat with an 8B model on an A100 static batching can serve {chat_static_capacity:.1f} requests per"
        " second; at 10 its queue grows without end. Latency is worse at much lower rates: {chat_at_1:.1f} times at"
        " 1/s. It is as good only up to about {chat_as_good_to:g}/s, where requests rarely meet. A batch_timeout_s"
        " above 0 adds to that.",
        _low,
    ),
    Claim(
        11,
        PERCENTILES,
        "both, for different latencies",
        "p99 of e2e latency x {e2e_p99_ratio:.2f}; p99 of ITL x {itl_p99_light:.1f} at a light load, x"
        " {itl_p99_stall:.1f} at a heavy one",
        "'p99 much better' is right for whole answers. At 1 request per second p99 of TTFT is {ttft_p99_ratio:.1%} of"
        " static batching's, and p99 of e2e latency is {e2e_p99_ratio:.0%}, because no request waits for a batch of"
        " other requests to end. 'p99 worse' is right for the gaps between tokens (ITL), once the load is so high"
        " that prompts make more than 1 % of them longer. At 6 per second p99 is {itl_p99_stall:.1f} times static"
        " batching's with prompts in steps of their own (`continuous`), and {itl_p99_mixed:.1f} times with prompts in"
        " the same step (`chunked_prefill`). A static batch that decodes is never interrupted.",
        "'p99 worse' is wrong at a light load: at 1 per second p99 of ITL is {itl_p99_light:.0%} of static"
        " batching's. 'p50 as with static batching' is right for ITL only ({itl_p50_ratio:.2f}). p50 of TTFT falls to"
        " {ttft_p50_ratio:.1%} and p50 of e2e latency to {e2e_p50_ratio:.0%}; both fall further as the load grows.",
        _percentiles,
    ),
    Claim(
        12,
        CHUNKS,
        "holds below 512",
        "TTFT x {ttft_128_over_512:.1f} from 512 down to 128, x {ttft_8192_over_512:.2f} from 512 up to 8,192",
        "Below 512 the trade is as claimed: a chunk of 128 costs {ttft_128_over_512:.1f} times the TTFT, because"
        " every step reads all the weights. p99 of TPOT rises with the chunk all the way,"
        " {tpot_p99_8192_over_128:.1f} times from 128 to 8,192.",
        "From 512 to 8,192 TTFT hardly changes (x {ttft_8192_over_512:.2f}): the GPU's arithmetic is already the"
        " limit, so larger chunks gain nothing. And p99 of ITL does not show the cost of large chunks. It rises"
        " {itl_p99_4096_over_128:.0f} times from 128 to 4,096 and then falls. At 8,192 it is"
        " {itl_p99_8192_over_2048:.2f} of that at 2,048, because less than 1 % of the gaps then hold a chunk. But the"
        " longest gaps are {itl_longest_8192_over_2048:.1f} times as long as at 2,048.",
        _chunks,
    ),
    Claim(
        14,
        PREEMPTION,
        "pause, or order: priority; and swap",
        "all in time: pause preempts {preemptions_pause:.0f} times, swap {preemptions_swap:.0f};"
        " {attainment_order:.1%}: order: priority, {preemptions_order:.0f}",
        "If every urgent request must be in time, `pause` preempts least ({preemptions_pause:.0f} times): a request"
        " that loses its slot keeps its KV in place. If nearly all must be in time, it is `order: priority`, which"
        " preempts only when memory runs out ({preemptions_order:.0f} times, {attainment_order:.1%} within the SLO)."
        " For a low p99 at high throughput it is swap, best with swap_overlap: urgent p99 TTFT is {ttft_overlap:.0f}"
        " ms instead of {ttft_order:,.0f}, at {throughput_overlap:,.0f} tok/s, the most of all, and the other"
        " requests are served soonest too. `auto` always swaps here.",
        "Reserving all memory never preempts, but urgent requests then wait for a slot and memory like all others"
        " ({attainment_reserved:.1%} in time, even at the head of the queue). Preemption by recompute is fast for"
        " urgent requests ({ttft_recompute:.0f} ms), but it causes more of itself: tokens that are computed again"
        " keep memory and slots busy. It makes {preemptions_recompute:.0f} preemptions, and"
        " {throughput_recompute_over_swap:.0%} of swap's throughput. If recompute is the only way, victims with the"
        " least progress have the least to compute again ({preemptions_progress:.0f} preemptions,"
        " {throughput_progress:,.0f} tok/s), and those with the most memory have the most ({preemptions_memory:.0f},"
        " {throughput_memory:,.0f}).",
        _preemption,
    ),
)
