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
from docs.writers.tables import table, texts
from reports.files import write
from scenarios.prediction.residuals import FILE, LOADS, METRICS, OUTSIDE, SOME_GPUS, WARM

WORST = 10  # cells of an engine
_HEAD = """# Runs of real servers

This page is generated: `make pages PAGES=served` writes it from the figures that `make accuracy` keeps. The runs are
from the sample of aiconfigurator-core 0.12.0 (Apache-2.0), which gathers InferenceX's and NVIDIA's own. **These rows
were seen**: 2,012 aggregated runs (`agg_vllm`, `agg_sglang`, `agg_trtllm`), of which {rows:,} are priced and scored
here. The other rows of the sample were not opened. Kernel tables, not runs, price the steps. What was chosen on these
rows, and what it gives where a cell is left out of the choice, stands below.

An error is simulated over measured, less one; a median is of its size. A row gives one figure a run and none of the
server's flags: `docs/writers/accuracy/recipes.py` has those of InferenceX's public scripts by date, and `served.py`
says which rows contradict themselves and are not scored (drafts that the row does not name, sums of several servers'
GPUs, servers that compute more than kernels can: their prompts were found in a cache). InferenceX's client is public
too: every user sends ten requests, the first all at once, of 0.8 to 1.0 of the lengths that are named, and the means
are over all of them. Qwen3-32B on H100 is NVIDIA's own: genai-perf as aiconfigurator's public script calls it, with
fixed lengths. The digits of its means say how many requests they are of: ten a user under vLLM, 20 under SGLang and
TensorRT-LLM, 2,000 at most.

"""
_OTHERS = """
aiconfigurator 0.12.0 on the same runs (`cli_estimate` with its newest kernel tables, the precision, parallel sizes,
lengths and users of each run; `docs/writers/accuracy/their_estimates.py`, 28 November 2026). It answers in
milliseconds, by a formula; a run here takes a tenth of a second. What it has no kernels or no memory for is not
priced. Median errors in % of the runs that both price, ours by the prices of that day:
"""
_THEIR_HEAD = ("engine", "both price", "its TPOT", "p90", "its TTFT", "our TPOT", "p90", "our TTFT")
_HELD_HEAD = ("metric", "left out", "held (%)", "width", "groups (%)")
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

vLLM 0.17 and later put norms into all-reduces by default (`fuse_allreduce_rms`). Runs of MiniMax and gpt-oss under 0.18
and 0.19 took as long as with norms apart; 76 runs of Kimi-K2.5, whose scripts name the key, are 4.1 % off with it and
7.9 without. So models with experts are priced with norms apart, unless `cost.fuse_allreduce_rms` is true.

The hosts of vLLM, of newer TensorRT-LLM and of SGLang with other models (0.31 ms, published) and the other launches
come from elsewhere. So does tokenising: 10 us a token under
vLLM and SGLang; the 6 us of Llama 3, gpt-oss and TensorRT-LLM were left as runs want them. The intervals' coverage
below is of what was left out.

## What TTFT is off by

- **The benchmark's**, known from its scripts and simulated: all users at once at first (a tenth of the requests),
  lengths, ten requests each, `batch_wait_timeout_iters` of TensorRT-LLM (20 steps for Llama with 1,024 tokens each
  way, 40 for DeepSeek in fp8 on B200) and its piecewise graphs, SGLang's `scheduler_recv_interval` (10 and 30 on
  Blackwell), vLLM's budget of twice the prompt and its captured sizes. NVIDIA's runs of Qwen3-32B: users with fixed
  lengths follow each other, one prompt a step, so that each waits for the prompt before it. The script's rule leaves a
  step 1,500 tokens more than that; by it vLLM's TTFT is 34 % off, with vLLM's own 8,192 tokens 74 %. Their KV cache
  is in fp8 under TensorRT-LLM: 128 requests of 2,176 tokens ran at once at TP 1, which take 71 GB in bf16.
- **Ours, found**: a prompt's way in (tokenising, one prompt after another; random text took 10 us a token with the
  tokenisers of DeepSeek and Qwen and 6.5 with Llama 3's, measured on one core). Launches: without a CUDA graph a prompt
  of 1,024 tokens takes as long as the host needs to launch its kernels, 60 to 150 ms for 60 layers with experts. vLLM
  before `--max-cudagraph-capture-size 2048`, SGLang before 0.5.10 and TensorRT-LLM run so; MiniMax with and without
  that flag differ by 60 ms in TTFT, and in TPOT by as much as 63 such prompts cost the others. A trained gate's uneven
  load of experts, which fills more tiles of a prompt. Block-scaled experts launch longer where nothing compiles the
  layers: DeepSeek and Qwen3.5 on H200 take 82 to 103 ms more than by the other launches, under SGLang and
  TensorRT-LLM; Qwen3.5 on B200 60 ms. Dense models show nothing of it.
