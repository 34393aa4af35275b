"""Claims 4, 13 and 15: what else changes with the policy, and how much of a ratio of systems is scheduling."""

from docs.writers.claims.claim import Claim, ClaimResult, Table
from docs.writers.claims.runs import (
    bandwidth_utilisation,
    figure,
    memory_efficiency,
    model_flops_utilisation,
    percent,
    run,
    slots_key,
    steady_throughput,
    times,
    useful_slots,
)
from scenarios.runs.result import Result

EIGHT = "claim-04-static-8-continuous-64"
USED = "claim-13-utilisation"
SYSTEMS = "claim-15-four-systems"

_RATE = "workload.classes.0.arrival.rate"


def _eight() -> ClaimResult:
    cases = (("static", 8), ("static", 64), ("continuous", 8), ("continuous", 64), ("chunked_prefill", 64))
    found = {case: run(EIGHT, case[0], slots_key(case[1])) for case in cases}
    rate = {case: steady_throughput(result) for case, result in found.items()}
    rows = [
        [
            f"{policy}, {slots}",
            f"{rate[policy, slots]:,.0f}",
            *(f"{figure(result, name):.0f}" for name in ("p50_tpot_ms", "p99_tpot_ms", "p50_itl_ms", "p99_itl_ms")),
            percent(useful_slots(result)),
            percent(memory_efficiency(result)),
        ]
        for (policy, slots), result in found.items()
    ]
    static, continuous = found["static", 8], found["continuous", 64]
    head = ["policy, slots", "tok/s", "TPOT p50, ms", "TPOT p99", "ITL p50", "ITL p99", "slots that work", "memory"]
    return ClaimResult(
        {
            "said_static_tokens_s": 8 / 0.045,
            "said_continuous_tokens_s": 64 / 0.052,
            "both": rate["continuous", 64] / rate["static", 8],
            "slots_alone": rate["continuous", 64] / rate["continuous", 8],
            "policy_alone": rate["continuous", 8] / rate["static", 8],
            "policy_alone_64": rate["continuous", 64] / rate["static", 64],
            "memory_static": memory_efficiency(static),
            "memory_continuous": memory_efficiency(continuous),
            "useful_static": useful_slots(static),
            "useful_continuous": useful_slots(continuous),
            "itl_static": figure(static, "p99_itl_ms"),
            "itl_continuous": figure(continuous, "p99_itl_ms"),
        },
        [Table(head, rows, "All requests at once. Memory: KV tokens in use / tokens in the blocks taken")],
    )


def _used() -> ClaimResult:
    rates = {slots: steady_throughput(run(USED, "orca", slots_key(slots))) / 200 for slots in (8, 64)}
    cases: dict[str, Result] = {}
    for slots in (8, 64):
        for policy in ("static", "orca"):
            cases[f"{policy}, {slots} slots"] = run(USED, policy, slots_key(slots))
    for policy in ("static", "orca"):
        keys = (slots_key(8), f"{_RATE}={rates[8] / 4:.6g}", "workload.requests=1000")
        cases[f"{policy}, 8 slots, a quarter of orca's load"] = run(USED, policy, *keys)
    rows = [
        [
            label,
            percent(useful_slots(result)),
            percent(figure(result, "busy_fraction")),
            percent(model_flops_utilisation(result), 1),
            percent(bandwidth_utilisation(result)),
        ]
        for label, result in cases.items()
    ]
    quarter = cases["orca, 8 slots, a quarter of orca's load"]
    return ClaimResult(
        {
            "static_slots": useful_slots(cases["static, 8 slots"]),
            "static_slots_64": useful_slots(cases["static, 64 slots"]),
            "continuous_slots": useful_slots(cases["orca, 8 slots"]),
            "static_busy": figure(cases["static, 8 slots"], "busy_fraction"),
            "static_mfu": model_flops_utilisation(cases["static, 64 slots"]),
            "continuous_mfu_8": model_flops_utilisation(cases["orca, 8 slots"]),
            "continuous_mfu": model_flops_utilisation(cases["orca, 64 slots"]),
            "quarter_load_slots": useful_slots(quarter),
        },
        [Table(["policy", "slots that work", "time with a step", "of peak FLOP/s", "of peak bandwidth"], rows)],
    )


COMPARED = ("vllm", "tensorrt_llm", "sglang")
"""The systems of claim 15, beside static batching: names of policies, a column's worth of runs each."""

_CAPS = (1000, 4000, 16000)


