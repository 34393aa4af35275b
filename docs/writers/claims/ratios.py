"""Claims 5 and 6: how many times faster continuous batching is than static batching."""

from functools import cache

import numpy as np

from docs.writers.claims.claim import Claim, ClaimResult, Table
from docs.writers.claims.runs import figure, percent, run, slots_key, steady_throughput, times
from scenarios.runs.result import Result

RATIO = "claim-05-continuous-over-static"
HALVES = "claim-06-half-short-half-long"

_OUTPUT = "workload.classes.0.output"
_RATE = "workload.classes.0.arrival.rate"


def _ratio(name: str, policy: str, *keys: str) -> float:
    return steady_throughput(run(name, policy, *keys)) / steady_throughput(run(name, "static", *keys))


def _mean_ratio(slots: int, *keys: str) -> float:
    """Over seeds, unless all are alike: where a few long answers decide, one seed does not say much."""
    seeds = _SEEDS if _spread(0) not in keys else 1
    at = (slots_key(slots), _ROOMY, f"workload.requests={_REQUESTS[slots]}", *keys)
    return float(np.mean([_ratio(RATIO, "orca", *at, f"seed={seed}") for seed in range(seeds)]))


_CVS = (0.0, 0.5, 1.0, 2.0, 4.0)
_BATCHES = (8, 32, 128, 256)
_REQUESTS = {8: 600, 32: 1500, 128: 3000, 256: 4000}  # enough batches of each
_SEEDS = 3
_ROOMY = "hardware.num_gpu_blocks=200000"  # so that slots, not memory, bound every batch
_LOADS = (0.1, 0.5, 0.75, 0.9, 1.0, 1.5, 4.0)
_LIMITS = (1.25, 1.5, 2.0, 4.0)
_LOADS_TRIED = {
    "static": (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 0.9),
    "orca": (0.02, 2.0, 4.0, 4.25, 4.5, 4.7),  # it carries 4.86 times what static batching does
}
_MEMORIES = (
    ("A100 80 GB", "a100-80gb", 1024),
    ("A100 80 GB", "a100-80gb", 4096),
    ("A100 40 GB", "a100-40gb", 4096),
    ("RTX 4090", "rtx-4090", 4096),
)


def _spread(cv: float) -> str:
    if cv == 0:
        return f"{_OUTPUT}={{dist: fixed, value: 200}}"
    return f"{_OUTPUT}={{dist: lognormal, mean: 200, cv: {cv:g}, max: 4096}}"


def _over_static() -> ClaimResult:
    figures: dict[str, float] = {}
    tables = [_by_spread(figures), _by_load(figures), _by_latency(figures), _by_memory(figures)]
    return ClaimResult(figures, tables)


def _by_spread(figures: dict[str, float]) -> Table:
    rows = []
    for cv in _CVS:
        found = {slots: _mean_ratio(slots, _spread(cv)) for slots in _BATCHES}
        drawn = run(RATIO, "orca", _spread(cv), slots_key(256), _ROOMY).records.requests.output_tokens
        rows.append([f"{cv:g}", f"{np.std(drawn) / np.mean(drawn):.1f}", *(times(found[slots]) for slots in _BATCHES)])
        figures |= {f"ratio_cv{cv:g}_b{slots}".replace(".", ""): ratio for slots, ratio in found.items()}
    alike = "cost={kind: linear, base_s: 0.01, per_token_s: 0, per_context_token_s: 0}"
    found = {slots: _mean_ratio(slots, _spread(1), alike) for slots in _BATCHES}
    rows.append(["1, all steps alike", "1.0", *(times(found[slots]) for slots in _BATCHES)])
    figures["steps_cv1_b32"] = found[32]
    head = ["CV asked for", "CV drawn, cut at 4,096", *(f"{slots} slots" for slots in _BATCHES)]
    return Table(
        head,
        rows,
        f"Throughput, orca / static, by spread of the outputs and batch; memory for all; mean of {_SEEDS} seeds",
    )


@cache
def _capacity() -> float:
    """Requests per second that static batching serves when all are there at once (CV 1, 32 slots)."""
    static = run(RATIO, "static", _ROOMY)
    return steady_throughput(static) / float(static.records.requests.output_tokens.mean())


