"""docs/newcomer.md and docs/disaggregated.md, from the figures that `docs.writers.accuracy.others` keeps."""

from collections.abc import Mapping, Sequence
from typing import Any

from docs.writers.accuracy.newcomer import FULL, KEYS, NEWCOMER, size_of
from docs.writers.accuracy.others import kept
from docs.writers.accuracy.score_table import score_table
from docs.writers.tables import Files, about, csv_text, table

NEWCOMER_DATA = "data/newcomer-servers.csv"
APART_DATA = "data/disaggregated-runs.csv"
_NEWCOMER = """# What each missing key costs

`make pages PAGES=newcomer` writes this page from figures that `python -m docs.writers.accuracy.others newcomer` keeps.
A newcomer's scenario has the model, the GPU, the parallel sizes, the version and the traffic; the full scenario has all
that is known of the server. Each line between them leaves one key out of the full scenario, and so shows what that key
is worth. Keys that are left out take the defaults of `vllm serve` (SGLang, TensorRT-LLM) of that version on that GPU,
and `cost` the best there is ([Scenarios](scenarios.md#defaults)). So a server that was started with other flags is off
by their effect: the first two servers had `--max-num-seqs 128`, and the default is 1,024. An error is (simulated -
measured) / measured.

## Servers with a log of every request

vLLM 0.19.0, 300 ShareGPT requests at 10 a second (LLMServingSim's logs). The score is the mean of 13 absolute errors.

"""
_LOOPED = """
## Servers in a closed loop

{count} of 153 servers (engine, version, model, GPU, precision, parallel sizes) of the sample of [Runs of real
servers](served.md), each in one run: the number of users nearest to 32. The prompts share nothing, so prefix caching
costs nothing. `refused` counts servers that the scenario cannot price, `has the key` those whose full scenario has it;
servers without the key count unchanged. A newcomer's TensorRT-LLM has steps of 8,192 tokens and no chunks, as that
server does by default: prompts of that length wait until all answers have ended, so TTFT is ten times as long, and
`batchlab explain` says so. The runs' scripts ask for steps that hold the prompt and all users.

"""
_APART = """# Disaggregated servers

`make pages PAGES=disaggregated` writes this page from figures that `python -m docs.writers.accuracy.others
disaggregated` keeps. The runs are the {rows} disaggregated ones (prefill and decode on workers of their own) of the
sample of [Runs of real servers](served.md), with errors as defined there. All {rows} were seen; nothing was fitted to
them. {left_out} are left out because they contradict themselves or lack what ran:

{why}

No row has the number of all GPUs or the throughput, which would give the number of workers.

`docs/writers/accuracy/disaggregated.py` makes scenarios of the other {scored}. Each engine has its own policy, kernels
and host, and plans a step while the previous one runs. A worker with attention data parallel is a group of ranks that
share the experts and step together. vLLM's decoders pull KV through its connector; SGLang's take memory before a
prompt is computed; TensorRT-LLM's take it for the whole answer.

"""
_CAUSES = """
## The worst cells, and why

- **TTFT is {ttft:.0f} % off in the median, and too short in {short} of {priced} runs.** The simulation has the
  prefill, the wait for room on a decoder, the transfer over a port of 50 GB/s for each prefilling GPU, and the first
  token where each engine sends it. It lacks whatever else the measured TTFT contains, such as Dynamo's routers and
  hops between workers.
- **SGLang, decoders in tensor parallel:** the host of a worker that only decodes takes 0.31 ms a step here, measured
  with a mocked device. The 5.0 ms of GLM-5 servers that prefill and decode would dominate the shortest steps.
- **SGLang, 32 to 64 users, decoders with attention data parallel 4** ({ranks}): a rank has two to eight requests and
  reads all weights of the attention by itself; the exchange is assumed to take at least 20 us.
- **TensorRT-LLM on H200, decoders in tensor parallel** ({h200}): the error grows as users per decoder become fewer.
  These servers share whole experts, and wait for the GPU with most of them, which is simulated. Servers with the same
  kernels that divide experts by their width are within 5 % with as few users, so the exchange takes something that is
  not known.
- **SGLang, one decoder of 32 ranks**: experts on each rank were measured for tokens that all ranks see. The cost of a
  token that is not sent is subtracted by the slope among 64 ranks.
- More GPUs in tensor parallel than were measured (8 of GB200, 16): all-reduces are extrapolated from four or more.

"""
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
    lines.append(
        about(NEWCOMER_DATA, "errors of TPOT and TTFT in % by server, with the full and the newcomer's scenario")
    )
    return "\n".join(lines) + "\n"


def newcomer_files() -> Files:
    """Errors of each server in a closed loop."""
    rows = [
        [each["name"], *(_signed(each[metric][name]) for metric in METRICS for name in (FULL, NEWCOMER))]
        for each in kept("newcomer")["looped"]
    ]
    return {NEWCOMER_DATA: csv_text(("server", "tpot_full", "tpot_newcomer", "ttft_full", "ttft_newcomer"), rows)}


def _logged(name: str, errors: Mapping[str, float] | str) -> list[str]:
    words = _WORDS.get(name, f"without `{name}`")
    if isinstance(errors, str):
        return [words, f"refused: {errors}", "", "", ""]
    return [words, f"{100 * errors['score']:.1f}", *(_signed(errors[each]) for each in ("ttft", "tpot", "e2e"))]


def _engine_lines(engine: str, servers: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of an engine; a server without a key counts unchanged."""
    head = (f"{engine}, {len(servers)} servers", "has the key", "refused", "TPOT median (%)", "p90", "TTFT median (%)")
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
    lines += [
        "",
        about(
            APART_DATA,
            "workers (prefill, then decode; DP: attention data parallel), measured times, errors in %",
        ),
    ]
    return "\n".join(lines) + "\n"


def disaggregated_files() -> Files:
    """Each disaggregated run with its errors."""
    rows = [
        (each["cell"], each["lengths"], each["users"], each["sizes"], f"{each['tpot_ms']:.1f}", _signed(each["tpot"]),
         f"{each['ttft_ms']:.0f}", _signed(each["ttft"]))
        for each in kept("disaggregated")["runs"]
    ]  # fmt: skip
    head = ("run", "lengths", "users", "workers", "tpot_ms", "tpot_error", "ttft_ms", "ttft_error")
    return {APART_DATA: csv_text(head, rows)}


def _range(runs: Sequence[Mapping[str, Any]], cell: str, decoders: str) -> str:
    """The least and the largest error of TPOT of a cell's runs with such decoders."""
    errors = [each["tpot"] for each in runs if each["cell"].startswith(cell) and each["sizes"].endswith(decoders)]
    return f"{100 * min(errors):+.0f} to {100 * max(errors):+.0f} %"


def _signed(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:+.1f}"
