"""docs/served.md: runs of real servers against their predictions, by cell, and how often the intervals hold them."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

from docs.writers.accuracy.floor import floor_lines
from docs.writers.accuracy.score_table import score_table
from docs.writers.accuracy.served_score import FIGURES
from docs.writers.accuracy.their_estimates import FILE as THEIR_FILE
from docs.writers.tables import Files, about, csv_text, table, write_files
from reports.picture import write
from scenarios.prediction.prediction import FILE, LOADS, METRICS, OUTSIDE, WARM

WORST = 3  # cells of an engine
ERRORS = "data/served-errors.csv"
INTERVALS = "data/interval-coverage.csv"
WIDTHS = "data/interval-widths.csv"
_HEAD = """# Runs of real servers

`make pages PAGES=served` writes this page from the figures that `make accuracy` keeps. The runs are from the sample of
aiconfigurator-core 0.12.0 (Apache-2.0), which gathers InferenceX's and NVIDIA's runs. **These rows were seen**: 2,012
aggregated runs (`agg_vllm`, `agg_sglang`, `agg_trtllm`), of which {rows:,} are priced and scored here. The other rows
of the sample were not opened. Step prices come from kernel tables, not from runs. A few constants were chosen on these
rows; the section below shows what they give where a cell is left out of the choice.

Error = simulated / measured - 1; medians are of absolute errors. A row has the mean TTFT and TPOT of a run, and none of
the server's flags. `docs/writers/accuracy/recipes.py` has the flags of InferenceX's public scripts by date. Rows that
contradict themselves are not scored (`served.py`): drafts that the row does not name, sums over several servers' GPUs,
prompts that were found in a cache. InferenceX's client is public too: each user sends ten requests of 0.8 to 1.0 times
the named lengths, all users start at once, and the means are over all requests. Qwen3-32B on H100 is NVIDIA's run:
genai-perf with fixed lengths, ten requests a user under vLLM, 20 under SGLang and TensorRT-LLM, 2,000 at most.

"""
_OTHERS = """ aiconfigurator 0.12.0 on the same runs (`cli_estimate` with its newest kernel tables, and the precision,
parallel sizes, lengths and users of each run; `docs/writers/accuracy/their_estimates.py`, 28 November 2026). It
answers by a formula in milliseconds; a run here takes a tenth of a second. It prices no run whose kernels or memory it
lacks. Median errors in % of the runs that both price:
"""
_THEIR_HEAD = ("engine", "both price", "its TPOT", "p90", "its TTFT", "our TPOT", "p90", "our TTFT")
_TTFT = """
## What was chosen on these rows

