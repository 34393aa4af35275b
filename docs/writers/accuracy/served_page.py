"""docs/served.md: runs of real servers against their predictions, by cell, and how often the intervals hold them."""

import json
from collections.abc import Mapping
from typing import Any

from docs.writers.accuracy.served_score import FIGURES
from scenarios.prediction.residuals import FILE, METRICS

_HEAD = """# Runs of real servers

This page is generated: `make pages PAGES=served` writes it from the figures that `make accuracy` keeps. The runs are
from the sample of aiconfigurator-core 0.12.0 (Apache-2.0), which gathers InferenceX's and NVIDIA's own. **These rows
were seen**: 2,012 aggregated runs (`agg_vllm`, `agg_sglang`, `agg_trtllm`), of which {rows:,} are priced and scored
here. The other rows of the sample were not opened. Kernel tables, not runs, price the steps. Three things were chosen
on these rows: the hosts of SGLang (two constants) and of TensorRT-LLM (none), and the intervals. Each was tested on
cells that it had not seen.

An error is simulated over measured, less one; a median is of its size. A row gives one figure a run and none of the
server's flags: `docs/writers/accuracy/served.py` says what is taken for them, and which rows contradict themselves and
are not scored (drafts that the row does not name, sums of several servers' GPUs). The mean TTFT holds the first wave,
which the client sends at once, and for some servers the wait for a stream's first ten tokens.

"""
_WORST = """
## The worst cells, and why

- TensorRT-LLM, Qwen3-32B on GB200 and DeepSeek-R1-NVFP4 on B200 (Dynamo's recipes, 4,000 and 1,000 tokens): TPOT is 2
  to 7 times ours, and 21 ms at two users, more than the weights take to read. What ran beside it is not known.
- vLLM, Llama-3.1-8B in fp8 on H200: measured TPOT with its prompts would need more than three quarters of the peak in
  fp8; most likely prompts were found in the prefix cache.
- gpt-oss-120b at 512 users: the server held a few requests at a time (TPOT as at 16 users, TTFT of minutes), by a flag
  that the row does not have.
- SGLang, DeepSeek on B300 and in fp4 without a version: TPOT follows ours but 1.3 to 3 times as large, and TTFT of
  seconds at four users; kernels compiled on the way would do that.
- Prompts of 8,192 tokens at 64 users and more, on B200: prefill takes 1.3 to 2 times what the kernels add up to.
"""


def page() -> str:
    """The page, from the figures last kept."""
    kept = json.loads(FIGURES.read_text(encoding="utf-8"))
    residuals = json.loads(FILE.read_text(encoding="utf-8"))
    lines = [_HEAD.format(rows=residuals["rows"]).rstrip(), "", *_table("engine", kept["engines"]), ""]
    lines += ["## By cell", "", *_table("engine, model, GPU, precision", kept["cells"])]
    lines += [_WORST, *_coverage(residuals)]
    return "\n".join(lines).rstrip() + "\n"


def _table(name: str, groups: Mapping[str, Mapping[str, float]]) -> list[str]:
    head = f"| {name} | rows | refused (%) | TPOT median (%) | p90 | TTFT median (%) | p90 |"
    lines = [head, "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for group, found in groups.items():
        if found["rows"]:
            names = ("refused", "tpot_median", "tpot_p90", "ttft_median", "ttft_p90")
            shown = [f"{100 * found[each]:.1f}" if each in found else "-" for each in names]
            lines.append(f"| {group} | {found['rows']:.0f} | {' | '.join(shown)} |")
    return lines


def _coverage(residuals: Mapping[str, Any]) -> list[str]:
    """How often an interval holds rows of what it knows nothing of."""
    lines = [
        "## How often an interval holds",
        "",
        "`prediction` in summary.json has intervals of 90 %. Each line leaves out the rows of one model, GPU, version",
        "or engine after the other and asks the intervals by all others. The width is the upper end over the lower,",
        "in the median. Groups are those of 100 rows and more: the one that is held least often, and the most.",
        "",
        "| metric | left out | held (%) | width | groups (%) |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for metric in METRICS:
        for way, found in residuals["tested"][metric].items():
            shares = {name: share for name, (_, share) in found["groups"].items()}
            ends = sorted(shares, key=lambda name: shares[name])
            words = ", ".join(f"{name} {100 * shares[name]:.0f}" for name in dict.fromkeys([*ends[:1], *ends[-1:]]))
            held = f"{100 * found['coverage']:.1f} | {found['width']:.2f}"
            lines.append(f"| {metric} | {way} | {held} | {words or '-'} |")
    wider = ", ".join(f"{name} {times:.2f}" for name, times in residuals["wider"].items())
    lines += [
        "",
        f"Where kernels were measured the intervals are as wide as that; by the price's basis they are so many times as"
        f" wide (in logarithms): {wider}. No run lies outside of everything measured: its factor is not tested.",
    ]
    return lines