- **Left**: the causes of the next table. Where kernels were compiled on the way, from 16,384 prompt tokens on a tenth
  of the requests waited for about a minute. Beside these, prompts of GLM-5 in fp8 and Llama's on B200.
"""
CAUSES = Path(__file__).with_name("causes.json")
"""Why a cell is off, as far as it was found: words by cell."""


PICTURE = "pictures/served-cells.png"
_ALT = "Error of TPOT and TTFT in each cell: half of its runs are nearer than the mark, nine in ten than the line's end"


def write_page(folder: Path) -> None:
    """Write served.md and its picture into `folder`."""
    from docs.writers.accuracy.cells_picture import cells_picture

    write(folder / "served.md", page())
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
    for kind, name in (("models", "model"), ("GPUs", "GPU"), ("precisions", "precision"), ("versions", "version")):
        if kind in kept:
            lines += [f"## By {name}", "", *score_table(name, kept[kind]), ""]
    lines += ["## By cell", "", f"![{_ALT}]({PICTURE})", ""]
    lines += [*score_table("engine, model, GPU, precision", kept["cells"]), _TTFT]
    lines += [*floor_lines(kept["floor"]), *_worst(kept["cells"])]
    return "\n".join([*lines, *_coverage(residuals)]).rstrip() + "\n"


def _beside(of_engine: tuple[str, Mapping[str, float]]) -> list[str]:
    """A row of an engine's runs: aiconfigurator's errors, and ours."""
    engine, found = of_engine
    names = [f"{whose}_{what}" for whose in ("theirs", "ours") for what in ("tpot", "tpot_p90", "ttft")]
    return [engine, f"{found['both']} of {found['runs']}", *(f"{100 * found[name]:.1f}" for name in names)]


def _worst(cells: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The cells in which a tenth of the rows is furthest off, of each engine ten at most, with what was found."""
    lines, causes = ["## The worst cells, and why", ""], json.loads(CAUSES.read_text(encoding="utf-8"))
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
        "`prediction` in summary.json has intervals of 90 %. Each line leaves out the rows of one model, GPU, version",
        "or engine after the other and asks the intervals by all others; the rows left out take no part in how wide",
        "these are made. The width is the upper end over the lower, in the median. Groups are those of 100 rows and",
        "more: the one that is held least often, and the most. `warm` is without the runs whose kernels were compiled",
        "on the way: so it is for every server but one whose first requests count, in a closed loop without",
        "`measure.warmup_s`.",
        "",
    ]
    rows = []
    for metric in (*METRICS, WARM):
        for way, found in residuals["tested"][metric].items():
            shares = {name: share for name, (_, share) in found["groups"].items()}
            ends = sorted(shares, key=lambda name: shares[name])
            words = ", ".join(f"{name} {100 * shares[name]:.0f}" for name in dict.fromkeys([*ends[:1], *ends[-1:]]))
            held = f"{100 * found['coverage']:.1f}", f"{found['width']:.2f}"
            rows.append([metric, way, *held, words or "-"])
    outside = residuals["wider"][OUTSIDE]
    lines += [
        *table(_HELD_HEAD, rows, (2, 3)),
        "",
        "What is held more often than 97 % of the time is priced better than all others, which nobody knows who has",
        "not seen it. Intervals of TPOT so narrow that TensorRT-LLM 1.0.0rc3 lies in them 97 % of the time (0.45 times",
        "as wide) would hold 67 % of the rows when versions are left out, and 0.69 times is the least that holds each",
        "group of 100 rows 80 % of the time (28 November 2026).",
        "",
        "How wide an interval is follows the size of errors of such runs (`docs/writers/accuracy/spread.py`): how many",
        "times as wide, in logarithms, by trait. `load` is the mean batch times prompt tokens over answers' tokens;",
        f"GPUs are those in tensor parallel: one, some (up to {SOME_GPUS}), many.",
        "",
    ]
    rows = []
    for metric in (*METRICS, WARM):
        for trait, effects in sorted(residuals["spread"][metric].items()):
            words = ", ".join(f"{_value(trait, value)} {math.exp(log):.2f}" for value, log in effects.items())
            rows.append([metric, trait, words])
    lines += texts(("metric", "trait", "times"), rows)
    lines += ["", f"Outside of everything measured it is {outside:.2f} times as wide: no run lies there to test it."]
    return lines


def _value(trait: str, value: str) -> str:
    """A trait's value in words."""
    if trait != "load":
        return value
    place = int(value)
    return f"up to {LOADS[place]:,}" if place < len(LOADS) else f"above {LOADS[-1]:,}"
