"""docs/accuracy.md: every profile with its errors, every case with a server's truth, and what is not modelled."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.writers.accuracy.cases import CaseResult
from docs.writers.accuracy.composed import LeftOut
from docs.writers.accuracy.data import CLOSED_LOOP
from docs.writers.accuracy.possible import contradicts_itself, possible_section
from docs.writers.accuracy.sensitivity import Sensitivity
from docs.writers.accuracy.silicon import LOW_CONCURRENCY, Hosts, Scored, median_error
from docs.writers.accuracy.tables_page import (
    HELD_OUT_LINE,
    ClockOf,
    HeldOutErrors,
    HeldUneven,
    beside_section,
    clocks_section,
    parts_section,
    summary,
    tables_section,
    uneven_section,
)
from docs.writers.tables import about, table
from scenarios.validate.compare import Validation
from simulator.timing.tables import Tables

FIGURE = "sensitivity.png"
_HEAD = """# How accurate it is

`make pages PAGES=accuracy` runs every case below and writes this page, its figure and its data files. The measurements
are not in the repository; `BATCHLAB_SHARED` names their folder. An error is simulated / measured - 1: above 0 the
simulation is slower. No case that is scored here was fitted to its end-to-end times. Fitted or assumed are:

- Kernel times, fitted to the kernel tables that each profile names, never to a served run.
- The host's share of a step: 0.3 ms for vLLM 0.19 and later. Earlier versions and other engines have their own figures
  (`scenarios/servers/`); no case here uses them.
- The links between GPUs, which were not measured on these servers. All-reduce takes the nominal figures of the peer's
  configuration (16 GB/s, 20 microseconds); the exchange of tokens between ranks takes public nccl-tests of the same
  card (22.2 GB/s, 24.2 microseconds). No other assumption changes these cases more; the last tables show how much.
- The two constants of the closed-loop runs by profile, fitted to the runs of concurrency {low} and less and scored on
  the others. Nothing was fitted to the runs by tables.

[Runs of real servers](served.md) has 2,012 public runs of vLLM, SGLang and TensorRT-LLM, and how often the intervals of
`prediction` hold.
"""
_COMPOSED = """- **{} fp8 runs, composed of tables, nothing fitted.** The {} without a given version (Llama-3.1-70B on
H200) have a median error of {} % with the GPU's newest tables and the host of a server that schedules asynchronously,
and {} % with the oldest tables. The others, of vLLM 0.12, have {} %; {} more contradict themselves and are not
scored."""
_MIXTURES = """- **{} runs of gpt-oss-120b (experts in mxfp4, the rest in bf16), composed of tables, nothing fitted**:
{} %, and {:+.1f} % on average. Experts are priced by Marlin's kernels, which the public script of these servers
selects; no rows of Marlin exist for this model on H200, so those of other models are taken. Triton's kernels, the
default of vLLM 0.19, would give {} % ({:+.1f} %). The error rises with concurrency from below 0 to above 0: Marlin's
least time is that of other models, and small batches choose experts evenly here, while a trained gate uses fewer
experts."""
_FITTED = """- **{} bf16 runs of vLLM 0.12, by fitted profiles**: {} % over the {} with concurrency above 16. Two
constants for the host are fitted to the others (below)."""
_NOT_MODELLED = """## What is not modelled

- **The way to the engine, by default.** Times count from the arrival at the engine. `front_end:` adds HTTP, tokenising
  and detokenising: for vLLM over HTTP 4 ms, 67 microseconds for each running request, and 10 microseconds for each
  prompt token (6 for Llama 3 and gpt-oss). `batchlab validate` estimates the first two from a log, and adds them if the
  log has the client's latencies. An overloaded front end, which delays every token, is not modelled.
- **Structured output.** Drafts, LoRA, images and pipelines are modelled and agree with vLLM's own decisions, but no run
  on this page has them.
- **The preferences of a trained gate.** Up to 16 tokens an expert, tokens choose experts evenly; above, by the gentle
  power law of the tables where that takes longer. A real gate prefers some experts: small batches read fewer experts
  from memory, and one rank may get more than its share. `cost.expert_load` has other loads.
- **Disturbances**: garbage collection, other tenants, thermal limits, clocks that fall under load. Two runs of one
  server differ by about one per cent.
