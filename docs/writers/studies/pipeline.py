"""One pipeline against tensor parallel: throughput and TPOT of eight GPUs by users, for three links between them."""

from collections.abc import Mapping
from functools import cache

from docs.writers.claims.claim import Expectation, Table
from docs.writers.claims.runs import figure, run
from docs.writers.studies.study import Line, Panel, Study, StudyResult
from scenarios.assembly.replica_parts import build
from scenarios.schema.loader import load
from simulator.timing.cost import StepShape

SCENARIO = "study-pipeline"
LINKS = {300.0: "NVLink, 300 GB/s", 32.0: "PCIe 4.0, 32 GB/s", 12.5: "100 Gbit/s, 12.5 GB/s"}
SHAPES = {(8, 1): "TP 8", (2, 4): "TP 2 x PP 4", (1, 8): "PP 8"}
USERS = (1, 8, 32, 128, 512)
_PUBLIC = ("model={base: qwen3-30b-a3b, dtype_bytes: 1}", "hardware.gpu=h100")

Shape = tuple[int, int]  # tensor parallel, stages


def _keys(link: float, shape: Shape) -> tuple[str, ...]:
    sizes = (f"hardware.tensor_parallel={shape[0]}", f"hardware.pipeline_parallel={shape[1]}")
    return (f"hardware.gpu.link_gb_s={link}", *sizes)


@cache
def _figures(*keys: str, users: int) -> Mapping[str, float]:
    """Throughput and TPOT of a run with so many users, two requests each."""
    load_keys = (f"workload.requests={max(6, 2 * users)}", f"workload.classes.0.arrival.concurrency={users}")
    result = run(SCENARIO, "vllm", *keys, *load_keys)
    run.cache_clear()
    return {"rate": figure(result, "output_throughput"), "tpot_ms": figure(result, "mean_tpot_ms")}


def _at(link: float, shape: Shape, users: int, name: str) -> float:
    return _figures(*_keys(link, shape), users=users)[name]


def measure() -> StudyResult:
    """Every split of the GPUs at every load, over each link; and a pipeline with and without asynchronous steps."""
    figures: dict[str, float] = {}
    for link, short in zip(LINKS, ("nvlink", "pcie", "net"), strict=True):
        for shape, name in zip(SHAPES, ("tp8", "both", "pp8"), strict=True):
            for users in USERS:
                figures[f"{name}_{short}_{users}"] = _at(link, shape, users, "rate")
                figures[f"{name}_{short}_{users}_tpot"] = _at(link, shape, users, "tpot_ms")
    figures["of_link"] = figures["pp8_net_512"] / figures["pp8_nvlink_512"]
    figures["alone"] = figures["pp8_pcie_1_tpot"] / _alone_ms()
    figures["pcie_gain"] = figures["pp8_pcie_512"] / figures["tp8_pcie_512"]
    figures["net_gain"] = figures["pp8_net_512"] / figures["tp8_net_512"]
    figures["nvlink_tpot"] = figures["pp8_nvlink_1_tpot"] / figures["tp8_nvlink_1_tpot"]
    stages = ("hardware.pipeline_parallel=4", *_PUBLIC)
    asynchronous = _figures(*stages, users=128)
    for name, host in (("own", ()), ("same", ("host={step_s: 0.0003, per_seq_s: 0}",))):
        sync = _figures(*stages, "engine.async_scheduling=false", *host, users=128)
        figures[f"{name}_rate"] = 100 * (asynchronous["rate"] / sync["rate"] - 1)
        figures[f"{name}_tpot"] = 100 * (asynchronous["tpot_ms"] / sync["tpot_ms"] - 1)
    return StudyResult(figures, [_table("rate", "Output tokens/s", ".0f"), _table("tpot_ms", "Mean TPOT, ms", ".1f")],
                       [*_panels("rate", "output tokens/s"), *_panels("tpot_ms", "mean TPOT, ms")])  # fmt: skip


