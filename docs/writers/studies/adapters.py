"""Adapters on four replicas: TTFT and time without a slot by router, number of adapters and popularity."""

from collections.abc import Mapping
from functools import cache

from docs.writers.claims.claim import Expectation, Table
from docs.writers.claims.runs import figure, run
from docs.writers.studies.study import Line, Panel, Study, StudyResult

SCENARIO = "study-adapters"
ADAPTERS = (4, 8, 16, 32, 64, 128)
SLOTS, REPLICAS = 8, 4
POPULARITY = {0: "all adapters equally popular", 1: "popularity by Zipf's law"}
ROUTERS: Mapping[str, tuple[str, ...]] = {
    "round_robin": ("router=round_robin",),
    "least_loaded": ("router=least_loaded",),
    "lora_affinity": ("router=lora_affinity",),
    "adapter first": ("router={kind: lora_affinity, lora: 3, queue: 1, kv: 0}",),
    "128 slots": ("router=round_robin", "engine.max_loras=128"),
}
_MEASURES = ("p99_ttft_ms", "p50_ttft_ms", "lora_shut_out_rate", "lora_hit_rate", "mean_tpot_ms", "lora_loads")
_SHORT = {
    "round_robin": "turns", "least_loaded": "least", "lora_affinity": "kept", "adapter first": "first",
    "128 slots": "ample",
}  # fmt: skip
# As in vLLM's pull request 11267: Llama-2-7B on an A100, adapters of rank 8; lengths are about ShareGPT's means.
_PUBLIC = (
    "model=llama-2-7b", "hardware.gpu=a100-80gb", "replicas=1", "router=round_robin", "workload.requests=1000",
    "workload.classes.0.arrival={process: poisson, rate: 10000}",
    "workload.classes.0.input={dist: fixed, value: 215}", "workload.classes.0.output={dist: fixed, value: 200}",
)  # fmt: skip


@cache
def _at(router: str, zipf: int, adapters: int) -> Mapping[str, float]:
    keys = (f"workload.classes.0.lora={{adapters: {adapters}, zipf: {zipf}}}", *ROUTERS[router])
    result = run(SCENARIO, "vllm", *keys)
    run.cache_clear()
    return {name: figure(result, name) for name in _MEASURES}


def _rate(loras: int) -> float:
    """Requests per second of the public measurement's server; without adapters where there are 0."""
    keys: tuple[str, ...] = ("workload.classes.0.lora=null", "engine.max_loras=null", "engine.max_lora_rank=null")
    if loras:
        lora = f"workload.classes.0.lora={{adapters: {loras}}}"
        keys = (lora, f"engine.max_loras={loras}", "engine.max_lora_rank=8")
    return figure(run(SCENARIO, "vllm", *_PUBLIC, *keys), "request_throughput")


def measure() -> StudyResult:
    """Every router with every number of adapters, of both popularities; and the public measurement."""
    figures: dict[str, float] = {}
    for router, short in _SHORT.items():
        for zipf in POPULARITY:
            for adapters in ADAPTERS:
                found = _at(router, zipf, adapters)
                figures |= {
                    f"{short}_{zipf}_{adapters}": found["p99_ttft_ms"],
                    f"{short}_{zipf}_{adapters}_out": 100 * found["lora_shut_out_rate"],
                    f"{short}_{zipf}_{adapters}_loads": found["lora_loads"],
                }
    plain, one, four = _rate(0), _rate(1), _rate(4)
    figures |= {"plain": plain, "one": one, "four": four, "lost": 100 * (1 - one / plain), "count": four / one}
    figures["few"] = figures["turns_0_8"] / figures["kept_0_8"]
    return StudyResult(
        figures,
        [_table("p99_ttft_ms", "p99 TTFT, ms", 1.0), _table("lora_shut_out_rate", "Requests shut out, %", 100.0)],
        [*_panels("p99_ttft_ms", "p99 TTFT, s", 1e-3), *_panels("lora_shut_out_rate", "requests shut out, %", 100.0)],
    )


