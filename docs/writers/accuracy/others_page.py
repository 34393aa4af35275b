"""docs/newcomer.md and docs/disaggregated.md, from the figures that `docs.writers.accuracy.others` keeps."""

from collections.abc import Mapping, Sequence
from typing import Any

from docs.writers.accuracy.newcomer import FULL, KEYS, NEWCOMER, size_of
from docs.writers.accuracy.others import kept
from docs.writers.accuracy.score_table import score_table
from docs.writers.tables import table

_NEWCOMER = """# What each key costs

This page is generated: `make pages PAGES=newcomer` writes it from figures that
`python -m docs.writers.accuracy.others newcomer` keeps. A newcomer writes model, GPU, parallel sizes, version and
traffic; the full scenario says all that is known of the server. Between the two, each key is left out of the full
scenario alone, so a line says what that key is worth. What is left out is as `vllm serve` (SGLang, TensorRT-LLM) of
that version has it by default on that GPU, and `cost` is the best there is ([Scenarios](scenarios.md#defaults)). A
server that was started with other flags is off by what they do: the first two below had `--max-num-seqs 128`, and the
default is 1,024. An error is simulated over measured, less one.

## Servers with a log of every request

vLLM 0.19.0, 300 ShareGPT requests at 10 a second (LLMServingSim's logs). The score is the mean size of 13 errors.

"""
_LOOPED = """
## Servers in a closed loop

{count} of 153 servers (engine, version, model, GPU, precision, parallel sizes) of the sample that [Runs of real
servers](served.md) describes, each in one run: that of the number of users nearest to 32. Prompts there have nothing in
common, so prefix caching costs nothing. `refused` counts servers that the scenario cannot price, `say it` those whose
full scenario has the key: the others count as they are. A newcomer's TensorRT-LLM has steps of 8,192 tokens and no
chunks, as that server does: prompts of that length wait there until all answers have ended, TTFT is ten times as long,
and `batchlab explain` says so. The runs' scripts ask for steps of the prompt and the users together.

"""
_EACH = """
## Each server

Errors of TPOT and TTFT in per cent: the full scenario, and the newcomer's.

"""
_APART = """# Disaggregated servers

This page is generated: `make pages PAGES=disaggregated` writes it from figures that
`python -m docs.writers.accuracy.others disaggregated` keeps. The runs are the {rows} disaggregated ones (prefill and
decode on workers of their own) at hand of the sample that [Runs of real servers](served.md) describes; the errors are
taken in the same way. All {rows} were seen; nothing was fitted to them.

{left_out} are left out, because they contradict themselves or do not say what ran:

{why}

No row has the number of all GPUs or the throughput, from which the workers would follow.

How the other {scored} become scenarios stands in `docs/writers/accuracy/disaggregated.py`. In short: each engine has
its own policy, kernels and host, and plans a step while the one before runs. A worker with attention data parallel is a
group of ranks that share the experts and step together. vLLM's decoders pull by its connector, SGLang's take memory
before a prompt is computed, TensorRT-LLM's take it for the whole answer.

"""
_CAUSES = """
## The worst, and why

- **TTFT is {ttft:.0f} % off in the median, and too short in {short} of {priced} runs.** The simulation has the prefill,
  the wait for room on a decoder, the transfer over a port of 50 GB/s for each prefilling GPU, and the first token where
  each engine sends it. What else is in a measured TTFT is not known: routers of Dynamo, and hops between workers.
- **SGLang, decoders in tensor parallel:** the host of a worker that only decodes is 0.31 ms a step here, what a mocked
  device showed. The 5.0 ms that servers of GLM-5 which do both take would be most of the shortest steps.
- **SGLang, 32 to 64 users, decoders with attention data parallel 4** ({ranks}): a rank has two to eight requests,
  reads all weights of the attention by itself, and the exchange takes 20 us at least, which is assumed.
- **TensorRT-LLM on H200, decoders in tensor parallel** ({h200}): the fewer users a decoder has, the shorter. These
  share whole experts, and wait for the GPU with most of them, which is counted. Servers with the same kernels that
  divide experts by their width are within 5 % with as few users: what else the exchange of such steps takes is not
  known. Shared experts run beside the routed ones in all of TensorRT-LLM's CUDA graphs, ranks or not.
- **SGLang, one decoder of 32 ranks**: experts on each rank were measured for tokens that all ranks see. What
  a token costs where it is not sent is taken off by the slope among 64 ranks.
- More GPUs in tensor parallel than were measured (8 of GB200, 16): all-reduces are extrapolated from four or more.

## Each run

Errors in per cent. Workers: those that prefill, then those that decode; DP: attention data parallel.

"""
_RUN_HEAD = ("run", "lengths", "users", "workers", "TPOT (ms)", "error", "TTFT (ms)", "error")
METRICS = ("tpot", "ttft")
_WORDS = {FULL: "the full scenario", NEWCOMER: "newcomer's"}


