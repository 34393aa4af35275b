"""How much concurrency a window buys: requests at a time and throughput by length, with and without KV groups."""

from dataclasses import replace
from functools import cache

from docs.writers.claims.claim import Expectation, Table
from docs.writers.claims.runs import figure, run
from docs.writers.studies.study import Line, Panel, Study, StudyResult
from simulator.hardware.gpus import find_gpu
from simulator.hardware.kv import MemorySettings
from simulator.hardware.kv_plan import KVPlan
from simulator.hardware.models import find_model

SCENARIO = "study-window"
MODELS = {"gpt-oss-120b": "gpt_oss", "gemma-3-27b": "gemma"}
KEPT = {False: "a window's tokens", True: "all tokens of all layers"}
LENGTHS = (4_096, 16_384, 65_536, 131_072)
ANSWER = 512
SLOTS, BUDGET = 256, 8192

# What the planning of vLLM 0.33 says for the bytes that `batchlab kv` leaves for KV on an H200: blocks, tokens of
# capacity and concurrency, by model, bytes of a weight, tensor parallel, max_num_batched_tokens and max_model_len, with
# asynchronous scheduling. The last row of each model is without prefix caching. Its code was run for these on a CPU.
VLLM = {
    ("gpt-oss-120b", 2, 1): ((115486, 1640865, 12.519), (115486, 1636076, 49.929), (115486, 1640865, 12.519)),
    ("gpt-oss-120b", 2, 2): ((339958, 4830241, 36.852), (339958, 4816145, 146.977), (339958, 4830241, 36.852)),
    ("gemma-3-27b", 2, 1): ((60118, 535093, 4.082), (60118, 495708, 15.128), (60118, 535093, 4.082)),
    ("gemma-3-27b", 2, 2): ((160792, 1431164, 10.919), (160792, 1325825, 40.461), (160792, 1431164, 10.919)),
    ("qwen3-next-80b-a3b", 2, 2): ((7559, 4261390, 16.256), (7559, 3752928, 114.530), (8004, 4299591, 32.803)),
    ("qwen3-next-80b-a3b", 1, 1): ((3769, 2124775, 8.105), (3769, 1871251, 57.106), (3991, 2143886, 16.357)),
    ("qwen3.5-35b-a3b", 2, 1): ((2854, 2992635, 11.416), (2854, 2337996, 71.350), (2940, 3010560, 22.969)),
    ("nemotron-nano-9b-v2", 2, 1): ((5398, 5847327, 44.612), (5398, 3845253, 117.348), (5398, 6612398, 50.449)),
}
SETTINGS = ((8192, None, True), (2048, 32768, True), (8192, 131072, False))


def _plan(model: str, length: int, *, keeps_all: bool = False) -> KVPlan:
    memory = MemorySettings(find_model(model), find_gpu("h200"), max_num_batched_tokens=BUDGET)
    return memory.plan(length, enable_prefix_caching=False, disable_hybrid_kv_cache_manager=keeps_all)


def _fit(model: str, length: int, *, keeps_all: bool) -> float:
    """Requests of this length that the cache holds while they decode, and the part of another."""
    plan = _plan(model, length, keeps_all=keeps_all)
    return (plan.num_blocks - 1) / plan.blocks_of(length)


@cache
def _measured(model: str, length: int, *, keeps_all: bool) -> tuple[float, float]:
    """The most requests that ran at a time, and output tokens a second, with more users than fit."""
    users = min(SLOTS, int(1.25 * _fit(model, length, keeps_all=keeps_all)) + 2)
    result = run(
        SCENARIO,
        "vllm",
        f"model={model}",
        f"engine.disable_hybrid_kv_cache_manager={str(keeps_all).lower()}",
        f"workload.requests={round(1.5 * users)}",
        f"workload.classes.0.arrival.concurrency={users}",
        f"workload.classes.0.input.value={length - ANSWER}",
        f"workload.classes.0.output.value={ANSWER}",
    )
    run.cache_clear()
    return float(result.records.rows.running.max()), figure(result, "output_throughput")


def measure() -> StudyResult:
    """Both models at each length, with and without groups; and what vLLM's own planning says."""
    figures: dict[str, float] = {}
    panels, rows = [], []
    for model, short in MODELS.items():
        lines: dict[str, list[Line]] = {"fit": [], "rate": []}
        for keeps_all, words in KEPT.items():
            runs = [_measured(model, length, keeps_all=keeps_all) for length in LENGTHS]
            fits = [_fit(model, length, keeps_all=keeps_all) for length in LENGTHS]
            kind = "all" if keeps_all else "window"
            for length, fit, (most, rate) in zip(LENGTHS, fits, runs, strict=True):
                figures[f"{short}_{kind}_{length}_fit"] = fit
                figures[f"{short}_{kind}_{length}"] = most
                figures[f"{short}_{kind}_{length}_rate"] = rate
            lines["fit"] += [
                Line(words, list(zip(LENGTHS, [most for most, _ in runs], strict=True))),
                Line(f"{words}, as planned", list(zip(LENGTHS, fits, strict=True)), dashed=True),
            ]
            lines["rate"].append(Line(words, list(zip(LENGTHS, [rate for _, rate in runs], strict=True))))
            rows.append([f"{model}, {words}", *(f"{int(fit):,} / {most:,.0f} / {rate:,.0f}"
                                                for fit, (most, rate) in zip(fits, runs, strict=True))])  # fmt: skip
        panels += [
            Panel(model, "tokens of a request", "requests at a time", lines["fit"]),
            Panel(model, "tokens of a request", "output tokens/s", lines["rate"]),
        ]
        for length in LENGTHS:
            for name, part in (("fit", "_fit"), ("gain", "_rate")):
                both = [figures[f"{short}_{kind}_{length}{part}"] for kind in ("window", "all")]
                figures[f"{short}_{name}_{length}"] = both[0] / both[1]
    figures["most"] = figures["gpt_oss_window_65536"] / int(figures["gpt_oss_window_65536_fit"])
    planned, figures["equal"] = _beside_vllm()
    lengths = Table(["", *(f"{length:,} tokens" for length in LENGTHS)], rows,
                    "Requests that fit by plan / most at a time in the run / output tokens a second")  # fmt: skip
    return StudyResult(figures, [lengths, planned], panels)