def _alone_ms() -> float:
    """Milliseconds of a token that is alone on the pipeline: every stage, and every transfer."""
    cost = build(load(SCENARIO)).cost
    return 1e3 * cost.step_s(StepShape(1, 512 + 64))


def _table(name: str, title: str, form: str) -> Table:
    rows = [
        [f"{link}, {label}", *(format(_at(gb_s, shape, users, name), form) for users in USERS)]
        for gb_s, link in LINKS.items()
        for shape, label in SHAPES.items()
    ]
    return Table(["", *(f"{users} user{'s' * (users > 1)}" for users in USERS)], rows, title)


def _panels(name: str, label: str) -> list[Panel]:
    return [
        Panel(
            title, "users", label,
            [
                Line(words, [(users, _at(gb_s, shape, users, name)) for users in USERS])
                for shape, words in SHAPES.items()
            ],
        )
        for gb_s, title in LINKS.items()
    ]  # fmt: skip


STUDY = Study(
    name="pipeline",
    setup="Llama-3.1-70B on eight A100 of 80 GB, step times by roofline; users that ask again at once, 512 input and"
    " 128 output tokens, two requests for each user. Only the link between the GPUs changes.",
    alt="Output tokens per second and time per output token by the number of users, for three links",
    answer=(
        "**Over a fast link divide every layer; over a slow one divide the layers among the GPUs, as soon as many"
        " users ask.** Tensor parallelism reduces every token's row over the link twice in each layer. Over NVLink that"
        " costs little, and one user's tokens come {nvlink_tpot:.1f} times as fast as from a pipeline of 8, where a"
        " token passes one GPU after the other. Over PCIe the reductions are most of the time: at 512 users the"
        " pipeline gives {pp8_pcie_512:.0f} tokens/s, {pcie_gain:.1f} times as many as tensor parallelism, and over"
        " 100 Gbit/s {net_gain:.1f} times as many.",
        "**A pipeline hardly notices its link, and needs a batch for each stage.** It sends each token's row seven"
        " times in all: its throughput over 100 Gbit/s is {of_link:.3f} times that over NVLink. But a request is in"
        " one batch in nine, so that every stage reads its weights for a ninth of the users: with 8 users the pipeline"
        " gives {pp8_pcie_8:.0f} tokens/s over PCIe, and tensor parallelism {tp8_pcie_8:.0f}. Two GPUs a stage and"
        " four stages are between the two in both respects.",
        "**Beside a public measurement.** vLLM's own change that made pipelines asynchronous reports 30.8 % more"
        " throughput and 31.8 % less TPOT with four stages and Qwen3-30B-A3B in FP8 (vLLM pull request 32618; GPU and"
        " load are not stated). Four stages on H100 with 128 users here: {own_rate:+.0f} % and {own_tpot:+.0f} % where"
        " each stage waits for a synchronous engine's whole host, {same_rate:+.1f} % and {same_tpot:+.1f} % where it"
        " waits no longer than under an asynchronous one. The truth lies between: an engine's work overlaps with other"
        " stages, and the figures of hosts do not tell it from the workers'.",
    ),
    limits="a roofline takes every all-reduce as a ring at 60 % of the link, with 20 microseconds each over a slow one."
    " The host's time is counted on each stage, as each has a worker of its own; that transfers delay nothing but the"
    " next stage is assumed. Requests settle into the batch in which they were admitted, and nothing evens the"
    " batches out: with unequal lengths stages also wait for each other. Long prompts favour the pipeline more, as"
    " they are what is reduced.",
    expected=(
        Expectation("of_link", 1.0, 0.05, "1 ± 5 %", "seven rows a token are little for any of these links"),
        Expectation("alone", 1.0, 0.1, "1 ± 10 %", "all stages and transfers, one after the other, for one user"),
    ),
    measure=measure,
)