- **Start-up.** Compilation and graph capture are over, and kernels are warm. Prefix caches start empty.
- **An unknown number of blocks.** Without the server's `num_gpu_blocks` it is computed within a few per cent (`batchlab
  kv`). On a server that is short of memory this changes TTFT, as the figure shows.
"""


def page(
    profiles: Sequence[Mapping[str, Any]],
    cases: Sequence[CaseResult],
    predictions: Mapping[str, Mapping[str, Any]],
    silicon: Sequence[Scored],
    hosts: Hosts,
    sensitivities: Sequence[Sensitivity],
    left_out: Sequence[LeftOut] = (),
    tables: Sequence[Tables] = (),
    beside: Sequence[HeldOutErrors] = (),
    older: Sequence[Scored] = (),
    uneven: Sequence[HeldUneven] = (),
    clocks: Sequence[ClockOf] = (),
    other_kernels: Sequence[Scored] = (),
    parts_beside: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The whole page, as Markdown. `profiles` are their JSON documents, `predictions` summaries by scenario.

    `left_out` are models that were composed of `tables` without them, `beside` mixed steps by the power of other cards,
    `older` closed-loop runs again with the oldest tables of their GPU, `uneven` unequal batches by other
    cards' numbers, `clocks` what sources say of their GPU's clock, `other_kernels` closed-loop runs of mixtures again
    with the kernels of experts that vLLM takes by default, `parts_beside` the JSON of tables of experts and latent
    attention.
    """
    parts = [
        _HEAD.format(low=LOW_CONCURRENCY),
        _servers(cases),
        _predictions(predictions),
        _silicon(silicon, hosts, older, other_kernels),
        tables_section(tables, left_out),
        parts_section(parts_beside),
        beside_section(beside),
        uneven_section(uneven),
        _profiles(profiles),
        clocks_section(clocks),
        _sensitivity(sensitivities),
        _NOT_MODELLED,
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts if part)


def load_documents(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The JSON of profiles or tables, gzipped or not, in the order given."""
    import gzip
    import json

    held = [path.read_bytes() for path in paths]
    return [json.loads(gzip.decompress(each) if each[:2] == b"\x1f\x8b" else each) for each in held]


def _servers(cases: Sequence[CaseResult]) -> str:
    if not cases:
        return ""
    lines = [
        "## Against real servers",
        "",
        "vLLM 0.19.0 with 300 ShareGPT requests at 10 a second (LLMServingSim's logs). The score is the mean of 13",
        "absolute errors: mean, p50, p90 and p99 of TTFT, TPOT and end-to-end latency, and the makespan. The last",
        "column is the median absolute error of single requests' end-to-end latency. The same code scores the peer's",
        "published output (the peer's own summary counts from queued_ts, somewhat later than the arrival).",
        "",
        *table(
            ("case", "simulator", "score (%)", "worst (%)", "which", "per request (%)"),
            [
                row
                for result in cases
                for row in (
                    _score_row(result.case.title, "batchlab", result.ours),
                    _score_row("", "LLMServingSim", result.peer),
                )
            ],
            range(2, 6),
        ),
    ]
    for result in cases:
        lines += ["", f"### {result.case.title}", ""]
        changed = "".join(f" --set {override}" for override in result.case.overrides)
        lines += [f"`batchlab validate {result.case.scenario}{changed} --measured vllm_requests.jsonl.gz`", ""]
        rows = [
            [title, *(_percent(error) for error in result.ours.errors[metric].values())]
            for metric, title in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "end-to-end"))
        ]
        rows.append(["makespan", _percent(result.ours.makespan), "", "", ""])
        lines += table(("error (%)", "mean", "p50", "p90", "p99"), rows)
        if result.diagnosis is not None:
            lines += ["", *(f"- {text}" for text in result.diagnosis.words)]
    return "\n".join(lines)


def _words(template: str, *values: float) -> list[str]:
    """The lines of a template; counts as they are, fractions in per cent."""
    return template.format(*(f"{100 * v:.1f}" if isinstance(v, float) else v for v in values)).splitlines()


def _score_row(title: str, simulator: str, found: Validation) -> tuple[str, ...]:
    name, worst = found.worst
    each = f"{100 * found.per_request['e2e'].median_size:.1f}" if "e2e" in found.per_request else ""
    return title, simulator, f"{100 * found.score:.2f}", _percent(worst), name, each


def _predictions(predictions: Mapping[str, Mapping[str, Any]]) -> str:
    if not predictions:
        return ""
    names = ("p50_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p50_e2el_ms", "p99_e2el_ms", "duration", "preemptions")
    lines = [
        "## Predictions whose truth we have not seen",
        "",
        "Only the flags of these servers are known. The figures come from the profiles alone.",
        "",
    ]
    rows = ([f"`{each}`", *(f"{summary[name]:,.0f}" for name in names)] for each, summary in predictions.items())
    return "\n".join([*lines, *table(["scenario", *(name.replace("_", " ") for name in names)], rows)])


def _silicon(rows: Sequence[Scored], hosts: Hosts, older: Sequence[Scored], other_kernels: Sequence[Scored]) -> str:
    if not rows:
        return ""
    scored = [each for each in rows if not contradicts_itself(each.run)]
    dense = [each for each in rows if not each.run.resolve_model().experts]
    told = [each for each in dense if each.kernels == "tables" and each.run.version]
    mixtures = [each for each in scored if each.run.dtype == "mxfp4"]
    composed = [each for each in scored if each.kernels == "tables" and each not in mixtures]
    recent = [each for each in composed if not each.run.version]
    labelled = [each for each in composed if each.run.version]
    fitted = [each for each in scored if each.kernels != "tables"]
    beyond = [each for each in fitted if not each.run.is_low]
    unfitted = [each for each in scored if each not in fitted or each in beyond]
    middles = (median_error(recent), median_error(older), median_error(labelled))
    lines = [
        "## Closed-loop runs on H100 and H200",
        "",
        f"{len(scored)} runs (aiconfigurator's silicon samples, vLLM 0.12 to 0.18), TPOT alone. The median error is",
        f"{100 * median_error(scored):.1f} %, and {100 * median_error(unfitted):.1f} % over the {len(unfitted)} runs"
        " to which nothing was fitted.",
        "",
        *_words(_COMPOSED, len(composed), len(recent), *middles, len(rows) - len(scored)),
        *(_of_mixtures(mixtures, other_kernels) if mixtures else ()),
        *_words(_FITTED, len(fitted), median_error(beyond), len(beyond)),
        "",
        "What the host adds to the kernels of a step:",
        "",
        *(
            f"- kernels by {source}: {1e3 * of.step_s:.2f} ms, and {1e6 * of.per_seq_s:.0f} microseconds a request"
            for source, of in sorted(hosts.items())
        ),
        "",
        "Only the flags of the gpt-oss servers are known. For the others max_num_batched_tokens is taken to be 8192,",
        "and the KV cache of fp8 models fp8.",
        "",
    ]
    groups: dict[tuple[str, str, str, str], list[Scored]] = {}
    for each in scored:
        key = each.run.gpu, each.run.model, each.run.dtype, each.kernels
        groups.setdefault(key, []).append(each)
    shown = []
    for key, group in sorted(groups.items()):
        worst = max(group, key=lambda each: abs(each.error))
        where = f"TP {worst.run.tensor_parallel}, {worst.run.concurrency} at once"
        shown.append((*key, len(group), f"{100 * median_error(group):.1f}", _percent(worst.error), where))
    head = ("GPU", "model", "dtype", "kernels", "runs", "median error (%)", "worst (%)", "where")
    lines += [*table(head, shown, range(4, 7)), "", _CLOSED_LOOP_LINE]
    return "\n".join([*lines, "", possible_section(dense, told)])


_CLOSED_LOOP_LINE = about(CLOSED_LOOP, "what ran, the measured TPOT, and the error")


def _of_mixtures(scored: Sequence[Scored], other: Sequence[Scored]) -> list[str]:
    """Lines about runs of mixtures: size and mean of the errors, by the servers' kernels and by others."""
    figures = [(100 * median_error(each), 100 * sum(one.error for one in each) / len(each)) for each in (scored, other)]
    (ours, bias), (theirs, other_bias) = figures
    return _MIXTURES.format(len(scored), f"{ours:.1f}", bias, f"{theirs:.1f}", other_bias).splitlines()


def _profiles(profiles: Sequence[Mapping[str, Any]]) -> str:
    if not profiles:
        return ""
    lines = [
        "## Profiles",
        "",
        "Held-out errors of the kernels of fitted profiles, in per cent, by what was left out: random rows, whole",
        "regimes, rows beyond the grid. `batchlab list profiles` names the profiles, `batchlab calibrate check` reads",
        "one.",
        "",
        *summary(profiles),
        "",
        HELD_OUT_LINE,
    ]
    return "\n".join(lines)


def _sensitivity(sensitivities: Sequence[Sensitivity]) -> str:
    if not sensitivities:
        return ""
    lines = [
        "## What moves the answer",
        "",
        "One input changes at a time; the table shows the change of the means in per cent.",
        "",
        f"![How far each input moves TTFT, TPOT and end-to-end latency]({FIGURE})",
    ]
    for each in sensitivities:
        rows = [(effect.change.name, *map(_percent, effect.moves)) for effect in each.effects]
        lines += ["", *table((f"`{each.scenario}`", "TTFT", "TPOT", "end-to-end"), rows)]
    return "\n".join(lines)


def _percent(fraction: float) -> str:
    text = f"{100 * fraction:+.1f}"
    return "0.0" if float(text) == 0.0 else text