| what | median error, all cells (%) | each cell left out (%) |
| --- | --- | --- |
| SGLang's host of a gated delta net, 2.4 ms a step (Qwen3.5, five cells) | a step 3.8 | 4.7 |
| SGLang's host of sparse attention, 5.0 ms a step (GLM-5, three cells) | a step 2.9 | 3.6 |
| SGLang's host before 0.5.6, 2.5 ms a step (DeepSeek in fp4) | TPOT 7.4 | of Qwen3-32B 6.9 |
| block-scaled experts launch 1.5 ms a layer more (Hopper, three cells) | TTFT 8.5, from 30.6 | 8.5 |
| the same on Blackwell, 0.6 ms (four cells) | TTFT 11.8, from 20.7 | 16.1 |
| SGLang's DeepSeek in fp8 on B200: prompts x 1.8, launch as published | TTFT 3.0, from 33.1 | by TP or length 3.0 |
| TensorRT-LLM's DeepSeek in fp8 on B200: prompts x 1.4 | TTFT 8.8, from 23.7 | by TP 8.8 |
| prompts by a power law, decodes even (241 of vLLM) | TPOT 4.9, from 7.0; TTFT 11.0, from 12.8 | no number fitted |
| launch of a layer with latent attention, 2.0 ms (66 runs) | TTFT 28, from 36 with 1.35 ms as published | 32 |
| one prompt a step beside decodes (NVIDIA's Qwen3-32B) | vLLM's TTFT 8.7, from 28.4 | by the other engine 8.7 |
| TensorRT-LLM 1.0: prompts x 1.2, host 1.4 ms + 7 us a request | TTFT 10.0, TPOT 2.0 | TP left out: 11.7, 4.4 |
| fixed lengths drift apart in Dynamo's recipes | too few runs | no number fitted |
| no norms within all-reduces of models with experts (368 runs of vLLM) | TPOT 4.5, from 8.6 | no number fitted |

vLLM 0.17 and later fuse norms into all-reduces by default (`fuse_allreduce_rms`). Runs of MiniMax and gpt-oss under
0.18 and 0.19 took as long as without the fusion; 76 runs of Kimi-K2.5, whose scripts name the key, are 4.1 % off with
it and 7.9 without. So models with experts are priced without it, unless `cost.fuse_allreduce_rms` is true.

Published figures, not these rows, give the hosts of vLLM, newer TensorRT-LLM and SGLang with other models (0.31 ms),
the other launches, and tokenising: 10 us a token under vLLM and SGLang. These rows chose the 6 us of Llama 3, gpt-oss
and TensorRT-LLM.

## Sources of the error of TTFT

- **The benchmark**, known from its scripts and simulated: all users start at once, which makes a tenth of the
  requests; `batch_wait_timeout_iters` of TensorRT-LLM (20 steps for Llama with 1,024 tokens each way, 40 for DeepSeek
  in fp8 on B200) and its piecewise graphs; SGLang's `scheduler_recv_interval` (10, and 30 on Blackwell); vLLM's budget
  of twice the prompt, and its captured sizes. In NVIDIA's runs of Qwen3-32B users with fixed lengths follow each
  other, one prompt a step, so each waits for the prompt before it. The script's rule leaves 1,500 tokens more to a
  step: with it vLLM's TTFT is 34 % off, with vLLM's default of 8,192 tokens 74 %.
- **The way in**: tokenising, one prompt after another. Random text took 10 us a token with the tokenisers of DeepSeek
  and Qwen, 6.5 with Llama 3's (measured on one core).
- **Launches**: without a CUDA graph a prompt of 1,024 tokens takes as long as the host needs to launch its kernels, 60
  to 150 ms for 60 layers with experts. This holds for vLLM before `--max-cudagraph-capture-size 2048`, SGLang before
  0.5.10, and TensorRT-LLM. MiniMax with and without that flag differs by 60 ms in TTFT. Block-scaled experts launch
  longer where nothing compiles the layers: 82 to 103 ms more for DeepSeek and Qwen3.5 on H200, 60 ms for Qwen3.5 on
  B200.
- **A trained gate**: its uneven load of experts fills more tiles of a prompt.
- **Left**: the causes of the next table; prompts of GLM-5 in fp8, and Llama's on B200. Where kernels were compiled
  during the run, a tenth of the requests waited for about a minute from 16,384 prompt tokens on.
"""
CAUSES = Path(__file__).with_name("causes.json")
"""Why a cell is off, as far as it was found: words by cell."""


PICTURE = "pictures/served-cells.png"
_ALT = "Error of TPOT and TTFT in each cell: half of its runs are nearer than the mark, nine in ten than the line's end"


def write_page(folder: Path) -> None:
    """Write served.md, its picture and its data files into `folder`."""
    from docs.writers.accuracy.cells_picture import cells_picture

    write(folder / "served.md", page())
    write_files(folder, files())
    write(folder / PICTURE, cells_picture(json.loads(FIGURES.read_text(encoding="utf-8"))["cells"]).png)


def page() -> str:
    """The page, from the figures last kept."""
    kept = json.loads(FIGURES.read_text(encoding="utf-8"))
    residuals = json.loads(FILE.read_text(encoding="utf-8"))
    lines = [
        _HEAD.format(
            rows=round(sum(each["rows"] * (1.0 - each["refused"]) for each in kept["engines"].values()))
        ).rstrip(),
        "",
        *score_table("engine", kept["engines"]),
        _OTHERS,
        *table(_THEIR_HEAD, map(_beside, json.loads(THEIR_FILE.read_text(encoding="utf-8")).items())),
        "",
    ]
    for kind, name in (("models", "model"), ("GPUs", "GPU"), ("precisions", "precision")):
        if kind in kept:
            lines += [f"## By {name}", "", *score_table(name, kept[kind]), ""]
    lines += ["## By cell", "", f"![{_ALT}]({PICTURE})", "", _ERRORS_LINE, "", *_worst(kept["cells"]), _TTFT.lstrip()]
    return "\n".join([*lines, *floor_lines(kept["floor"]), *_coverage(residuals)]).rstrip() + "\n"


def files() -> Files:
    """The data files, from the figures last kept: errors of every group of runs, and of every interval."""
    kept = json.loads(FIGURES.read_text(encoding="utf-8"))
    residuals = json.loads(FILE.read_text(encoding="utf-8"))
    causes = json.loads(CAUSES.read_text(encoding="utf-8"))
    errors = [
        (kind, name, f"{found['rows']:.0f}", *(_percent(found, each) for each in _FIGURES), causes.get(name, ""))
        for kind, title in _KINDS.items()
        for name, found in kept.get(title, {}).items()
        if found["rows"]
    ]
    metrics = (*METRICS, WARM)
    held = [
        (metric, way, f"{100 * found['coverage']:.1f}", f"{found['width']:.2f}", group, rows, f"{100 * share:.1f}")
        for metric in metrics
        for way, found in residuals["tested"][metric].items()
        for group, (rows, share) in ({"all": ("", found["coverage"])} | found["groups"]).items()
    ]
    widths = [
        (metric, trait, _value(trait, value), f"{math.exp(log):.2f}")
        for metric in metrics
        for trait, effects in sorted(residuals["spread"][metric].items())
        for value, log in effects.items()
    ]
    return {
        ERRORS: csv_text(("group", "name", "rows", *_FIGURES, "cause"), errors),
        INTERVALS: csv_text(("metric", "left_out", "held", "width", "group", "rows", "held_in_group"), held),
        WIDTHS: csv_text(("metric", "trait", "value", "times"), widths),
    }


_FIGURES = ("refused", "tpot_median", "tpot_p90", "ttft_median", "ttft_p90")
_KINDS = {"engine": "engines", "model": "models", "gpu": "GPUs", "precision": "precisions", "version": "versions",
          "cell": "cells"}  # fmt: skip
_ERRORS_LINE = about(
    ERRORS, "errors in % by engine, model, GPU, precision, version and cell, and the cause where one was found"
)


def _percent(found: Mapping[str, float], name: str) -> str:
    return f"{100 * found[name]:.1f}" if name in found else ""


def _beside(of_engine: tuple[str, Mapping[str, float]]) -> list[str]:
    """A row of an engine's runs: aiconfigurator's errors, and ours."""
    engine, found = of_engine
    names = [f"{whose}_{what}" for whose in ("theirs", "ours") for what in ("tpot", "tpot_p90", "ttft")]
    return [engine, f"{found['both']} of {found['runs']}", *(f"{100 * found[name]:.1f}" for name in names)]


def _worst(cells: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The cells in which a tenth of the rows is furthest off, of each engine a few, with what was found."""
    lines = [f"The worst {WORST} cells of each engine, with the cause:", ""]
    causes = json.loads(CAUSES.read_text(encoding="utf-8"))
    for engine in sorted({cell.split()[0] for cell in cells}):
        own = {cell: found for cell, found in cells.items() if cell.split()[0] == engine and "tpot_p90" in found}
        for cell in sorted(own, key=lambda cell: -own[cell]["tpot_p90"])[:WORST]:
            share = f"TPOT p90 {100 * own[cell]['tpot_p90']:.0f} %"
            words = f"- **{cell}**, {share}: {causes.get(cell, 'not looked into')}."
            lines += wrap(words, 118, subsequent_indent="  ")
    return [*lines, ""]


def _coverage(residuals: Mapping[str, Any]) -> list[str]:
    """How often an interval holds rows of what it knows nothing of."""
    lines = [
        "## How often an interval holds",
        "",
        "`prediction` in summary.json has intervals of 90 %. This test leaves out the rows of one model, GPU, version",
        "or engine after the other, and asks whether intervals made from all other rows hold them. `warm` is without",
        "the runs whose kernels were compiled during the run. It is for every server except one whose first requests",
        "count, in a closed loop without `measure.warmup_s`. The table has the rows that are held (%), and in",
        "brackets the width: the upper end over the lower, in the median.",
        "",
    ]
    tested, metrics = residuals["tested"], (*METRICS, WARM)
    ways = list(tested[metrics[0]])
    rows = [
        [metric, *(f"{100 * tested[metric][way]['coverage']:.1f} ({tested[metric][way]['width']:.2f})" for way in ways)]
        for metric in metrics
    ]
    low, where = min(
        (share, f"{group} in `{metric}`")
        for metric in metrics
        for way in ways
        for group, (_, share) in tested[metric][way]["groups"].items()
    )
    outside = residuals["wider"][OUTSIDE]
    lines += [
        *table(("metric", *(f"{way} left out" for way in ways)), rows),
        "",
        f"The group of 100 rows and more that is held least often is {where}: {100 * low:.0f} %. Groups that are held",
        "more than 97 % of the time are priced better than all others, which nothing shows before they are measured.",
        "",
        about(INTERVALS, "metric, what was left out, the share held, the width, and the share held in each group"),
        "",
        "The width of an interval follows the size of errors of similar runs (`docs/writers/accuracy/spread.py`), by",
        "the basis of the price, the number of GPUs in tensor parallel, the kind of model, and the load (mean batch",
        "times prompt tokens over answer tokens).",
        "",
        about(WIDTHS, "how many times as wide an interval is, in logarithms, for each of these traits"),
        "",
        f"Outside of everything measured it is {outside:.2f} times as wide: no run lies there to test it.",
    ]
    return lines


def _value(trait: str, value: str) -> str:
    """A trait's value in words."""
    if trait != "load":
        return value
    place = int(value)
    return f"up to {LOADS[place]:,}" if place < len(LOADS) else f"above {LOADS[-1]:,}"
