"""How many drafts at which load: throughput and TPOT by users, for two GPUs and two curves of acceptance."""

from collections.abc import Mapping
from functools import cache

from docs.writers.claims.claim import Expectation, Table
from docs.writers.claims.runs import figure, run
from docs.writers.studies.study import Line, Panel, Study, StudyResult
from scenarios.assembly.replica_parts import build
from scenarios.schema.loader import load
from simulator.timing.cost import StepShape

SCENARIO = "study-how-many-drafts"
GPUS = {"h100": "H100", "l40s": "L40S"}
CURVES = {"qwen3.5_mtp": "high", "dsv4_mtp": "low"}
DRAFTS = (0, 1, 2, 3, 4, 5)
USERS = (1, 4, 16, 32, 64, 128, 256)
_DRAFTS = "engine.speculative_config.num_speculative_tokens"
_CURVE = "engine.speculative_config.acceptance"

Place = tuple[str, str, int, int]  # GPU, curve, drafts, users


@cache
def _figures(gpu: str, curve: str, drafts: int, users: int) -> Mapping[str, float]:
    """Throughput, TPOT and acceptance length of a run."""
    keys = (f"hardware.gpu={gpu}", f"{_CURVE}={curve}", f"{_DRAFTS}={drafts}", f"workload.requests={max(6, 3 * users)}")
    result = run(SCENARIO, "vllm", *keys, f"workload.classes.0.arrival.concurrency={users}")
    run.cache_clear()
    names = {"rate": "output_throughput", "tpot_ms": "mean_tpot_ms"}
    found = {name: figure(result, key) for name, key in names.items()}
    return {**found, "length": figure(result, "spec_decode_acceptance_length") if drafts else 1.0}


def _ratio(gpu: str, curve: str, drafts: int, users: int) -> float:
    """Throughput over that without drafts."""
    return _figures(gpu, curve, drafts, users)["rate"] / _figures(gpu, curve, 0, users)["rate"]


def _best(gpu: str, curve: str, users: int) -> int:
    return max(DRAFTS, key=lambda drafts: _figures(gpu, curve, drafts, users)["rate"])


def measure() -> StudyResult:
    """Every number of drafts at every load, on each GPU and with each curve."""
    figures: dict[str, float] = {}
    for gpu in GPUS:
        for curve, name in CURVES.items():
            for users in (1, 16, 256):
                for drafts in (1, 3, 5):
                    figures[f"{gpu}_{name}_{drafts}_at_{users}"] = _ratio(gpu, curve, drafts, users)
                figures[f"best_{gpu}_{name}_at_{users}"] = _best(gpu, curve, users)
        figures[f"rule_{gpu}"] = _over_rule(gpu)
        figures[f"longer_{gpu}"] = _longer(gpu, 256)
    return StudyResult(figures, [_ratios(), _best_table(), _tpots()], _panels())


def _longer(gpu: str, users: int) -> float:
    """A step with three drafts for each request over one without, in seconds."""
    context = 512 + 64
    cost = build(load(SCENARIO, (f"hardware.gpu={gpu}",))).cost
    drafts = 3 * users
    verified = StepShape(users, users * (context + 3), draft_seqs=users, draft_tokens=drafts, drafted_tokens=drafts)
    return cost.step_s(verified) / cost.step_s(StepShape(users, users * context))


def _over_rule(gpu: str) -> float:
    """What three drafts do for one user, over acceptance length / longer step."""
    curve = next(iter(CURVES))
    plain, drafted = (_figures(gpu, curve, drafts, 1) for drafts in (0, 3))
    return plain["tpot_ms"] / drafted["tpot_ms"] / (drafted["length"] / _longer(gpu, 1))


def _rows() -> list[tuple[str, str, str]]:
    return [
        (gpu, curve, f"{title}, {name} acceptance") for gpu, title in GPUS.items() for curve, name in CURVES.items()
    ]


_USERS = [f"{users} user{'s' * (users > 1)}" for users in USERS]