def _at_load(policy: str, load: float) -> Result:
    return run(RATIO, policy, _ROOMY, f"{_RATE}={_capacity() * load:.6g}", "workload.requests=1000")


def _by_load(figures: dict[str, float]) -> Table:
    rows = []
    for load in _LOADS:
        static, orca = _at_load("static", load), _at_load("orca", load)
        ratio = {
            name: figure(orca, name) / figure(static, name)
            for name in ("output_throughput", "mean_ttft_ms", "mean_e2el_ms")
        }
        rows.append(
            [
                percent(load),
                times(ratio["output_throughput"]),
                times(1 / ratio["mean_ttft_ms"]),
                times(1 / ratio["mean_e2el_ms"]),
            ]
        )
        if load == 0.5:
            figures["ratio_half_load"] = ratio["output_throughput"]
            figures["e2e_half_load"] = 1 / ratio["mean_e2el_ms"]
            figures["ttft_half_load"] = 1 / ratio["mean_ttft_ms"]
    head = ["load, of what static carries", "throughput", "mean TTFT", "mean e2e latency"]
    return Table(head, rows, "How many times better orca is, by load (CV 1, 32 slots, 1,000 requests)")


def _by_latency(figures: dict[str, float]) -> Table:
    """The load that each carries at the same mean latency, read off between the loads that were run."""
    alone_s = figure(_at_load("orca", 0.02), "mean_e2el_ms")
    carried: dict[str, list[float]] = {}
    for policy, loads in _LOADS_TRIED.items():
        slower = np.maximum.accumulate([figure(_at_load(policy, load), "mean_e2el_ms") / alone_s for load in loads])
        carried[policy] = [float(np.interp(limit, slower, loads)) for limit in _LIMITS]
    ratios = [orca / static for static, orca in zip(carried["static"], carried["orca"], strict=True)]
    figures |= {f"equal_{limit:g}".replace(".", ""): ratio for limit, ratio in zip(_LIMITS, ratios, strict=True)}
    rows = [
        [f"{limit:g}", percent(static), percent(orca), times(ratio)]
        for limit, static, orca, ratio in zip(_LIMITS, carried["static"], carried["orca"], ratios, strict=True)
    ]
    head = ["latency limit", "load, static", "load, orca", "ratio"]
    caption = "Load carried at equal latency: mean e2e at most so many times that of a request alone (CV 1, 32 slots)"
    return Table(head, rows, caption)


def _by_memory(figures: dict[str, float]) -> Table:
    rows = []
    for label, gpu, max_tokens in _MEMORIES:
        keys = (
            f"hardware.gpu={gpu}",
            f"workload.max_tokens={max_tokens}",
            slots_key(256),
            "engine.max_num_batched_tokens=2048",
            "workload.requests=2000",
        )
        static, ours = run(RATIO, "static", *keys), run(RATIO, "chunked_prefill", *keys)
        ratio = steady_throughput(ours) / steady_throughput(static)
        batches = [int(result.records.rows.running.max()) for result in (static, ours)]
        rows.append([label, f"{max_tokens:,}", *map(str, batches), times(ratio)])
    figures["ratio_memory_small"], figures["batch_memory_small"] = ratio, batches[0]
    alone = run(RATIO, "static", slots_key(1), _ROOMY, "workload.requests=1000")
    many = run(RATIO, "orca", slots_key(64), _ROOMY, "workload.requests=1000")
    figures["ratio_no_batching"] = steady_throughput(many) / steady_throughput(alone)
    rows.append(["A100 80 GB, static of 1, 64 slots", "4,096", "1", "64", times(figures["ratio_no_batching"])])
    head = ["GPU", "max_tokens", "largest batch, static", "largest batch, paged", "throughput ratio"]
    return Table(head, rows, "Where memory bounds the batch: chunked_prefill / static, up to 256 slots, CV 1")


