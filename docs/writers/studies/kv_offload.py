"""KV on the host against computing it again: Mooncake's conversations by link and host memory."""

from collections.abc import Mapping
from functools import cache

import scenarios
from docs.writers.claims.claim import Expectation, Table
from docs.writers.claims.runs import figure
from docs.writers.studies.prefix_affinity import ideal_hits
from docs.writers.studies.study import Line, Panel, Study, StudyResult
from scenarios.assembly.replica_parts import build
from scenarios.diagnosis.evidence import load_token_s
from simulator.timing.cost import StepShape

SCENARIO = "study-kv-offload"
TRACE = "traces/mooncake_conversation_trace.jsonl.gz"
LINKS = (1.0, 2.0, 4.0, 50.0)
HOSTS = (256, 512, 1024)
LINK, HOST = 50.0, 1024
_NONE = "hardware.kv_offload=null"
_DISK = "hardware.kv_offload.tiers=[{type: fs}]"
_MEASURES = {
    "ttft": "mean_ttft_ms", "p99": "p99_ttft_ms", "gpu": "prefix_cache_hit_rate", "host": "kv_offload_hit_rate",
    "disk": "kv_tier_1_hit_rate", "link": "kv_offload_load_busy", "busy": "busy_fraction",
}  # fmt: skip


@cache
def _run(*keys: str) -> Mapping[str, float]:
    """Figures of a run; shares in per cent."""
    result = scenarios.run(scenarios.load(SCENARIO, keys))
    found = {short: figure(result, key) if key in result.summary else 0.0 for short, key in _MEASURES.items()}
    found |= {short: 100 * found[short] for short in ("gpu", "host", "disk", "link", "busy")}
    copies = result.records.copies
    if copies is not None:
        loads = (copies.tier == 0) & (copies.stored == 0)
        seconds = float((copies.end_s - copies.start_s)[loads].sum())
        found["gb_s"] = float(copies.bytes[loads].sum()) / 1e9 / seconds if seconds else 0.0
    return found


def _at(link: float = LINK, host: int = HOST, *more: str) -> Mapping[str, float]:
    return _run(f"hardware.kv_offload.link_gb_s={link}", f"hardware.kv_offload.host_gib={host}", *more)


def measure() -> StudyResult:
    """Without the host, by link, by memory, and with a disk below a small host; and a hit alone, by its length."""
    figures: dict[str, float] = {}
    cases = {"none": _run(_NONE), "disk": _at(LINK, HOSTS[0], _DISK)}
    cases |= {f"link{link:g}": _at(link) for link in LINKS} | {f"host{host}": _at(LINK, host) for host in HOSTS}
    for name, found in cases.items():
        figures |= {f"{name}_{short}": value for short, value in found.items()}
    figures["ideal"] = 100 * ideal_hits(SCENARIO)
    figures["of_ideal"] = (figures["host1024_gpu"] + figures["host1024_host"]) / figures["ideal"]
    figures["of_link"] = figures["link4_gb_s"] / 16
    figures["gain"] = figures["none_ttft"] / figures["host1024_ttft"]
    for tokens in (1000, 8000, 32000):
        figures[f"alone_{tokens}"] = _alone(tokens)
    figures["least_gb_s"] = _even_gb_s()
    return StudyResult(figures, [_table(cases)], _panels(cases["none"]))


def _alone(tokens: int) -> float:
    """How many times as long a prompt takes alone, on one GPU, that is computed as one that is loaded.

    Of the one that is loaded the last token is computed.
    """
    chosen = scenarios.load(SCENARIO, ["hardware.tensor_parallel=1"])
    last_s = build(chosen).cost.step_s(StepShape(0, 0, 1, 1, tokens, tokens, prefill_longest=tokens))
    return _computed_s(chosen, tokens) / (load_token_s(chosen) * tokens + last_s)


def _computed_s(chosen: scenarios.Scenario, tokens: int) -> float:
    """Seconds of a prompt alone, in chunks as large as a step takes."""
    cost, budget = build(chosen).cost, int(chosen.engine.parameter("max_num_batched_tokens"))
    total = 0.0
    for start in range(0, tokens, budget):
        chunk = min(budget, tokens - start)
        pairs = chunk * start + chunk * (chunk + 1) // 2
        total += cost.step_s(StepShape(0, 0, 1, chunk, start + chunk, pairs, prefill_longest=start + chunk))
    return total


def _even_gb_s() -> float:
    """The bandwidth at which a prompt of a step's length takes as long to load as to compute."""
    chosen = scenarios.load(SCENARIO)
    tokens = int(chosen.engine.parameter("max_num_batched_tokens"))
    link_gb_s = chosen.resolve_gpu().host_link_gb_s
    return link_gb_s * load_token_s(chosen) * tokens / _computed_s(chosen, tokens)