def _systems() -> ClaimResult:
    static = {slots: steady_throughput(run(SYSTEMS, "static", slots_key(slots))) for slots in (1, 8, 32, 256)}
    best = max(static.values())
    found = {(policy, cap): run(SYSTEMS, policy, f"workload.max_tokens={cap}") for policy in COMPARED for cap in _CAPS}
    rate = {case: steady_throughput(result) for case, result in found.items()}
    rows = [
        [f"static, {slots} slots", f"{tokens_s:,.0f}", *(times(rate["vllm", _CAPS[0]] / tokens_s),), "", ""]
        for slots, tokens_s in static.items()
    ]
    rows += [
        [
            policy,
            f"{rate[policy, _CAPS[0]]:,.0f}",
            times(rate["vllm", _CAPS[0]] / rate[policy, _CAPS[0]]),
            *(f"{rate[policy, cap] / rate['vllm', cap]:.2f}" for cap in _CAPS[1:]),
        ]
        for policy in COMPARED
    ]
    caps = [f"/ vllm, max_tokens {cap:,}" for cap in _CAPS[1:]]
    return ClaimResult(
        {
            "vllm": rate["vllm", _CAPS[0]] / best,
            "vllm_over_8": rate["vllm", _CAPS[0]] / static[8],
            "vllm_over_one": rate["vllm", _CAPS[0]] / static[1],
            **{f"{policy}_over_vllm": rate[policy, _CAPS[0]] / rate["vllm", _CAPS[0]] for policy in COMPARED},
            **{f"{policy}_long_cap": rate[policy, _CAPS[-1]] / rate["vllm", _CAPS[-1]] for policy in COMPARED},
        },
        [Table(["policy", "tok/s", "vllm is faster by", *caps], rows, "All requests at once, the same step costs")],
    )


CLAIMS = (
    Claim(
        4,
        EIGHT,
        "contradicts itself",
        "{both:.1f}x in all: {slots_alone:.1f}x from 64 slots instead of 8, {policy_alone:.1f}x from the policy",
        "Throughput, slots and memory change as claimed. The share of slots at work rises from {useful_static:.0%} to"
        " {useful_continuous:.0%}. Static batching uses {memory_static:.0%} of the KV blocks that it takes, because"
        " it reserves prompt + max_tokens. Blocks on demand are used to {memory_continuous:.0%}. The gain in"
        " throughput is larger here than claimed: {both:.1f} times. The p99 of the gaps between tokens (ITL) rises"
        " from {itl_static:.0f} to {itl_continuous:.0f} ms, because prompts come between the tokens. The p99 of TPOT"
        " does not rise, as TPOT is a mean over an answer.",
        "8 requests that get a token every 45 ms make {said_static_tokens_s:.0f} tok/s, not 1,247. 64 requests at 52"
        " ms make {said_continuous_tokens_s:,.0f}, not 3,891. And two things change at once. From 8 to 64 slots"
        " continuous batching gains {slots_alone:.1f} times, because a decode step reads the weights once for all."
        " From static to continuous the gain is {policy_alone:.1f} times at 8 slots and {policy_alone_64:.1f} times"
        " at 64.",
        _eight,
    ),
    Claim(
        13,
        USED,
        "right for slots, under full load",
        "slots {static_slots:.0%} to {continuous_slots:.0%}; time with a step {static_busy:.0%} with both",
        "The share of slots that make tokens rises from {static_slots:.0%} to {continuous_slots:.0%}, with 8 slots, a"
        " CV of 1 and work for all. With 64 slots static batching has only {static_slots_64:.0%}.",
        "nvidia-smi calls the time with a step in flight utilisation. That is {static_busy:.0%} with static batching"
        " too. Continuous batching uses {continuous_mfu_8:.0%} of the GPU's arithmetic with 8 slots and"
        " {continuous_mfu:.0%} with 64, static batching {static_mfu:.0%}: decoding waits for memory. And utilisation"
        " follows load. At a quarter of the load continuous batching keeps {quarter_load_slots:.0%} of its slots at"
        " work, which is no fault.",
        _used,
    ),
    Claim(
        15,
        SYSTEMS,
        "1 : 5 or more for the first, then 1 : 1",
        "vllm {vllm:.1f}x the best static; tensorrt_llm / vllm {tensorrt_llm_over_vllm:.2f}, sglang / vllm"
        " {sglang_over_vllm:.2f}",
        "Scheduling explains the first step, and more than 5: vllm serves {vllm:.1f} times as much as the best static"
        " batching here, and {vllm_over_8:.1f} times as much as static batches of 8. The ratio comes from the lengths"
        " (claim 5).",
        "It explains almost nothing of 5 : 8 : 6. With the same step costs TensorRT-LLM's scheduler serves"
        " {tensorrt_llm_over_vllm:.2f} times as much as vLLM's, and SGLang's {sglang_over_vllm:.2f} times as much,"
        " because all keep their slots full. SGLang's default gives prompts steps of their own. If max_tokens is far"
        " above the real lengths, TensorRT-LLM's falls to {tensorrt_llm_long_cap:.2f}, because it reserves"
        " (guaranteed_no_evict). SGLang's, which reserves a share, stays at {sglang_long_cap:.2f}. The rest of the"
        " ratios comes from kernels, quantisation, work on the CPU between steps, and prefixes shared by requests."
        " This workload has no shared prefixes.",
        _systems,
    ),
)