def _table(name: str, title: str, scale: float) -> Table:
    rows = [
        [f"{words}, {router}", *(f"{scale * _at(router, zipf, adapters)[name]:.0f}" for adapters in ADAPTERS)]
        for zipf, words in POPULARITY.items()
        for router in ROUTERS
    ]
    return Table(["", *(f"{adapters} adapters" for adapters in ADAPTERS)], rows, title)


def _panels(name: str, label: str, scale: float) -> list[Panel]:
    return [
        Panel(
            title, "adapters", label,
            [
                Line(router, [(adapters, scale * _at(router, zipf, adapters)[name]) for adapters in ADAPTERS])
                for router in ROUTERS
            ],
        )
        for zipf, title in POPULARITY.items()
    ]  # fmt: skip


STUDY = Study(
    name="adapters",
    setup="Llama-3.1-8B on four H100, step times by roofline; 40 requests/s with 400 input and 150 output tokens, 1,600"
    " in all. Each replica has slots for 8 adapters of rank 16, 32 slots in all. `adapter first` is `lora_affinity`"
    " with the weights 3 for the adapter, 1 for the queue and 0 for KV; `128 slots` is `round_robin` with so many on"
    " each replica.",
    alt="99th percentile of TTFT and the share of requests shut out, by the number of adapters and by router",
    answer=(
        "**A router that spreads requests evenly spreads every adapter over every replica: then each replica needs as"
        " many slots as there are adapters.** With 32 equally popular adapters and 8 slots on each replica,"
        " {turns_0_32_out:.0f} % of the requests wait while other adapters take all slots, and the 99th percentile of"
        " TTFT is {turns_0_32:,.0f} ms, though the GPUs have time to spare. `least_loaded` does no better"
        " ({least_0_32:,.0f} ms): it counts requests, and no adapters.",
        "**Affinity makes the slots of all replicas one.** `lora_affinity` with the adapter's weight above the queue's"
        " serves the same 32 adapters with {first_0_32:,.0f} ms, and 32 adapters of Zipf's popularity with"
        " {first_1_32:.0f} ms instead of {turns_1_32:,.0f} ms. With llm-d's usual weights the queue counts more than"
        " the adapter: {kept_1_32:.0f} ms by Zipf's law, {kept_0_32:,.0f} ms with equal popularity, for the first"
        " request that is shut out makes a queue, which sends the next ones elsewhere, with their adapters; and it"
        " takes a replica to be full from half of its slots on, as vLLM names each adapter twice. Beyond the"
        " 32 slots of all replicas affinity helps and does not suffice: at 64 equally popular adapters it has"
        " {first_0_64:,.0f} ms, and round robin {turns_0_64:,.0f} ms.",
        "**Slots are the cheaper remedy where memory allows.** An adapter of rank 16 of this model takes 80 MiB. 128"
        " slots on each replica take 10 GiB of its KV cache, and round robin then has {ample_0_128:.0f} ms at 128"
        " adapters, with {ample_0_128_loads:,.0f} copies from the host instead of {turns_0_128_loads:,.0f}.",
        "**Beside a public measurement.** vLLM's pull request 11267 (2024; V0, one A100, Llama-2-7B, ShareGPT, rank 8)"
        " went from 11.45 to 7.60 requests/s with one adapter, and to 7.61 with `max_loras` 4: the kernels cost, not"
        " the number of adapters. Here {plain:.1f} requests/s become {one:.1f} with one adapter ({lost:.0f} % less)"
        " and {four:.1f} with four. The price is that of the kernels of 2026, which start faster; the count costs as"
        " little in both.",
    ),
    limits="kernels of adapters are priced by their bytes and a shortest time; that more slots make them slower is not"
    " modelled. Adapters are all of one rank and lie in host memory. The router sees loads at once, while llm-d's"
    " picker scrapes them every 50 ms (`signal_interval_s: 0.05`). Nothing speaks for a request that is shut out, as in"
    " vLLM: under a steady stream of popular adapters it may wait for very long.",
    expected=(
        Expectation("few", 1.0, 0.15, "1 ± 15 %", "with as many slots as adapters on each replica no router matters"),
        Expectation("count", 1.0, 0.02, "1 ± 2 %", "the weights of three more adapters are few bytes in a step"),
        Expectation("ample_0_128_out", 0.0, 0.0, "0", "slots for all: nobody is shut out"),
    ),
    measure=measure,
)