def _beside_vllm() -> tuple[Table, float]:
    """Our planning beside vLLM's, and the rows in which all three figures are equal."""
    rows, equal = [], 0
    for (name, weight, ranks), theirs in VLLM.items():
        model = replace(find_model(name), dtype_bytes=weight)
        for (budget, longest, caches), told in zip(SETTINGS, theirs, strict=True):
            settings = MemorySettings(model, find_gpu("h200"), ranks, max_num_batched_tokens=budget)
            plan = settings.plan(longest, enable_prefix_caching=caches)
            ours = plan.num_blocks, plan.capacity_tokens, round(plan.max_concurrency, 3)
            equal += ours == told
            shown = [f"{blocks:,} / {tokens:,} / {requests:.3f}" for blocks, tokens, requests in (ours, told)]
            kind = f"{name}{', fp8' if weight == 1 else ''}"
            rows.append([kind, str(ranks), f"{budget:,}", f"{plan.settings.max_model_len:,}", "on" if caches else "off",
                         *shown])  # fmt: skip
    head = ["", "TP", "max_num_batched_tokens", "max_model_len", "prefix caching", "batchlab", "vLLM 0.33"]
    return Table(head, rows, "Blocks / tokens of capacity / concurrency on H200, for the same bytes"), float(equal)


STUDY = Study(
    name="window",
    setup="gpt-oss-120b, and Gemma-3-27B, each on one H200 with step times from kernel tables; users that ask again at"
    f" once, a quarter more than fit but at most {SLOTS}; answers of {ANSWER} tokens, and prompts of what is left of"
    " each length.",
    alt="Requests at a time and output tokens a second by length, of two models with and without KV groups",
    answer=(
        "**A window buys as many requests as it spares layers, and at a length near the window less.** Half of"
        " gpt-oss-120b's layers keep 128 tokens: {gpt_oss_fit_65536:.2f} times as many requests of 65,536 tokens fit."
        " Of Gemma 3's 62 layers 52 keep 1,024: {gemma_fit_65536:.2f} times as many fit, {gemma_window_65536_fit:.1f}"
        " instead of {gemma_all_65536_fit:.1f}; and at 4,096 tokens, of which a window is a quarter,"
        " {gemma_fit_4096:.2f} times. The engine runs about as many at a time: a request is admitted only"
        " where its whole prompt has room, and a window with two batches in flight takes more of it than a window of"
        " decodes.",
        "**Throughput grows far less.** At 65,536 tokens gpt-oss-120b gives {gpt_oss_gain_65536:.2f} times the tokens a"
        " second, and Gemma 3 {gemma_gain_65536:.2f} times: a prompt takes the same time however many requests run, and"
        " here it is over a hundred times as long as the answer. At 16,384 tokens it is {gpt_oss_gain_16384:.2f} and"
        " {gemma_gain_16384:.2f} times. At 4,096 tokens a cache of all tokens nearly fills gpt-oss-120b's 256 slots by"
        " itself ({gpt_oss_all_4096:.0f}), and the window adds {gpt_oss_gain_4096:.2f}. A plan that counts all tokens"
        " of all layers buys GPUs that stand idle; one that multiplies throughput with concurrency buys too few.",
        "**Beside vLLM's own planning.** For the bytes that `batchlab kv` leaves for KV, vLLM's planning code was run"
        " for the same layers. {equal:.0f} of 24 settings have equal blocks, capacity and concurrency (the second"
        " table). Its concurrency is that at start-up: with the tokens of two batches in flight a window of 128 counts"
        " as much as 16,384 tokens, so that it is below what decodes at a time.",
    ),
    limits="all requests have one length and share nothing; with unequal ones the cache is fuller and preempts. Prefix"
    " caching keeps little of windows (`engine.prefix_cache_retention_interval`), so a shared prefix is found later."
    " How much memory activations take is an estimate; `hardware.num_gpu_blocks` of one's own server replaces it.",
    expected=(
        Expectation("gpt_oss_fit_131072", 2.0, 0.1, "2 ± 5 %", "half of the layers keep all tokens"),
        Expectation("gemma_fit_131072", 6.2, 0.62, "6.2 ± 10 %", "10 of 62 layers keep all tokens"),
        Expectation("most", 1.0, 0.1, "1 ± 10 %", "the engine fills the cache that was planned"),
        Expectation("equal", 24.0, 0.0, "24", "the same rules for the same bytes"),
    ),
    measure=measure,
)