def newcomer_page() -> str:
    """What each missing key costs, as Markdown."""
    held = kept("newcomer")
    lines = [_NEWCOMER.rstrip("\n"), ""]
    for server in held["logged"]:
        head = ("scenario", "score (%)", "TTFT mean (%)", "TPOT mean (%)", "E2E mean (%)")
        rows = (_logged(name, errors) for name, errors in server["errors"].items())
        lines += [f"### {server['title']}", "", *table(head, rows), ""]
    looped = held["looped"]
    lines += [_LOOPED.format(count=len(looped)).strip("\n"), ""]
    for engine in sorted({each["engine"] for each in looped}):
        lines += _engine_lines(engine, [each for each in looped if each["engine"] == engine])
    each_way = [
        [each["name"], *(_signed(each[metric][name]) for metric in METRICS for name in (FULL, NEWCOMER))]
        for each in looped
    ]
    head = ("server", "TPOT, full", "newcomer's", "TTFT, full", "newcomer's")
    lines += [_EACH.strip("\n"), "", *table(head, each_way)]
    return "\n".join(lines) + "\n"


def _logged(name: str, errors: Mapping[str, float] | str) -> list[str]:
    words = _WORDS.get(name, f"without `{name}`")
    if isinstance(errors, str):
        return [words, f"refused: {errors}", "", "", ""]
    return [words, f"{100 * errors['score']:.1f}", *(_signed(errors[each]) for each in ("ttft", "tpot", "e2e"))]


def _engine_lines(engine: str, servers: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of an engine: a server whose full scenario does not say a key is without it as it is with it."""
    head = (f"{engine}, {len(servers)} servers", "say it", "refused", "TPOT median (%)", "p90", "TTFT median (%)")
    rows: list[list[object]] = []
    for name in (FULL, *KEYS, NEWCOMER):
        saying = sum(name in each["tpot"] for each in servers)
        if saying:
            tpot, ttft = ([each[metric].get(name, each[metric][FULL]) for each in servers] for metric in METRICS)
            priced = [error for error in tpot if error is not None]
            sizes = (size_of(priced), size_of(priced, 0.9), size_of([error for error in ttft if error is not None]))
            words = _WORDS.get(name, f"without `{name}`")
            count = saying if name in KEYS else ""
            rows.append([words, count, len(servers) - len(priced), *(f"{100 * size:.1f}" for size in sizes)])
    return [*table(head, rows), ""]


def disaggregated_page() -> str:
    """Disaggregated runs, predicted against measured, as Markdown."""
    held = kept("disaggregated")
    out = held["left_out"]
    why = "\n".join(f"- {count}: {words}" for words, count in sorted(out.items(), key=lambda one: -one[1]))
    left_out = sum(out.values())
    head = _APART.format(rows=held["rows"], left_out=left_out, why=why, scored=held["rows"] - left_out)
    groups = {"all": held["all"], **held["engines"], **held["kinds"], **held["cells"]}
    lines = [head.rstrip("\n"), "", *score_table("", groups)]
    short = sum(each["ttft"] < 0 for each in held["runs"])
    lines.append(
        _CAUSES.format(
            ttft=100 * held["all"]["ttft_median"],
            short=short,
            priced=len(held["runs"]),
            ranks=_range(held["runs"], "sglang", "DP 4"),
            h200=_range(held["runs"], "trtllm DeepSeek-V3 h200_sxm", "TP 8"),
        ).rstrip("\n")
    )
    lines += ["", *table(_RUN_HEAD, map(_run, held["runs"]), (2, 4, 5, 6, 7))]
    return "\n".join(lines) + "\n"


def _run(each: Mapping[str, Any]) -> list[str]:
    sizes = each["cell"], each["lengths"], f"{each['users']:,}", each["sizes"]
    return [*sizes, f"{each['tpot_ms']:.1f}", _signed(each["tpot"]), f"{each['ttft_ms']:,.0f}", _signed(each["ttft"])]


def _range(runs: Sequence[Mapping[str, Any]], cell: str, decoders: str) -> str:
    """The least and the largest error of TPOT of a cell's runs with such decoders."""
    errors = [each["tpot"] for each in runs if each["cell"].startswith(cell) and each["sizes"].endswith(decoders)]
    return f"{100 * min(errors):+.0f} to {100 * max(errors):+.0f} %"


def _signed(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:+.1f}"