def _table(cases: Mapping[str, Mapping[str, float]]) -> Table:
    names = {"none": "no host memory", "disk": f"{HOSTS[0]} GiB, and a disk of 5 GB/s"}
    names |= {f"link{link:g}": f"{HOST} GiB, {link:g} GB/s" for link in LINKS}
    names |= {f"host{host}": f"{host} GiB, {LINK:g} GB/s" for host in HOSTS}
    head = ["", "on the GPU, %", "on the host, %", "from the disk, %", "mean TTFT, ms", "p99 TTFT, s", "link busy, %",
            "GPU busy, %"]  # fmt: skip
    rows = [
        [names[name], *(f"{found[short]:.1f}" for short in ("gpu", "host", "disk")), f"{found['ttft']:.0f}",
         f"{found['p99'] / 1e3:.1f}", f"{found['link']:.1f}", f"{found['busy']:.0f}"]
        for name, found in cases.items() if name != f"link{LINK:g}"
    ]  # fmt: skip
    return Table(head, rows, "The same 400 requests: source of the prompt tokens, and waiting times")


def _panels(none: Mapping[str, float]) -> list[Panel]:
    def flat(points: list[tuple[float, float]]) -> Line:
        return Line("computed again", [(x, none["ttft"]) for x, _ in points], dashed=True)

    links = [(link, _at(link)["ttft"]) for link in LINKS]
    hosts = [(float(host), _at(LINK, host)["ttft"]) for host in HOSTS]
    found = [
        Line(place, [(float(host), sum(_at(LINK, host)[key] for key in keys)) for host in HOSTS])
        for place, keys in (("GPU", ("gpu",)), ("GPU and host", ("gpu", "host")))
    ]
    return [
        Panel(f"Mean TTFT by link, {HOST} GiB", "GB/s", "ms", [Line("loaded from the host", links), flat(links)]),
        Panel(f"Mean TTFT by memory, {LINK:g} GB/s", "GiB", "ms", [Line("loaded from the host", hosts), flat(hosts)]),
        Panel("Prompt tokens found", "GiB", "%", found),
    ]


STUDY = Study(
    name="kv-offload",
    setup="Llama-3.1-8B on four H100 (tensor parallel 4), step times by roofline, vLLM 0.33 with a prefix cache; the"
    " first 400 requests of Mooncake's conversation trace at their own rate of 3.4 per second, with a jitter of three"
    " seconds. A token's KV takes 128 KiB. Memory is that of the server, and each GPU has a link of its own.",
    alt="Mean time to first token by bandwidth of the link and by host memory, and prompt tokens found by host memory",
    answer=(
        "**Take host memory where prompts come again: the link of any PCIe server is fast enough.** Without it"
        " the GPUs find {none_gpu:.1f} % of the prompt tokens, and the mean TTFT is {none_ttft:.0f} ms. With"
        " 1,024 GiB behind links of 50 GB/s, {host1024_host:.1f} % more are found on the host, and the mean"
        " TTFT is {host1024_ttft:.0f} ms, {gain:.2f} times as short. A cache that forgets nothing would find"
        " {ideal:.1f} %: most prompts of these two minutes are new, and no memory helps them.",
        "**A slow link binds, but later than one load alone says.** A prompt of 8,192 tokens takes as long to load as"
        " to compute at {least_gb_s:.1f} GB/s a GPU, on this model. At 4 GB/s the mean TTFT is {link4_ttft:.0f} ms, and"
        " even at 2 GB/s it is {link2_ttft:.0f} ms: a load leaves the GPUs to others. At 1 GB/s it is {link1_ttft:.0f}"
        " ms, more than by computing again, though the links load for {link1_link:.0f} % of the time only. At 50 GB/s,"
        " which is PCIe 5.0, they do for {link50_link:.1f} %: a faster link gains nothing.",
        "**The host must be much larger than the GPUs' own cache, or have a disk below it.** It holds what the GPUs"
        " hold too. With 256 GiB {host256_host:.1f} % of the prompt tokens are found on the host, with 512 GiB"
        " {host512_host:.1f} %, with 1,024 GiB {host1024_host:.1f} %. 256 GiB and a disk of 5 GB/s without a bound find"
        " {disk_host:.1f} %, of which {disk_disk:.1f} % come from the disk, with a mean TTFT of {disk_ttft:.0f} ms.",
        "**Beside public measurements.** vLLM reports 2 to 22 times less TTFT on a hit in host memory on H100, by the"
        " prompt's length (blog.vllm.ai, 2026-01-08). A hit alone on one GPU here: {alone_1000:.1f} times with 1,000"
        " tokens, {alone_8000:.0f} with 8,000, {alone_32000:.0f} with 32,000. In a small test of vLLM's pull request"
        " 27743 a hit in host memory took 43 ms instead of 146 ms, and 109 ms before blocks of all layers lay together:"
        " copies of small pieces do not reach the link's bandwidth, which is taken for granted here.",
    ),
    limits="copies reach the bandwidth that is given, whatever their size, and take nothing from the GPU's own memory"
    " traffic. Front ends and tokenizers are left out, so that a short prompt gains more here than at a server. One"
    " replica keeps its own host; conversations that a router sends elsewhere find nothing. Lengths and hashes come"
    " from one service, and two minutes of it: over a longer time more is found, and it takes more memory.",
    expected=(
        Expectation("of_ideal", 0.65, 0.35, "at most 1", "GPU and host find no more than a cache that forgets nothing"),
        Expectation("of_link", 1.0, 0.01, "1 ± 1 %", "a copy takes its bytes divided by the links of four GPUs"),
    ),
    measure=measure,
    trace=TRACE,
)
