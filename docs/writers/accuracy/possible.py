"""Tests if a closed-loop run's figures are possible: the least time that its GPU needs, over the time that it took.

With `concurrency` requests in flight, each is answered in TTFT + (osl - 1) x TPOT, and in that time the GPU computes
`concurrency` prompts and osl - 1 steps of as many decodes. By the datasheet alone,

    prompts: concurrency x (2 x weights x isl + 2 x layers x heads x head_dim x isl^2) / peak FLOP/s
    decodes: (osl - 1) x (bytes of the KV of concurrency x (isl + osl / 2) tokens, and of the weights) / peak bytes/s

on each of `tp` GPUs. A prompt is computed in one step (of max_num_batched_tokens 8192, vLLM's default there), in which
the weights are read behind the arithmetic: `concurrency` of the steps read them for nothing. No other run of the
samples needs more than 70 % of its time. Above 100 % the figures contradict each other, unless prompts were not
computed (found in a cache, say, of which a row says nothing) or came in many small chunks.
"""

import math
from collections.abc import Sequence

from docs.writers.accuracy.silicon import Scored, SiliconRun
from docs.writers.tables import table

_COLUMNS = ("GPU", "model", "TP", "at once", "isl", "osl", "TTFT ms", "TPOT ms", "decodes %", "prompts %", "sum %",
            "error %")  # fmt: skip
_WORDS = """The table shows the share of its time for which a run needs the GPU: the least time by the datasheet's
peaks for the prompts and decodes of one answer, over TTFT + (osl - 1) x TPOT (`possible.py` beside its writer has the
arithmetic). The {} other runs need {} % at most. Runs above 100 % contradict themselves and are not scored. For the
other runs of vLLM 0.12 in fp8 the error grows with the prompts' share, as if a cache had held part of the prompts. The
rows do not record that, so they are scored as they are."""


def peak_shares(run: SiliconRun) -> tuple[float, float]:
    """The shares of the run's time that decodes and prompts need at the datasheet's peaks.

    NaN without a TTFT, and of a mixture: which experts a step reads is not known.
    """
    model, gpu, ranks = run.resolve_model(), run.resolve_gpu(), run.tensor_parallel
    if model.experts:
        return math.nan, math.nan
    time_s = run.ttft_s + (run.osl - 1) * run.tpot_s
    weights, head = model.layer_parameters(), model.table_parameters()
    steps = run.osl - 1
    read = max(steps - run.concurrency, 0) * (weights * model.dtype_bytes + head * model.embedding_bytes)
    kv = steps * run.concurrency * (run.isl + 0.5 * run.osl) * model.kv_bytes_per_token(ranks)
    flops = 2 * weights * run.isl + 2 * model.layers * model.heads * model.head_dim * run.isl**2
    decodes_s = (read / ranks + kv) / (gpu.bandwidth_gb_s * 1e9)
    prompts_s = run.concurrency * flops / ranks / (gpu.tflops(model.multiplied_in) * 1e12)
    return decodes_s / time_s, prompts_s / time_s


def contradicts_itself(run: SiliconRun) -> bool:
    """True if the GPU would need more time than the run took."""
    return sum(peak_shares(run)) > 1.0


def possible_section(scored: Sequence[Scored], told: Sequence[Scored]) -> str:
    """The runs `told` with what they ask of the GPU, and the most that the other `scored` ones ask; Markdown."""
    if not told:
        return ""
    asked = [sum(peak_shares(each.run)) for each in scored if each not in told]
    others = [share for share in asked if not math.isnan(share)]
    most = max(others, default=math.nan)
    lines = [
        "### What the rows ask of the GPU",
        "",
        *_WORDS.format(len(others), f"{100 * most:.0f}").splitlines(),
        "",
    ]
    rows = []
    for each in sorted(told, key=lambda each: -sum(peak_shares(each.run))):
        run = each.run
        decodes, prompts = peak_shares(run)
        counts = run.tensor_parallel, run.concurrency, f"{run.isl:,}", f"{run.osl:,}"
        times = f"{1e3 * run.ttft_s:.0f}", f"{1e3 * run.tpot_s:.2f}"
        shares = [f"{100 * share:.0f}" for share in (decodes, prompts, decodes + prompts)]
        error = "not scored" if contradicts_itself(run) else f"{100 * each.error:+.1f}"
        rows.append((run.gpu, run.model, *counts, *times, *shares, error))
    return "\n".join([*lines, *table(_COLUMNS, rows, range(2, len(_COLUMNS)))])