def _halves() -> ClaimResult:
    tail = (
        "workload.classes=[{name: tail, input: {dist: fixed, value: 200},"
        " output: {dist: lognormal, mean: 378, cv: 1.05, max: 8000}}]",
        "workload.max_tokens=8000",
        _ROOMY,
    )
    sizes = (8, 64, 256)
    halves = {slots: _ratio(HALVES, "orca", slots_key(slots), _ROOMY) for slots in sizes}
    tails = {slots: _ratio(HALVES, "orca", slots_key(slots), *tail) for slots in sizes}
    drawn = {
        "half under 10, half over 500": (halves, run(HALVES, "orca", slots_key(64), _ROOMY)),
        "lognormal, as much spread": (tails, run(HALVES, "orca", slots_key(64), *tail)),
    }
    rows = []
    for label, (ratios, result) in drawn.items():
        tokens = result.records.requests.output_tokens
        facts = [f"{tokens.mean():.0f}", f"{tokens.std() / tokens.mean():.2f}", f"{tokens.max():,}"]
        rows.append([label, *facts, *(times(ratios[slots]) for slots in sizes)])
    wasted = figure(run(HALVES, "static", slots_key(64), _ROOMY), "wasted_slot_fraction")
    return ClaimResult(
        {
            "ratio_b8": halves[8],
            "ratio_b64": halves[64],
            "ratio_tail_b64": tails[64],
            "ratio_bound": 1000 / ((5 + 750.5) / 2),
            "wasted": wasted,
        },
        [
            Table(
                ["outputs", "mean", "CV", "longest", *(f"{slots} slots" for slots in sizes)],
                rows,
                "Throughput, orca / static",
            )
        ],
    )


CLAIMS = (
    Claim(
        5,
        RATIO,
        "each under its own condition",
        "1x for equal lengths, {ratio_cv05_b8:.1f}x to {ratio_cv4_b256:.0f}x by spread and batch; {equal_15:.0f}x"
        " the load at equal latency",
        "These ratios need more load than either policy can serve, and memory for all slots. 2-4x: a coefficient of"
        " variation (CV) of 0.5 with 32 slots or more ({ratio_cv05_b32:.1f} to {ratio_cv05_b256:.1f}), or any larger"
        " spread with 8 ({ratio_cv1_b8:.1f} to {ratio_cv4_b8:.1f}). 3-5x: a CV of 1 with up to 32 slots. 5-15x: a CV"
        " of 1 with 32 to 256 slots ({ratio_cv1_b32:.1f} to {ratio_cv1_b256:.0f}). 10-20x: a CV of 2 with 128 to 256"
        " ({ratio_cv2_b128:.0f} to {ratio_cv2_b256:.0f}). Above 20x: only a CV of 4 with 256 ({ratio_cv4_b256:.0f})."
        " Outputs of public traces (Azure, Mooncake, ServeGen) have CVs of 0.7 to 2.1. 40x is reached at equal"
        " latency, which Orca's and vLLM's papers report. If answers may take 1.5 times as long as on an empty"
        " server, continuous batching serves {equal_15:.0f} times the load; if they may take 2 times as long,"
        " {equal_2:.0f} times. 40x is also reached against a baseline without any batching ({ratio_no_batching:.0f})."
        " Half of it is reached where the cache is so small that reserving max_tokens leaves a batch of"
        " {batch_memory_small:.0f} ({ratio_memory_small:.0f}).",
        "With equal lengths there is nothing to gain ({ratio_cv0_b32:.2f}). At half of the load that static batching"
        " can serve, throughput is equal ({ratio_half_load:.2f}), because both serve all that comes; whole answers"
        " come {e2e_half_load:.1f} times sooner. A ratio without lengths, batch, load and latency says nothing. And"
        " published figures include other differences: kernels, a framework's overhead for each token, another batch"
        " size.",
        _over_static,
    ),
    Claim(
        6,
        HALVES,
        "not the worst",
        "{ratio_b64:.1f}x at 64 slots, where a lognormal of the same mean and spread has {ratio_tail_b64:.1f}x",
        "Static batching wastes {wasted:.0%} of its slots here, and continuous batching serves {ratio_b64:.1f} times"
        " as much with 64 slots. With 8 slots it already serves {ratio_b8:.1f} times as much, because most batches"
        " hold a long answer.",
        "The loss has a limit. No batch lasts longer than 1,000 steps, and the mean answer has 378 tokens, so no"
        " batch size saves more than {ratio_bound:.2f} times the steps. Two groups of lengths are an easy case; a"
        " long tail is a hard one. With the same mean and CV it gives {ratio_tail_b64:.1f} times at 64 slots, and"
        " more with more slots.",
        _halves,
    ),
)
