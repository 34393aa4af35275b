"""Claims 8 and 9: what KV cache takes, and what moving it costs."""

from docs.writers.claims.claim import Claim, ClaimResult, Table
from docs.writers.claims.runs import figure, largest_batch, run
from scenarios.runs.result import Result
from simulator.hardware.gpus import GPUS

SWAP = "claim-08-swap-per-gigabyte"
SEVENTY = "claim-09-kv-of-70b"

_ENDLESS_GB_S = 1e9
_LINKS = {
    "PCIe 4.0 x16, what copies reach (`a100-80gb`)": GPUS["a100-80gb"].host_link_gb_s,
    "PCIe 4.0 x16, nominal": 32.0,
    "PCIe 5.0 x16, what copies reach (`h100`)": GPUS["h100"].host_link_gb_s,
    "NVLink-C2C of a Grace Hopper, nominal": 450.0,
    "the claim": 500.0,
}


def _with_link(gb_s: float) -> Result:
    return run(SWAP, "preemptive", f"hardware.gpu={{base: a100-80gb, host_link_gb_s: {gb_s:g}}}")


def _swap() -> ClaimResult:
    free = _with_link(_ENDLESS_GB_S)
    block_bytes = free.scenario.resolve_model().kv_bytes_per_token() * free.scenario.engine.block_size
    moved_gb = (figure(free, "swapped_out_blocks") + figure(free, "swapped_in_blocks")) * block_bytes / 1e9
    lost_s = {link: figure(_with_link(gb_s), "duration") - figure(free, "duration") for link, gb_s in _LINKS.items()}
    again = run(SWAP, "preemptive", "engine.preemption_mode=recompute")
    recompute_s = figure(again, "duration") - figure(free, "duration")
    rows = [
        [link, f"{gb_s:g}", f"{lost_s[link] * 1e3:.1f}", f"{lost_s[link] * 1e3 / moved_gb:.1f}"]
        for link, gb_s in _LINKS.items()
    ]
    rows.append(["no link: recompute", "", f"{recompute_s * 1e3:.0f}", f"{recompute_s * 1e3 / moved_gb:.0f}"])
    ours = lost_s[next(iter(_LINKS))]
    return ClaimResult(
        {
            "moved_gb": moved_gb,
            "lost_ms": ours * 1e3,
            "ms_per_gb": ours * 1e3 / moved_gb,
            "gb_s_for_2_ms": 1 / 2e-3,
            "off_by": ours * 1e3 / moved_gb / 2,
            "recompute_ms": recompute_s * 1e3,
            "recomputed_tokens": figure(again, "recomputed_tokens"),
            "recompute_over_swap": recompute_s / ours,
        },
        [
            Table(
                ["link", "GB/s", "time lost, ms", "ms per GB moved"],
                rows,
                f"One preemption: {moved_gb:.2f} GB moved, out and in together",
            )
        ],
    )


_HEADS = {
    "grouped-query, 8 heads": ("llama-2-70b", 7630),
    "every head its own, 64": ("{base: llama-2-70b, kv_heads: 64}", 954),
}
_SHARES = {"4,096 (all full)": (3840, 256), "1,024": (768, 256)}


def _seventy() -> ClaimResult:
    rows = []
    figures: dict[str, float] = {}
    for heads, (model, blocks) in _HEADS.items():
        fits = []
        for inputs, outputs in _SHARES.values():
            keys = (
                f"model={model}",
                f"hardware.num_gpu_blocks={blocks}",
                f"workload.classes.0.input.value={inputs}",
                f"workload.classes.0.output.value={outputs}",
            )
            result = run(SEVENTY, "orca", *keys)
            fits.append(largest_batch(result))
        per_token = result.scenario.resolve_model().kv_bytes_per_token()
        each_gb = per_token * 4096 / 1e9
        rows.append([heads, f"{per_token:,}", f"{each_gb:.2f}", f"{40 / each_gb:.1f}", *map(str, fits)])
        name = "grouped" if "grouped" in heads else "all_heads"
        figures |= {f"gb_{name}": each_gb, f"fit_{name}": fits[0], f"short_{name}": fits[1]}
    figures["requests_of_40_gb"] = 40 / figures["gb_grouped"]
    head = ["keys and values", "bytes per token", "GB at 4,096 tokens", "40 GB / that"]
    return ClaimResult(figures, [Table([*head, "run at once", "run at once, 1,024 tokens each"], rows)])


CLAIMS = (
    Claim(
        8,
        SWAP,
        "wrong by a factor of {off_by:.0f}",
        "{ms_per_gb:.0f} ms per GB over PCIe 4.0 x16",
        "2 ms per GB are {gb_s_for_2_ms:.0f} GB/s. Only a link such as a Grace Hopper's NVLink-C2C comes near that."
        " An A100's own memory is faster, but a copy within it is no swap to host memory.",
        "An A100 is connected by PCIe 4.0 x16: 32 GB/s nominal, about 25 in copies. {moved_gb:.2f} GB out and in cost"
        " {lost_ms:.0f} ms, {ms_per_gb:.0f} ms per GB. That is still {recompute_over_swap:.1f} times cheaper than"
        " computing the {recomputed_tokens:,.0f} tokens again ({recompute_ms:.0f} ms). Blocks that are copied one by"
        " one use less of the link and cost more. A copy that runs during computation stops no request and costs"
        " less.",
        _swap,
    ),
    Claim(
        9,
        SEVENTY,
        "needs a condition",
        "{gb_grouped:.2f} GB per request with grouped-query attention, {gb_all_heads:.1f} GB without;"
        " {fit_grouped:.0f} or {fit_all_heads:.0f} fit in 40 GB",
        "40 GB are the KV of a batch of {requests_of_40_gb:.0f} requests of 4,096 tokens with grouped-query attention"
        " (Llama 2 70B and later), or of four requests if every head keeps its own keys and values. So 80 GB with 40"
        " GB of weights serve {fit_grouped:.0f} such requests at once, or {fit_all_heads:.0f}. Requests are rarely"
        " that long: with 1,024 tokens each, {short_grouped:.0f} fit, or {short_all_heads:.0f}.",
        "As a figure for one request it is wrong for any 70B model of 80 layers: {gb_grouped:.2f} GB, or"
        " {gb_all_heads:.1f} GB without grouped queries. And 40 GB of weights are 70 billion parameters at 4.6 bits."
        " In bf16 they are 140 GB, and do not fit one GPU of 80 GB. A server also keeps a share free for activations"
        " and graphs (`batchlab kv`).",
        _seventy,
    ),
)