def _ratios() -> Table:
    rows = [
        [f"{label}, K = {drafts}", *(f"{_ratio(gpu, curve, drafts, users):.2f}" for users in USERS)]
        for gpu, curve, label in _rows()
        for drafts in DRAFTS[1:]
    ]
    return Table(["", *_USERS], rows, "Throughput over that without drafts")


def _best_table() -> Table:
    rows = [[label, *(str(_best(gpu, curve, users)) for users in USERS)] for gpu, curve, label in _rows()]
    return Table(["", *_USERS], rows, "Drafts with the most throughput")


def _tpots() -> Table:
    rows = [
        [f"{label}, K = {drafts}", *(f"{_figures(gpu, curve, drafts, users)['tpot_ms']:.1f}" for users in USERS)]
        for gpu, curve, label in _rows()
        for drafts in (0, 3, 5)
    ]
    return Table(["", *_USERS], rows, "Mean time per output token, ms")


def _panels() -> list[Panel]:
    panels = []
    even = Line("no drafts", [(USERS[0], 1.0), (USERS[-1], 1.0)], dashed=True)
    for gpu, title in GPUS.items():
        for curve, name in CURVES.items():
            lines = [
                Line(f"K = {drafts}", [(users, _ratio(gpu, curve, drafts, users)) for users in USERS])
                for drafts in DRAFTS[1:]
            ]
            panels.append(Panel(f"{title}, {name} acceptance", "users", "throughput, with / without", [*lines, even]))
        curve, name = next(iter(CURVES.items()))
        tpot = [
            Line(f"K = {drafts}", [(users, _figures(gpu, curve, drafts, users)["tpot_ms"]) for users in USERS])
            for drafts in DRAFTS
        ]
        panels.append(Panel(f"{title}, {name} acceptance", "users", "mean TPOT, ms", tpot))
    return panels


STUDY = Study(
    name="how-many-drafts",
    setup="Llama-3.1-8B with an EAGLE3 head, step times from measured kernels; users that ask again at once, 512 input"
    " and 128 output tokens, three requests for each user. Acceptance is that of two public curves: high is"
    " `qwen3.5_mtp` (3.39 tokens a step with three drafts), low is `dsv4_mtp` (2.49).",
    alt="Throughput with one to five drafts over that without, and time per output token, by the number of users",
    answer=(
        "**Many drafts for few users, one or two for many; many lose where a full GPU accepts few.** For one user a"
        " step waits for the weights, and drafts ride along: three of them give {h100_high_3_at_1:.1f} times the"
        " throughput on an H100 and {l40s_high_3_at_1:.1f} times on an L40S, five {h100_high_5_at_1:.1f} and"
        " {l40s_high_5_at_1:.1f} times. At 256 users a step computes as much as it reads. It takes"
        " {longer_h100:.1f} times as long with three drafts on an H100, and {longer_l40s:.1f} times on an L40S. What"
        " is left of the gain is {h100_high_3_at_256:.2f} and {l40s_high_3_at_256:.2f} times the throughput.",
        "**It begins to cost where the longer step eats the accepted tokens.** With the low curve five drafts deliver"
        " hardly more than three, and at 256 users they lower the throughput to {h100_low_5_at_256:.2f} times on the"
        " H100 and {l40s_low_5_at_256:.2f} times on the L40S. One draft still gives {h100_low_1_at_256:.2f} and"
        " {l40s_low_1_at_256:.2f} times. vLLM's `num_speculative_tokens_per_batch_size` can follow the load: the"
        " second table has its entries.",
    ),
    limits="an EAGLE3 head of Llama-3.1-8B accepts less than these curves (`llama-3.1-8b_eagle3`: 2.60 with three"
    " drafts, on chat); acceptance also depends on the traffic. The time of the head is a roofline with the small"
    " kernels of each pass, inside CUDA graphs. Prompts are a part of the load: longer answers shift"
    " all curves to fewer users, longer contexts to more, because attention reads more for the same tokens.",
    expected=(
        Expectation("rule_h100", 1.0, 0.04, "1 ± 4 %", "acceptance length / longer step, for one user"),
        Expectation("rule_l40s", 1.0, 0.04, "1 ± 4 %", "the same"),
    ),
    measure=measure,
)
